/* The flame graph of an SVG file: hover, zoom by click or keyboard, search. */
"use strict";
(() => {
  const svg = document.documentElement;
  const width = Number(svg.dataset.width), pad = Number(svg.dataset.pad);
  const charWidth = 7.25, namespace = "http://www.w3.org/2000/svg";
  const status = document.getElementById("status"), out = document.getElementById("out");
  const matched = document.getElementById("matched"), find = document.getElementById("find");
  const frames = [...document.querySelectorAll("#frames > g")].map((group) => ({
    group, rect: group.querySelector("rect"), text: group.querySelector("text"),
    title: group.querySelector("title").textContent,
    name: group.dataset.name ?? group.querySelector("title").textContent.split("\n")[0],
    x: Number(group.dataset.x), w: Number(group.dataset.w), level: Number(group.dataset.level),
  }));
  const root = frames[0];
  let zoomed = root;

  function label(frame, left, size) {
    const room = Math.floor((size - 4) / charWidth);
    const name = room < 3 ? "" : frame.name.length <= room ? frame.name
      : frame.name.slice(0, room - 1) + "…";
    if (name && !frame.text) {
      frame.text = document.createElementNS(namespace, "text");
      frame.text.setAttribute("y", Number(frame.rect.getAttribute("y")) + 11.5);
      frame.group.append(frame.text);
    }
    if (frame.text) {
      frame.text.textContent = name;
      frame.text.setAttribute("x", left + 3);
    }
  }

  function zoom(target) {
    zoomed = target;
    const scale = width / target.w, end = target.x + target.w, slack = 1e-6;
    for (const frame of frames) {
      const isAncestor = frame.level < target.level
        && frame.x <= target.x + slack && frame.x + frame.w >= end - slack;
      const isInside = frame.level >= target.level
        && frame.x >= target.x - slack && frame.x + frame.w <= end + slack;
      frame.group.classList.toggle("hidden", !isAncestor && !isInside);
      frame.group.classList.toggle("above", isAncestor);
      if (!isAncestor && !isInside) {
        continue;
      }
      const left = isAncestor ? pad : pad + (frame.x - target.x) * scale;
      const size = isAncestor ? width : frame.w * scale;
      frame.rect.setAttribute("x", left);
      frame.rect.setAttribute("width", Math.max(size - 0.4, 0.1));
      label(frame, left, size);
    }
    out.classList.toggle("hidden", target === root);
  }

  function search(words) {
    const wanted = words.toLowerCase();
    const spans = [];
    for (const frame of frames) {
      const isHit = wanted !== "" && frame.name.toLowerCase().includes(wanted);
      frame.group.classList.toggle("hit", isHit);
      if (isHit) {
        spans.push([frame.x, frame.x + frame.w]);
      }
    }
    spans.sort((a, b) => a[0] - b[0]);
    let end = 0, total = 0;  // a function that calls itself counts once
    for (const [from, to] of spans) {
      total += Math.max(0, to - Math.max(from, end));
      end = Math.max(end, to);
    }
    matched.textContent = wanted === "" ? ""
      : `${spans.length} matched: ${(100 * total / root.w).toFixed(1)} %`;
    find.textContent = wanted === "" ? "Search" : "Clear search";
  }

  function ask() {
    if (matched.textContent) {
      search("");
      return;
    }
    const words = prompt("Part of a function's name");
    if (words !== null) {
      search(words);
    }
  }

  for (const frame of frames) {
    frame.group.setAttribute("tabindex", "0");
    frame.group.setAttribute("role", "button");
    const show = () => { status.textContent = frame.title.replace("\n", "  "); };
    frame.group.addEventListener("mouseenter", show);
    frame.group.addEventListener("focus", show);
    frame.group.addEventListener("click", () => zoom(frame));
  }
  out.addEventListener("click", () => zoom(root));
  find.addEventListener("click", ask);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && document.activeElement?.dataset?.x !== undefined) {
      zoom(frames.find((frame) => frame.group === document.activeElement));
    } else if (event.key === "Escape") {
      zoom(root);
      search("");
    } else if (event.key === "/" || (event.key === "f" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault();
      ask();
    }
  });
  svg.machtrace = { zoom: (number) => zoom(frames[number]), search, zoomed: () => zoomed.name };
})();
