"""The style of pages: light and dark, and tables that scroll in a box of their own and show that they do."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --line: #ddd; --soft: #f5f5f5; --shade: rgba(0, 0, 0, .22);
  --yes: #00795a; --no: #b84a00; --link: #0063a0; --quiet: #666; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #16181d; --line: #3a3f47; --soft: #22262d;
  --shade: rgba(0, 0, 0, .8); --yes: #3ecf9f; --no: #ff9c5a; --link: #7cc4ff; --quiet: #a0a6ad; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
a { color: var(--link); } h1 { font-size: 1.6rem; }
h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; max-width: 100%; width: fit-content; border: 1px solid var(--line); border-radius: 4px;
  background: linear-gradient(to right, var(--page) 40%, transparent) left / 3rem 100% no-repeat local,
    linear-gradient(to left, var(--page) 40%, transparent) right / 3rem 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) left / .9rem 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) right / .9rem 100% no-repeat scroll; }
.wide:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .87rem; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child, td.text { text-align: left; } td.text { white-space: normal; }
td.text:not(:last-child) { min-width: 14rem; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; } figure { margin: 1rem 0; }
figcaption { color: var(--quiet); font-size: .87rem; max-width: 60rem; }
ul { list-style: none; padding: 0; } .no { color: var(--no); } .yes { color: var(--yes); } .no, .yes { font-weight: 600; }
pre { background: var(--soft); padding: .7rem; overflow-x: auto; font-size: .8rem; }
"""
