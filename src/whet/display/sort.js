// A click on a column's head sorts the table by it; another turns the order round. Rows without a value stay last.
"use strict";
for (const table of document.querySelectorAll("table.tasks")) {
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const value = row.cells[column].dataset.value;
    return value === undefined ? row.cells[column].textContent : value === "" ? null : Number(value);
  };
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", turn === 1 ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((one, other) => {
      const [a, b] = [key(one, column), key(other, column)];
      if (a === null || b === null) return (a === null) - (b === null);
      return turn * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    });
    table.tBodies[0].append(...rows);
  }));
}
