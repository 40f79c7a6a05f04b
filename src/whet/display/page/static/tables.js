// Tables whose heads are buttons are sorted by a click on one; rows without a value stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", turn === 1 ? "ascending" : "descending");
    const key = ({ cells: { [column]: { dataset, textContent } } }) =>
      dataset.value === undefined ? textContent : dataset.value === "" ? null : Number(dataset.value);
    const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
    rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null)
      : turn * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }));
}
