// Filters and sorting for the zoo's table. Without this script the table is whole.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.zoo");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const bar = document.createElement("form");
  bar.className = "zoo-filters";
  const choices = ["For", "Data set", "Posterior", "Network", "Loads"].map((name) => {
    const column = heads.indexOf(name);
    const label = document.createElement("label");
    const select = document.createElement("select");
    const values = [...new Set(rows.map((row) => row.cells[column].textContent.trim()))].sort();
    select.add(new Option("all", ""));
    values.forEach((value) => select.add(new Option(value, value)));
    label.append(name, select);
    bar.append(label);
    return { column, select };
  });
  const count = document.createElement("output");
  bar.append(count);
  const filter = () => {
    const shown = rows.filter((row) => {
      row.hidden = choices.some(({ column, select }) => select.value && row.cells[column].textContent.trim() !== select.value);
      return !row.hidden;
    });
    count.textContent = `${shown.length} of ${rows.length} entries`;
  };
  bar.addEventListener("change", filter);
  bar.addEventListener("submit", (event) => event.preventDefault());
  const key = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = text.match(/^[a-z_]+ (-?[\d.]+(?:e-?\d+)?)/);
    return number ? [text.split(" ")[0], Number(number[1])] : [text, 0];
  };
  const compare = ([a, x], [b, y]) => a.localeCompare(b) || x - y;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      [...table.tHead.rows[0].cells].forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => compare(key(a, column), key(b, column)) * (down ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
  (table.closest(".table-wrapper") || table).before(bar);
  filter();
});
