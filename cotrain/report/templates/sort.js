"use strict";
// Clicking a column heading sorts its table; unknown values stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    const keys = new Map([...table.tBodies[0].rows].map(row => [row, row.cells[column].dataset.value]));
    const compare = (one, other) => {
      const a = keys.get(one), b = keys.get(other);
      if (a === "" || b === "") return (a === "") - (b === "");
      const numbers = head.dataset.kind === "number";
      return sign * (numbers ? a - b : a.localeCompare(b, undefined, {numeric: true}));
    };
    table.tBodies[0].append(...[...keys.keys()].sort(compare));
  }));
}
