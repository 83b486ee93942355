"use strict";
/* A flame graph on a canvas, for reports and for pages of a server. */
const MachtraceFlame = (() => {
  const ROW = 18;
  const NARROWEST = 0.4;
  const THREAD = 3;
  const HUES = [[24, 85, 66], [212, 38, 76], [150, 14, 74], [0, 0, 84]];

  function colour(name, kind) {
    let hash = 7;
    for (let at = 0; at < name.length && at < 64; at += 1) {
      hash = (hash * 31 + name.charCodeAt(at)) | 0;
    }
    const [hue, saturation, light] = HUES[kind];
    return `hsl(${hue + (hash & 15) - 8} ${saturation}% ${light + ((hash >> 4) & 7) - 3}%)`;
  }

  /* Red is more than before, blue is less; what may be chance is grey. */
  function changeColour(change, most, isSure) {
    const part = most ? Math.sqrt(Math.min(1, Math.abs(change) / most)) : 0;
    if (!isSure || part === 0) {
      return `hsl(220 8% ${isSure ? 88 : 82}%)`;
    }
    return `hsl(${change > 0 ? 6 : 214} ${50 + 40 * part}% ${88 - 24 * part}%)`;
  }

  /* A caller is the last node before it whose depth is less by one. */
  function parentsOf(depths) {
    const path = [];
    return depths.map((depth, node) => {
      path[depth] = node;
      return depth ? path[depth - 1] : -1;
    });
  }

  /* A tree as columns: node 0 is all of it; parents come before what they called. */
  function treeOf(data, mode) {
    const parents = [-1];
    const keys = [-1];
    const own = [0];
    const place = new Array(data.parents.length);
    const merged = new Map();
    const width = data.names.length + 1;
    for (let node = 0; node < data.parents.length; node += 1) {
      const above = data.parents[node];
      if (mode === "merged" && above < 0) {
        place[node] = 0;
        continue;
      }
      const parent = above < 0 ? 0 : place[above];
      const key = data.keys[node];
      const id = parent * width + key;
      let found = mode === "merged" ? merged.get(id) : undefined;
      if (found === undefined) {
        found = parents.length;
        parents.push(parent);
        keys.push(key);
        own.push(0);
        merged.set(id, found);
      }
      own[found] += data.own[node];
      place[node] = found;
    }
    const was = data.was && [0, ...data.was];
    const total = own.slice();
    const before = was?.slice();
    const depth = new Array(parents.length).fill(0);
    const called = parents.map(() => null);
    let deepest = 0;
    for (let node = parents.length - 1; node > 0; node -= 1) {
      total[parents[node]] += total[node];
      if (before) {
        before[parents[node]] += before[node];
      }
    }
    /* Widths: of a difference, the shares of both sides. */
    const share = (part, whole) => (whole ? part / whole : 0);
    const wide = before
      ? total.map((part, node) => share(part, total[0]) + share(before[node], before[0]))
      : total;
    for (let node = 1; node < parents.length; node += 1) {
      depth[node] = depth[parents[node]] + 1;
      deepest = Math.max(deepest, depth[node]);
      (called[parents[node]] ??= []).push(node);
    }
    for (const children of called) {
      children?.sort((one, other) => wide[other] - wide[one] || one - other);
    }
    return { parents, keys, own, total, before, wide, depth, called, deepest };
  }

  class Flame {
    constructor(host) {
      this.host = host;
      this.data = JSON.parse(host.querySelector("script").textContent);
      this.data.parents ??= parentsOf(this.data.depths);
      this.isUp = host.classList.contains("up");
      this.scroller = host.querySelector(".scroller");
      this.spacer = host.querySelector(".spacer");
      this.canvas = host.querySelector("canvas");
      this.status = host.querySelector(".status");
      this.mode = host.querySelector(".mode");
      this.matches = null;
      this.mode?.addEventListener("change", () => this.load());
      host.querySelector(".out").addEventListener("click", () => this.zoomOut());
      host.querySelector(".reset").addEventListener("click", () => this.zoom(0));
      this.scroller.addEventListener("scroll", () => this.later());
      this.canvas.addEventListener("click", (event) => {
        const node = this.at(event);
        if (node !== null) {
          this.select(node);
          this.zoom(node);
        }
      });
      this.canvas.addEventListener("mousemove", (event) => {
        const node = this.at(event);
        this.canvas.title = node === null ? "" : this.describe(node);
      });
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.layOut()).observe(this.scroller);
      this.load();
    }

    load() {
      this.tree = treeOf(this.data, this.mode?.value);
      this.selected = 0;
      this.zoom(0);
    }

    /* A node's change of share, and whether its interval is on one side of zero. */
    change(node) {
      const { total, before } = this.tree;
      const side = (of) => (of[0] ? of[node] / of[0] : 0);
      const [least, most] = node === 0 ? [0, 0] : [this.data.least[node - 1], this.data.most[node - 1]];
      const was = side(before);
      const is = side(total);
      return { was, is, change: is - was, least, most, isSure: node === 0 || least > 0 || most < 0 };
    }

    name(node) {
      return node === 0 ? "all" : this.data.names[this.tree.keys[node]][0];
    }

    describe(node) {
      const { total, own } = this.tree;
      const share = total[0] ? (100 * total[node]) / total[0] : 0;
      const image = node === 0 ? "" : this.data.names[this.tree.keys[node]][1];
      const where = image ? ` (${image})` : "";
      if (this.tree.before) {
        const { was, is, change, least, most, isSure } = this.change(node);
        const signed = (part) => `${part < 0 ? "−" : "+"}${Math.abs(part).toFixed(2)}`;
        const interval = `${signed(least / 100)} to ${signed(most / 100)}`;
        const sure = isSure ? "" : ", may be chance";
        return `${this.name(node)}${where}: ${(100 * was).toFixed(2)} % → ${(100 * is).toFixed(2)} %, `
          + `${signed(100 * change)} (${interval})${sure}`;
      }
      if (this.data.depths) {
        const counts = `${total[node].toLocaleString("en")}, ${own[node].toLocaleString("en")} own`;
        return `${this.name(node)}${where}: ${share.toFixed(2)} %, ${counts}`;
      }
      return `${this.name(node)}${where}: ${total[node]} samples, ${share.toFixed(1)} %, ${own[node]} own`;
    }

    zoom(node) {
      this.focus = node;
      this.layOut();
      const top = Math.max(0, this.tree.depth[node] - 2) * ROW;
      const start = this.isUp ? this.spacer.offsetHeight : 0;
      this.scroller.scrollTop = node === 0 ? start : this.isUp ? start - top - this.scroller.clientHeight : top;
      this.select(node);
    }

    zoomOut() {
      this.zoom(this.focus === 0 ? 0 : this.tree.parents[this.focus]);
    }

    select(node) {
      this.selected = node;
      this.status.textContent = this.describe(node);
      const [name, image] = node === 0 ? ["", ""] : this.data.names[this.tree.keys[node]];
      this.host.dispatchEvent(new CustomEvent("selected", { detail: { name, image } }));
      this.later();
    }

    /* Boxes by row: [node, x, width], in pixels, of what is wide enough to see. */
    layOut() {
      const { parents, wide: size, depth, called, deepest } = this.tree;
      const width = this.scroller.clientWidth;
      this.rows = [];
      for (let node = this.focus; node >= 0; node = parents[node]) {
        (this.rows[depth[node]] ??= []).push([node, 0, width]);
      }
      const scale = size[this.focus] ? width / size[this.focus] : 0;
      const waiting = [[this.focus, 0]];
      while (waiting.length) {
        const [node, from] = waiting.pop();
        let x = from;
        for (const child of called[node] ?? []) {
          const wide = size[child] * scale;
          if (wide < NARROWEST) {
            break;
          }
          (this.rows[depth[child]] ??= []).push([child, x, wide]);
          waiting.push([child, x]);
          x += wide;
        }
      }
      this.spacer.style.height = `${(Math.min(deepest, this.rows.length - 1) + 1) * ROW}px`;
      const height = this.scroller.clientHeight;
      const ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.max(1, Math.round(width * ratio));
      this.canvas.height = Math.max(1, Math.round(height * ratio));
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
      this.draw();
    }

    later() {
      if (!this.isWaiting) {
        this.isWaiting = true;
        requestAnimationFrame(() => {
          this.isWaiting = false;
          this.draw();
        });
      }
    }

    draw() {
      const context = this.canvas.getContext("2d");
      const ratio = window.devicePixelRatio || 1;
      const top = this.scroller.scrollTop;
      const height = this.scroller.clientHeight;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, this.canvas.width, this.canvas.height);
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      const end = this.isUp ? Math.max(this.rows.length * ROW, height) : 0;
      this.end = end;
      const near = this.isUp ? end - top - height : top;
      const first = Math.max(0, Math.floor(near / ROW));
      const last = Math.min(this.rows.length - 1, Math.ceil((near + height) / ROW));
      const most = this.tree.before ? this.mostChange() : 0;
      for (let row = first; row <= last; row += 1) {
        for (const [node, x, width] of this.rows[row] ?? []) {
          const y = (this.isUp ? end - (row + 1) * ROW : row * ROW) - top;
          const known = node === 0 ? ["all", "", THREAD] : this.data.names[this.tree.keys[node]];
          const isHit = this.matches !== null && node !== 0 && this.matches[this.tree.keys[node]];
          context.globalAlpha = this.tree.depth[node] < this.tree.depth[this.focus] ? 0.55 : 1;
          if (isHit) {
            context.fillStyle = "#e54bd0";
          } else if (this.tree.before) {
            const { change, isSure } = this.change(node);
            context.fillStyle = changeColour(change, most, isSure);
          } else {
            context.fillStyle = colour(known[0], known[2]);
          }
          context.fillRect(x, y, Math.max(width - 0.5, 0.5), ROW - 1);
          if (node === this.selected) {
            context.lineWidth = 2;
            context.strokeStyle = "#0b57c2";
            context.strokeRect(x + 1, y + 1, Math.max(width - 2, 1), ROW - 3);
          }
          const letters = Math.floor((width - 6) / 6.3);
          if (letters > 1) {
            const said = known[0];
            context.fillStyle = "#16181c";
            const shown = said.length > letters ? `${said.slice(0, letters - 1)}…` : said;
            context.fillText(shown, x + 3, y + ROW / 2, width - 6);
          }
        }
      }
      context.globalAlpha = 1;
    }

    mostChange() {
      if (this.largest === undefined) {
        this.largest = 0;
        for (let node = 1; node < this.tree.parents.length; node += 1) {
          const { change, isSure } = this.change(node);
          this.largest = Math.max(this.largest, isSure ? Math.abs(change) : 0);
        }
      }
      return this.largest;
    }

    at(event) {
      const box = this.canvas.getBoundingClientRect();
      const y = event.clientY - box.top + this.scroller.scrollTop;
      const row = Math.floor((this.isUp ? this.end - y : y) / ROW);
      const x = event.clientX - box.left;
      for (const [node, from, width] of this.rows[row] ?? []) {
        if (x >= from && x < from + width) {
          return node;
        }
      }
      return null;
    }

    key(event) {
      const { parents, called, depth } = this.tree;
      const now = this.selected;
      const beside = (step) => {
        const row = this.rows[depth[now]] ?? [];
        const place = row.findIndex(([node]) => node === now);
        return row[place + step]?.[0] ?? now;
      };
      const moves = {
        [this.isUp ? "ArrowDown" : "ArrowUp"]: () => Math.max(0, parents[now]),
        [this.isUp ? "ArrowUp" : "ArrowDown"]: () => called[now]?.[0] ?? now,
        ArrowLeft: () => beside(-1),
        ArrowRight: () => beside(1),
        Home: () => 0,
      };
      if (event.key in moves) {
        const next = moves[event.key]();
        this.select(next);
        const y = this.isUp ? this.end - (depth[next] + 1) * ROW : depth[next] * ROW;
        const { scrollTop, clientHeight } = this.scroller;
        if (y < scrollTop || y + ROW > scrollTop + clientHeight) {
          this.scroller.scrollTop = y - clientHeight / 2;
        }
      } else if (event.key === "Enter" || event.key === " ") {
        this.zoom(now);
      } else if (event.key === "Escape" || event.key === "Backspace") {
        this.zoomOut();
      } else {
        return;
      }
      event.preventDefault();
    }

    search(words) {
      this.matches = words
        ? this.data.names.map(([name, image]) => `${name} ${image}`.toLowerCase().includes(words))
        : null;
      let weight = 0;
      if (this.matches !== null) {
        const { parents, keys, total } = this.tree;
        const covered = new Uint8Array(parents.length);
        for (let node = 1; node < parents.length; node += 1) {
          const isHit = this.matches[keys[node]];
          if (isHit && !covered[parents[node]]) {
            weight += total[node];
          }
          covered[node] = isHit || covered[parents[node]] ? 1 : 0;
        }
        const share = total[0] ? (100 * weight) / total[0] : 0;
        const noun = this.data.depths ? "" : " samples";
        this.status.textContent = `${weight.toLocaleString("en")}${noun} match, ${share.toFixed(1)} %`;
      }
      this.later();
    }
  }

  return Flame;
})();
