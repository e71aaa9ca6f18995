// What scrolls by itself can be reached with the keyboard, and only that.
const kinds = "pre, .table-wrapper, .cell_output .output, div.math";

function reach() {
  for (const box of document.querySelectorAll(kinds)) {
    if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

window.addEventListener("load", reach);
window.addEventListener("resize", reach);
