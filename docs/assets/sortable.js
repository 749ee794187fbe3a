// Tables inside of <div class="sortable"> are sorted by a click on a heading, and filtered by what is typed above them.

function sortKey(cell) {
  // What a cell is sorted by: its first number, with k and M as factors, or else its text. Empty cells come last.
  const text = cell.textContent.trim();
  const found = text.replaceAll(",", "").match(/^[+-]?\d+(\.\d+)?([kM]?)/);
  if (!found) return text;
  const factor = { k: 1e3, M: 1e6 }[found[2]] || 1;
  return parseFloat(found[0]) * factor;
}

function compareKeys(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b);
}

function sortBy(table, column, direction) {
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: sortKey(row.cells[column]) }));
  rows.sort((a, b) => {
    if (a.key === "" || b.key === "") return (a.key === "") - (b.key === "");
    return direction * compareKeys(a.key, b.key);
  });
  table.tBodies[0].append(...rows.map(({ row }) => row));
}

function addHeadings(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      sortBy(table, column, ascending ? 1 : -1);
    });
  });
}

function addFilter(table, place) {
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Filter, e.g. jax level";
  field.setAttribute("aria-label", "Show only rows that have all these words");
  const count = document.createElement("span");
  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} rows`;
  };
  field.addEventListener("input", show);
  const line = document.createElement("p");
  line.append(field, count);
  place.prepend(line);
  show();
}

for (const place of document.querySelectorAll(".sortable")) {
  for (const table of place.querySelectorAll("table")) {
    addHeadings(table);
    addFilter(table, place);
  }
}
