"""Report of a run as a self-contained HTML page with its tables and figures."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pyrodrop.analysis.reports.runs import FORMS, Run, read_figure
from pyrodrop.analysis.reports.style import BLUE, GREY, png, styled
from pyrodrop.files import whole

# A light and a dark theme; wide tables scroll in a box, whose shaded edges show that there is more.
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
_BINS = 20
_SETTINGS = ("preset", "data", "split", "device", "seed", "steps", "epochs")  # shown in the first line of a page
_REGION = "table, which scrolls sideways where it is too wide"
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # a page loads nothing and runs nothing


def write_page(run: Run, path: str | Path) -> Path:
    """Write the report of a run atomically and return its path.

    Raises:
        FileNotFoundError: the folder of `path` does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the report must exist; got {path.parent}")
    name = run.folder.resolve().name
    parts = [f"<h1>{escape(name)}</h1>", f"<p>{escape(_what_was_run(run))}</p>"]
    if run.figures:
        parts.append("<h2>Figures</h2>")
        parts += [picture(read_figure(figure), _alt(run, figure.stem)) for figure in run.figures]
    calibration = run.by_observation("pit") if "models" in run.results else {}
    if calibration:
        parts.append("<h2>Calibration on held-out observations</h2>")
        parts.append(
            "<p>Probability integral transform of every observation: uniform if the prediction is calibrated.</p>"
        )
        parts.append(picture(png(_histograms(calibration)), f"Histograms for {', '.join(calibration)}."))
    for key, value in run.results.items():
        parts.append(f"<h2>{escape(key.replace('_', ' '))}</h2>{shown(value)}")
    with whole(path) as file:
        file.write_text(document(name, parts), encoding="utf-8")
    return path


def _what_was_run(run: Run) -> str:
    """The job and its settings."""
    settings = run.results.get("settings")
    kept = settings if isinstance(settings, Mapping) else {}
    named = [f"{key} {kept[key]}" for key in _SETTINGS if isinstance(kept.get(key), str | int | float)]
    return f"{run.job or 'A run'}: {', '.join(named) or 'its settings are below'}."


def _alt(run: Run, name: str) -> str:
    """The alternative text of a figure: the job's sentence about it, if its results have one."""
    sentences = run.results.get("figures")
    sentence = sentences.get(name) if isinstance(sentences, Mapping) else None
    return sentence if isinstance(sentence, str) else f"A figure of this run: {name.replace('_', ' ')}"


def document(title: str, parts: Sequence[str]) -> str:
    """A whole HTML page of these parts, with the style of all reports."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def shown(value: Any) -> str:
    """HTML of a value: a mapping as a table or a list of facts, anything else as JSON."""
    if isinstance(value, Mapping) and value:
        inner = list(value.values())
        if all(isinstance(row, bool) for row in inner):
            items = (
                f'<li class="{_yes_no(holds)}">{_yes_no(holds)}: {escape(fact)}</li>' for fact, holds in value.items()
            )
            return f"<ul>{''.join(items)}</ul>"
        if all(isinstance(row, Mapping) and row and not any(map(_nested, row.values())) for row in inner):
            columns = list(dict.fromkeys(column for row in inner for column in row))
            head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in ["", *columns])
            body = "".join(_row(name, {column: row.get(column) for column in columns}) for name, row in value.items())
            return _wide(f"<tr>{head}</tr>{body}")
        plain = {name: row for name, row in value.items() if not _nested(row)}
        table = "".join(_row(name, {str(name): row}) for name, row in plain.items())
        rest = "".join(
            f"<h3>{escape(str(name).replace('_', ' '))}</h3>{shown(row)}"
            for name, row in value.items()
            if name not in plain
        )
        return (_wide(table) if table else "") + rest
    return f"<pre>{escape(json.dumps(value, indent=1))}</pre>"


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping | list)


def _wide(rows: str) -> str:
    """A table in a box that scrolls, also by keyboard."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{_REGION}"><table>{rows}</table></div>'


def _row(name: Any, values: Mapping[str, Any]) -> str:
    cells = "".join(_cell(value, FORMS.get(column)) for column, value in values.items())
    return f"<tr><td>{escape(str(name))}</td>{cells}</tr>"


def _cell(value: Any, form: str | None = None) -> str:
    """A cell of a table. `form` is the format in the terminal; here only formats of percentages apply."""
    if value is None:
        return "<td>-</td>"
    if isinstance(value, bool):
        return f"<td>{_yes_no(value)}</td>"
    if isinstance(value, float):
        if form and form.endswith("%"):
            return f"<td>{value:{form}}</td>"
        return f"<td>{value:,.0f}</td>" if 1e4 <= abs(value) < 1e9 else f"<td>{value:.4g}</td>"
    return f"<td>{value}</td>" if isinstance(value, int) else f'<td class="text">{escape(str(value))}</td>'


def _yes_no(holds: bool) -> str:
    return "yes" if holds else "no"


def picture(content: bytes, alt: str) -> str:
    """HTML of a PNG picture; `alt` describes it."""
    return f'<p><img alt="{escape(alt)}" src="data:image/png;base64,{base64.b64encode(content).decode()}"></p>'


@styled()
def _histograms(values: Mapping[str, Any]) -> Figure:
    """One histogram per model, with the pointwise 95 % band of a calibrated model's bars."""
    columns = min(4, len(values))
    rows = -(-len(values) // columns)
    figure = Figure(figsize=(3 * columns, 2.1 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for axes, (name, each) in zip(panels, values.items(), strict=False):
        count = each.size
        level, sd = 1.0, np.sqrt((1 - 1 / _BINS) * _BINS / count)
        axes.axhspan(max(level - 1.96 * sd, 0), level + 1.96 * sd, color=GREY, alpha=0.25, linewidth=0)
        heights, edges = np.histogram(each, bins=_BINS, range=(0, 1))
        axes.stairs(heights * _BINS / count, edges, fill=True, color=BLUE, alpha=0.7)
        axes.set_title(name, parse_math=False)
    for axes in panels[len(values) :]:
        axes.axis("off")
    figure.supylabel("density")
    return figure
