"use strict";
/* Flame graphs of pages: searching, and links of what is selected. */
(() => {
  const key = /^(INPUT|SELECT|TEXTAREA)$/;
  const hosts = [...document.querySelectorAll(".flame")];
  for (const host of hosts) {
    const search = host.querySelector(".search");
    const actions = host.querySelector(".actions");
    const links = ["function", "through"].map((name) => [name, actions.querySelector(`.${name}`)]);
    host.addEventListener("selected", ({ detail: { name, image } }) => {
      actions.hidden = name === "" || name.endsWith("…");
      for (const [kind, link] of links) {
        const base = host.dataset[kind];
        const query = new URLSearchParams(base.split("?")[1] ?? "");
        query.set(kind === "function" ? "name" : "function", name);
        query.set("image", image);
        link.href = `${base.split("?")[0]}?${query}`;
      }
    });
    host.hidden = false;
    const flame = new MachtraceFlame(host);
    /* A small graph needs less room. */
    const whole = Math.max((flame.tree.deepest + 1) * 18 + 2, 74);
    if (whole < flame.scroller.clientHeight) {
      flame.scroller.style.height = `${whole}px`;
    }
    let timer = 0;
    search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        const words = search.value.trim().toLowerCase();
        flame.search(words);
        if (words === "") {
          flame.select(flame.selected);
        }
      }, 150);
    });
    search.addEventListener("keydown", (event) => {
      if (event.key === "Escape" || event.key === "Enter") {
        if (event.key === "Escape") {
          search.value = "";
          flame.search("");
        }
        flame.canvas.focus();
        event.preventDefault();
      }
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !key.test(event.target.tagName) && hosts.length > 0) {
      hosts[0].querySelector(".search").focus();
      event.preventDefault();
    }
  });
})();
