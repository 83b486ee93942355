"use strict";
(() => {
  const search = document.getElementById("search");
  const count = document.getElementById("count");
  const sureOnly = document.getElementById("sure-only");
  const rows = [...document.querySelectorAll("[data-site]")];
  const groups = [...document.querySelectorAll("details.cell, details.finding")];

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    document.body.classList.toggle("sure-only", sureOnly.checked);
    let shown = 0;
    const isCounted = (row) => !row.hidden && !(sureOnly.checked && row.closest(".possible"));
    for (const row of rows) {
      const group = row.closest("details.cell, details.finding");
      const heading = group && words.length > 0 ? group.firstElementChild.textContent : "";
      const text = `${heading} ${row.textContent}`.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (isCounted(row)) shown += 1;
    }
    for (const group of groups) {
      const own = group.querySelectorAll("[data-site]");
      const summary = group.firstElementChild.textContent.toLowerCase();
      const isNamed = words.every((word) => summary.includes(word));
      const isVisible = [...own].some(isCounted);
      group.hidden = words.length > 0 || sureOnly.checked ? !(isVisible || (isNamed && own.length === 0)) : false;
    }
    count.textContent = words.length || sureOnly.checked ? `${shown} of ${rows.length} rows` : "";
  };

  const openTarget = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target instanceof HTMLDetailsElement) target.open = true;
    target.scrollIntoView({ block: "start" });
    const summary = target.querySelector("summary");
    if (summary) summary.focus({ preventScroll: true });
  };

  const move = (event) => {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    const cell = event.target.closest?.(".matrix td");
    if (!step || !cell) return;
    event.preventDefault();
    const table = cell.closest("table");
    let row = cell.parentElement.rowIndex;
    let column = cell.cellIndex;
    for (;;) {
      row += step[0];
      column += step[1];
      const next = table.rows[row]?.cells[column];
      if (!next || next.tagName !== "TD") return;
      const link = next.querySelector("a");
      if (link) return link.focus();
    }
  };

  search.addEventListener("input", filter);
  sureOnly.addEventListener("change", filter);
  window.addEventListener("hashchange", openTarget);
  document.addEventListener("click", (event) => {
    // A link to the cell that is in the address already changes no hash.
    if (event.target.closest?.(".matrix a")?.hash === location.hash) openTarget();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== search) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape" && document.activeElement === search) {
      search.value = "";
      filter();
    } else {
      move(event);
    }
  });
  openTarget();
})();
