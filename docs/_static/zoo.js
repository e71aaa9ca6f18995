// Filters for the zoo's table. Without this script the table is whole.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.zoo");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const bar = document.createElement("form");
  bar.className = "zoo-filters";
  const choices = ["Data set", "Posterior", "Network"].map((name) => {
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
  (table.closest(".table-wrapper") || table).before(bar);
  filter();
});
