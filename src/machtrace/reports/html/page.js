"use strict";
(() => {
  const flames = [];

  /* A graph is made when it comes into sight: a page may have thousands of reports. */
  const coming = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        coming.unobserve(entry.target);
        const flame = new MachtraceFlame(entry.target);
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
