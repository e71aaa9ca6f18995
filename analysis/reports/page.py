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
from pyrodrop.analysis.reports.style import BLUE, GREEN, GREY, ORANGE, RED, png, styled
from pyrodrop.files import whole

_BINS = 20
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # loads nothing and runs nothing
_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ddd; --soft: #f6f6f6; --shadow: rgb(0 0 0 / .25); }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; max-width: 100%; background:
 linear-gradient(90deg, var(--paper) 2rem, transparent) local, linear-gradient(270deg, var(--paper) 2rem, transparent) local,
 linear-gradient(90deg, var(--shadow), transparent .8rem) scroll, linear-gradient(270deg, var(--shadow), transparent .8rem)
 scroll; background-repeat: no-repeat; }
.wide:focus-visible { outline: 2px solid var(--yes); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .87rem; overflow-wrap: normal; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, td.text { text-align: left; } td.text { white-space: normal; }
td.text:not(:last-child) { min-width: 14rem; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; } ul { list-style: none; padding: 0; }
pre { background: var(--soft); padding: .7rem; overflow-x: auto; font-size: .8rem; }
.no { color: var(--no); } .yes { color: var(--yes); } .no, .yes { font-weight: 600; }
"""
_DARK = "--ink: #e6edf3; --paper: #0d1117; --line: #30363d; --soft: #161b22; --shadow: rgb(255 255 255 / .3);"
_COLOURS = (
    f":root {{ --no: {RED}; --yes: {GREEN}; }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} --no: {ORANGE}; --yes: #3fb98f; }} }}\n"
)
_WIDE = '<div class="wide" tabindex="0" role="region" aria-label="table, which scrolls sideways where it is too wide">'
_EDGE = 0.05  # the outer parts of the PIT's range on either side, of which a picture's description tells the share


def write_page(run: Run, path: str | Path) -> Path:
    """Write the report of a run atomically and return its path.

    Raises:
        FileNotFoundError: the folder of `path` does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of the report must exist; got {path.parent}")
    name = run.folder.resolve().name
    models = run.models if "models" in run.results else {}
    parts = [f"<h1>{escape(name)}</h1>", f"<p>{escape(_said(run, models))}</p>"]
    if run.figures:
        parts.append("<h2>Figures</h2>")
        parts += [picture(read_figure(figure), _seen(figure.stem, models)) for figure in run.figures]
    calibration = run.by_observation("pit") if models else {}
    if calibration:
        parts.append("<h2>Calibration on held-out observations</h2>")
        parts.append(
            "<p>Probability integral transform of every observation: uniform if the prediction is calibrated.</p>"
        )
        parts.append(picture(png(_histograms(calibration)), _seen_pit(calibration)))
    for key, value in run.results.items():
        parts.append(f"<h2>{escape(key.replace('_', ' '))}</h2>{shown(value)}")
    with whole(path) as part:
        part.write_text(document(name, parts), encoding="utf-8")
    return path


def _said(run: Run, models: Mapping[str, Mapping[str, Any]]) -> str:
    """What was run, in a sentence or two."""
    settings = run.results.get("settings")
    plain = {k: v for k, v in settings.items() if isinstance(v, str | int)} if isinstance(settings, Mapping) else {}
    where = [f"{key} {plain[key]}" for key in ("preset", "seed", "steps", "device") if key in plain]
    versions = run.results.get("versions")
    if isinstance(versions, Mapping):
        where += [f"{key} {versions[key]}" for key in ("pyrodrop", "torch") if isinstance(versions.get(key), str)]
    what = f"{_counted(len(models), 'model')} of {run.data}" if models else "A run"
    return f"{what}{': ' + ', '.join(where) if where else ''}. {_best(models)}".strip()


def _best(models: Mapping[str, Mapping[str, Any]]) -> str:
    """Which models predict the held-out observations best and worst, in a sentence; empty if there are no scores."""
    densities = {name: row["log_density"] for name, row in models.items() if row.get("log_density") is not None}
    if len(densities) < 2:
        return "".join(f"Held-out log density of {name}: {value:.2f} nats." for name, value in densities.items())
    best, worst = max(densities, key=densities.__getitem__), min(densities, key=densities.__getitem__)
    return (
        f"The held-out log density per observation is highest for {best} ({densities[best]:.2f} nats) and lowest for "
        f"{worst} ({densities[worst]:.2f} nats)."
    )


def _seen(name: str, models: Mapping[str, Mapping[str, Any]]) -> str:
    """The description of a job's figure: what it is called, and what the results say of its models."""
    spreads = [
        f"{model}: sd {row['sd_last_train']:.2g} at the last training point and {row['sd_far']:.2g} far from the data"
        for model, row in models.items()
        if all(isinstance(row.get(key), int | float) for key in ("sd_last_train", "sd_far"))
    ]
    words = f"{name.replace('_', ' ')} of {', '.join(models)}" if models else name.replace("_", " ")
    return " ".join(filter(None, (f"{words}.", "; ".join(spreads) + "." if spreads else "", _best(models))))


def _seen_pit(values: Mapping[str, Any]) -> str:
    """The description of PIT histograms: how much of each is at the edges."""
    outer = (f"{name} {np.mean((each < _EDGE) | (each > 1 - _EDGE)):.0%}" for name, each in values.items())
    return (
        f"PIT histograms. Share of observations in the outer {2 * _EDGE:.0%} of the predictions, which is {2 * _EDGE:.0%} "
        f"if they are calibrated: {', '.join(outer)}."
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def document(title: str, parts: Sequence[str]) -> str:
    """A whole HTML page of these parts, with the style of all reports."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
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
            body = "".join(_row(n, [row.get(column) for column in columns], columns) for n, row in value.items())
            return f"{_WIDE}<table><tr>{head}</tr>{body}</table></div>"
        plain = {name: row for name, row in value.items() if not _nested(row)}
        table = "".join(_row(name, [row]) for name, row in plain.items())
        rest = "".join(
            f"<h3>{escape(str(name).replace('_', ' '))}</h3>{shown(row)}"
            for name, row in value.items()
            if name not in plain
        )
        return (f"{_WIDE}<table>{table}</table></div>" if table else "") + rest
    return f"<pre>{escape(json.dumps(value, indent=1))}</pre>"


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping | list)


def _row(name: Any, values: list[Any], columns: Sequence[str] = ()) -> str:
    forms = [".0%" if str(column).startswith("coverage_") else ".4g" for column in columns] or [".4g"] * len(values)
    cells = "".join(_cell(value, form) for value, form in zip(values, forms, strict=True))
    return f"<tr><td>{escape(str(name))}</td>{cells}</tr>"


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "<td>-</td>"
    if isinstance(value, bool):
        return f"<td>{_word(value)}</td>"
    if isinstance(value, float):
        return f"<td>{value:{form}}</td>"
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
