(() => {
  // Problems of a page that people with other eyes or hands would have.
  const problems = [];
  const name = (node) => node.tagName.toLowerCase() + (node.className && node.className.baseVal === undefined ? "." + node.className : "") + " " + (node.textContent || "").trim().slice(0, 30);
  const isShown = (node) => node.checkVisibility() && node.getClientRects().length > 0;
  const channels = (color) => {
    const numbers = color.match(/[\d.]+(e-?\d+)?/g).map(Number);
    const scale = color.startsWith("color(") ? 1 : 255;
    return [numbers[0] / scale, numbers[1] / scale, numbers[2] / scale, numbers.length > 3 ? numbers[3] : 1];
  };
  const background = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const own = channels(getComputedStyle(at).backgroundColor);
      if (own[3] > 0) layers.push(own);
      if (own[3] === 1) break;
    }
    let mixed = [1, 1, 1];
    for (const layer of layers.reverse()) mixed = mixed.map((value, at) => value * (1 - layer[3]) + layer[at] * layer[3]);
    return mixed;
  };
  const luminance = (color) => {
    const linear = color.slice(0, 3).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !isShown(node) || node.closest(".skip, option, svg")) continue;
    const [one, other] = [luminance(channels(getComputedStyle(node).color)), luminance(background(node))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) problems.push(`contrast ${contrast.toFixed(2)}: ${name(node)}`);
  }
  for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
    if (!field.labels.length) problems.push(`no label: ${name(field)}`);
  for (const control of document.querySelectorAll("a, button, summary"))
    if (!control.textContent.trim() && !control.getAttribute("aria-label")) problems.push(`no name: ${control.outerHTML.slice(0, 80)}`);
  for (const picture of document.querySelectorAll("svg"))
    if (picture.getAttribute("aria-hidden") !== "true" && !picture.getAttribute("aria-label")) problems.push("a picture without words");
  for (const cell of document.querySelectorAll("th"))
    if (!cell.getAttribute("scope")) problems.push(`no scope: ${name(cell)}`);
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const own = Number(heading.tagName[1]);
    if (own > level + 1) problems.push(`heading of level ${own} after ${level}: ${name(heading)}`);
    level = own;
  }
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  if (new Set(ids).size !== ids.length) problems.push("an id twice");
  if (document.documentElement.scrollWidth > window.innerWidth)
    problems.push(`wider than the window: ${document.documentElement.scrollWidth}`);
  return problems;
})()
