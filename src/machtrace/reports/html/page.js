"use strict";
(() => {
  const ROW = 18;
  const NARROWEST = 0.4;
  const THREAD = 3;
  const HUES = [[24, 85, 66], [212, 38, 76], [150, 14, 74], [0, 0, 84]];

  const flames = [];

  function colour(name, kind) {
    let hash = 7;
    for (let at = 0; at < name.length && at < 64; at += 1) {
      hash = (hash * 31 + name.charCodeAt(at)) | 0;
    }
    const [hue, saturation, light] = HUES[kind];
    return `hsl(${hue + (hash & 15) - 8} ${saturation}% ${light + ((hash >> 4) & 7) - 3}%)`;
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
    const total = own.slice();
    const depth = new Array(parents.length).fill(0);
    const called = parents.map(() => null);
    let deepest = 0;
    for (let node = parents.length - 1; node > 0; node -= 1) {
      total[parents[node]] += total[node];
    }
    for (let node = 1; node < parents.length; node += 1) {
      depth[node] = depth[parents[node]] + 1;
      deepest = Math.max(deepest, depth[node]);
      (called[parents[node]] ??= []).push(node);
    }
    for (const children of called) {
      children?.sort((one, other) => total[other] - total[one] || one - other);
    }
    return { parents, keys, own, total, depth, called, deepest };
  }

  class Flame {
    constructor(host) {
      this.data = JSON.parse(host.querySelector("script").textContent);
      this.scroller = host.querySelector(".scroller");
      this.spacer = host.querySelector(".spacer");
      this.canvas = host.querySelector("canvas");
      this.status = host.querySelector(".status");
      this.mode = host.querySelector(".mode");
      this.matches = null;
      this.mode.addEventListener("change", () => this.load());
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
      this.tree = treeOf(this.data, this.mode.value);
      this.selected = 0;
      this.zoom(0);
    }

    name(node) {
      return node === 0 ? "all" : this.data.names[this.tree.keys[node]][0];
    }

    describe(node) {
      const { total, own } = this.tree;
      const share = total[0] ? (100 * total[node]) / total[0] : 0;
      const image = node === 0 ? "" : this.data.names[this.tree.keys[node]][1];
      const where = image ? ` (${image})` : "";
      return `${this.name(node)}${where}: ${total[node]} samples, ${share.toFixed(1)} %, ${own[node]} own`;
    }

    zoom(node) {
      this.focus = node;
      this.layOut();
      const top = Math.max(0, this.tree.depth[node] - 2) * ROW;
      this.scroller.scrollTop = node === 0 ? 0 : top;
      this.select(node);
    }

    zoomOut() {
      this.zoom(this.focus === 0 ? 0 : this.tree.parents[this.focus]);
    }

    select(node) {
      this.selected = node;
      this.status.textContent = this.describe(node);
      this.later();
    }

    /* Boxes by row: [node, x, width], in pixels, of what is wide enough to see. */
    layOut() {
      const { parents, total, depth, called, deepest } = this.tree;
      const width = this.scroller.clientWidth;
      this.rows = [];
      for (let node = this.focus; node >= 0; node = parents[node]) {
        (this.rows[depth[node]] ??= []).push([node, 0, width]);
      }
      const scale = total[this.focus] ? width / total[this.focus] : 0;
      const waiting = [[this.focus, 0]];
      while (waiting.length) {
        const [node, from] = waiting.pop();
        let x = from;
        for (const child of called[node] ?? []) {
          const wide = total[child] * scale;
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
      const first = Math.floor(top / ROW);
      const last = Math.min(this.rows.length - 1, Math.ceil((top + height) / ROW));
      for (let row = first; row <= last; row += 1) {
        for (const [node, x, width] of this.rows[row] ?? []) {
          const y = row * ROW - top;
          const known = node === 0 ? ["all", "", THREAD] : this.data.names[this.tree.keys[node]];
          const isHit = this.matches !== null && node !== 0 && this.matches[this.tree.keys[node]];
          context.globalAlpha = this.tree.depth[node] < this.tree.depth[this.focus] ? 0.55 : 1;
          context.fillStyle = isHit ? "#e54bd0" : colour(known[0], known[2]);
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

    at(event) {
      const box = this.canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top + this.scroller.scrollTop) / ROW);
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
        ArrowUp: () => Math.max(0, parents[now]),
        ArrowDown: () => called[now]?.[0] ?? now,
        ArrowLeft: () => beside(-1),
        ArrowRight: () => beside(1),
        Home: () => 0,
      };
      if (event.key in moves) {
        const next = moves[event.key]();
        this.select(next);
        const y = depth[next] * ROW;
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
        this.status.textContent = `${weight} samples match, ${share.toFixed(1)} %`;
      }
      this.later();
    }
  }

  /* A graph is made when it comes into sight: a page may have thousands of reports. */
  const coming = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        coming.unobserve(entry.target);
        const flame = new Flame(entry.target);
        flames.push(flame);
        flame.search(search.value.trim().toLowerCase());
      }
    }
  }, { rootMargin: "200px" });

  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const rows = [...document.querySelectorAll(".f, tr.image")];
  const texts = [];
  let timer = 0;

  function textOf(at) {
    if (texts[at] === undefined) {
      const folder = rows[at].querySelector("cite")?.dataset.in ?? "";
      texts[at] = `${rows[at].textContent} ${folder}`.toLowerCase();
    }
    return texts[at];
  }

  function find() {
    const words = search.value.trim().toLowerCase();
    let count = 0;
    for (const [at, row] of rows.entries()) {
      const isHit = words !== "" && textOf(at).includes(words);
      row.classList.toggle("hit", isHit);
      if (isHit) {
        count += 1;
        if (count <= 2000) {
          for (let up = row.parentElement.closest("details"); up !== null; up = up.parentElement.closest("details")) {
            up.open = true;
          }
        }
      }
    }
    for (const thread of document.querySelectorAll("details.thread")) {
      thread.classList.toggle("missed", words !== "" && thread.querySelector(".hit") === null);
    }
    found.textContent = words === "" ? "" : `${count} rows`;
    for (const flame of flames) {
      flame.search(words);
    }
  }

  document.addEventListener("mouseover", (event) => {
    const place = event.target.closest?.("cite");
    if (place && !place.title) {
      place.title = place.dataset.in + place.textContent;
    }
  });
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(find, 150);
  });
  document.getElementById("app-only").addEventListener("change", (event) => {
    document.body.classList.toggle("app-only", event.target.checked);
  });
  const openAll = (isOpen) => {
    for (const one of document.querySelectorAll("details")) {
      one.open = isOpen;
    }
  };
  document.getElementById("open-all").addEventListener("click", () => openAll(true));
  document.getElementById("close-all").addEventListener("click", () => openAll(false));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      search.focus();
      event.preventDefault();
    }
  });
  window.addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details.thread, .run > details")) {
      one.open = true;
    }
  });
  const goToReport = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") {
      target.open = true;
    }
  };
  window.addEventListener("hashchange", goToReport);
  goToReport();
  for (const host of document.querySelectorAll(".flame")) {
    coming.observe(host);
  }
})();
