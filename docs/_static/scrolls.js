// What scrolls by itself can be reached with the keyboard, and only that. The parts beside the text have names.
const kinds = "pre, .table-wrapper, .cell_output .output, div.math";

function reach() {
  for (const box of document.querySelectorAll(kinds)) {
    if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

function name() {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
}

window.addEventListener("load", reach);
window.addEventListener("load", name);
window.addEventListener("resize", reach);
