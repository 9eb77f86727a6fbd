"use strict";
// Make tables sortable by mouse and keyboard. Without this script they are plain tables.
const collator = new Intl.Collator(undefined, { numeric: true });

function sortValue(row, column, numeric) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (!numeric) return text;
  // A dot in a table of numbers is a zero. Thousands have commas.
  const number = text === "" ? NaN : text === "·" ? 0 : Number(text.replaceAll(",", ""));
  return Number.isNaN(number) ? null : number;
}

function sortBy(table, column, header) {
  const numeric = header.dataset.sort === "number";
  const previous = header.getAttribute("aria-sort");
  const first = numeric ? "descending" : "ascending";
  const other = numeric ? "ascending" : "descending";
  const direction = previous === first ? other : first;
  const sign = direction === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [sortValue(row, column, numeric), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // missing values come last
    return sign * (numeric ? a - b : collator.compare(a, b));
  });
  for (const [, row] of rows) body.append(row);
  for (const sorted of table.tHead.querySelectorAll("[aria-sort]")) sorted.removeAttribute("aria-sort");
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

// Give every folded list of clients a search field. Without this script, the browser's own search works.
for (const details of document.querySelectorAll("details.rest")) {
  const entries = [...details.querySelectorAll("li, tbody tr")];
  if (!entries.length) continue;
  const input = document.createElement("input");
  input.type = "search";
  input.className = "search";
  input.placeholder = "Search clients";
  input.setAttribute("aria-label", "Search clients: " + details.firstElementChild.textContent);
  const count = document.createElement("p");
  count.className = "search-count";
  count.setAttribute("role", "status");
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    let shown = 0;
    for (const entry of entries) {
      entry.hidden = !entry.textContent.toLowerCase().includes(wanted);
      shown += !entry.hidden;
    }
    count.textContent = wanted ? `${shown} of ${entries.length}` : "";
  });
  details.firstElementChild.after(input, count);
}

// Open details for printing, and close them again afterwards. Lists of many clients stay as the reader left them.
const openedDetails = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open], .rest)")) {
    details.open = true;
    openedDetails.push(details);
  }
});
addEventListener("afterprint", () => {
  for (const details of openedDetails.splice(0)) details.open = false;
});
