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

from pyrodrop.analysis.reports.runs import Run, read_figure
from pyrodrop.analysis.reports.style import BLUE, GREEN, GREY, RED, png, styled
from pyrodrop.files import whole

_BINS = 20
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .87rem; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap; }
th:first-child, td:first-child, td.text { text-align: left; } td.text { white-space: normal; }
td.text:not(:last-child) { min-width: 14rem; }
img { max-width: 100%; height: auto; } ul { list-style: none; padding: 0; }
pre { background: #f6f6f6; padding: .7rem; overflow-x: auto; font-size: .8rem; }
"""
_COLOURS = f".no {{ color: {RED}; }} .yes {{ color: {GREEN}; }} .no, .yes {{ font-weight: 600; }}\n"


def write_page(run: Run, path: str | Path) -> Path:
    """Write the report of a run atomically and return its path.

    Raises:
        FileNotFoundError: the folder of `path` does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the report must exist; got {path.parent}")
    name = run.folder.resolve().name
    parts = [f"<h1>{escape(name)}</h1>"]
    if run.figures:
        parts.append("<h2>Figures</h2>")
        parts += [picture(read_figure(figure), figure.stem) for figure in run.figures]
    calibration = run.by_observation("pit") if "models" in run.results else {}
    if calibration:
        parts.append("<h2>Calibration on held-out observations</h2>")
        parts.append(
            "<p>Probability integral transform of every observation: uniform if the prediction is calibrated.</p>"
        )
        parts.append(picture(png(_histograms(calibration)), "PIT histograms"))
    for key, value in run.results.items():
        parts.append(f"<h2>{escape(key.replace('_', ' '))}</h2>{shown(value)}")
    with whole(path) as part:
        part.write_text(document(name, parts), encoding="utf-8")
    return path


def document(title: str, parts: Sequence[str]) -> str:
    """A whole HTML page of these parts, with the style of all reports."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}{_COLOURS}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def shown(value: Any) -> str:
    """HTML of a value: a mapping as a table or a list of facts, anything else as JSON."""
    if isinstance(value, Mapping) and value:
        inner = list(value.values())
        if all(isinstance(row, bool) for row in inner):
            items = (f'<li class="{_word(holds)}">{_word(holds)}: {escape(fact)}</li>' for fact, holds in value.items())
            return f"<ul>{''.join(items)}</ul>"
        if all(isinstance(row, Mapping) and row and not any(map(_nested, row.values())) for row in inner):
            columns = list(dict.fromkeys(column for row in inner for column in row))
            head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in ["", *columns])
            body = "".join(_row(name, [row.get(column) for column in columns]) for name, row in value.items())
            return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
        plain = {name: row for name, row in value.items() if not _nested(row)}
        table = "".join(_row(name, [row]) for name, row in plain.items())
        rest = "".join(
            f"<h3>{escape(str(name).replace('_', ' '))}</h3>{shown(row)}"
            for name, row in value.items()
            if name not in plain
        )
        return (f'<div class="wide"><table>{table}</table></div>' if table else "") + rest
    return f"<pre>{escape(json.dumps(value, indent=1))}</pre>"


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping | list)


def _row(name: Any, values: list[Any]) -> str:
    return f"<tr><td>{escape(str(name))}</td>{''.join(_cell(value) for value in values)}</tr>"


def _cell(value: Any) -> str:
    if value is None:
        return "<td>-</td>"
    if isinstance(value, bool):
        return f"<td>{_word(value)}</td>"
    if isinstance(value, float):
        return f"<td>{value:.4g}</td>"
    return f"<td>{value}</td>" if isinstance(value, int) else f'<td class="text">{escape(str(value))}</td>'


def _word(holds: bool) -> str:
    return "yes" if holds else "no"


def picture(content: bytes, name: str) -> str:
    """HTML of a PNG picture."""
    return f'<p><img alt="{escape(name)}" src="data:image/png;base64,{base64.b64encode(content).decode()}"></p>'


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
