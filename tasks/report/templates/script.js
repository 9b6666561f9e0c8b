"use strict";
(() => {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // a link opens what its target is folded in
  const arrive = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    const own = target.querySelector(":scope > details.fold");
    if (own) own.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", arrive);
  arrive();

  // rows are sorted by a click on a column's head, within their groups
  const valueOf = (row, place) => {
    const cell = row.cells[place], text = cell ? cell.textContent.trim() : "";
    const number = cell?.dataset.value ?? (cell?.classList.contains("n") ? text.replace("−", "-").match(/-?\d[\d.]*/)?.[0] : undefined);
    return number === undefined ? text : parseFloat(number);
  };
  for (const head of document.querySelectorAll("thead tr:last-child th")) {
    head.addEventListener("click", () => {
      const table = head.closest("table"), falling = head.getAttribute("aria-sort") !== "descending", items = [[]];
      for (const row of table.tBodies[0].rows) {
        if (row.matches(".group")) items.push(row, []);
        else items.at(-1).push(row);
      }
      const order = (a, b) => (falling ? 1 : -1) * (typeof a === "number" && typeof b === "number" ? b - a : String(a).localeCompare(String(b)));
      for (const group of items.filter(Array.isArray)) group.sort((a, b) => order(valueOf(a, head.cellIndex), valueOf(b, head.cellIndex)));
      table.tBodies[0].append(...items.flat());
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    });
  }
})();
