"use strict";
// Tables sort on click or by keyboard. Without this script they are plain tables.
const collator = new Intl.Collator(undefined, { numeric: true });

function valueOf(row, column, numeric) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (!numeric) return text;
  const number = text === "" ? NaN : Number(text);
  return Number.isNaN(number) ? null : number;
}

function sortBy(table, column, header) {
  const numeric = header.dataset.sort === "number";
  const before = header.getAttribute("aria-sort");
  const first = numeric ? "descending" : "ascending";
  const other = numeric ? "ascending" : "descending";
  const direction = before === first ? other : first;
  const sign = direction === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [valueOf(row, column, numeric), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what is missing comes last
    return sign * (numeric ? a - b : collator.compare(a, b));
  });
  for (const [, row] of rows) body.append(row);
  for (const each of table.tHead.querySelectorAll("[aria-sort]")) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction);
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const header of table.tHead.querySelectorAll("th[data-sort]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sortBy(table, header.cellIndex, header));
  }
}

// Paper cannot be unfolded.
const opened = [];
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details:not([open])")) {
    part.open = true;
    opened.push(part);
  }
});
addEventListener("afterprint", () => {
  for (const part of opened.splice(0)) part.open = false;
});
