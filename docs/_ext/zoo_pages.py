"""The zoo: a page for each card, and an index of them. Written to ``zoo/`` at the start of a build.

The facts and numbers are those of ``pyrodrop show NAME``. The index is a table, which ``_static/zoo.js`` gives filters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generated import Folder
from sphinx.application import Sphinx
from zoo_figures import Figures, figures

from pyrodrop import guides, zoo
from pyrodrop.analysis.reports.score_table import cell
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.card import FORMS, facts
from pyrodrop.analysis.zoo.card import scores as card_scores
from pyrodrop.zoo import Entry, trained

HEADS = ("Entry", "For", "Data set", "Posterior", "Network", "Published", "Ours", "Loads")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages when a build starts; the index alone loads the filters."""
    app.connect("builder-inited", write)
    app.connect("html-page-context", _filters)
    return {"parallel_read_safe": True}


def _filters(app: Sphinx, pagename: str, *_: object) -> None:
    if pagename == "zoo/index":
        app.add_js_file("zoo.js")


def write(app: Sphinx) -> None:
    """Write ``zoo/index.md``, and a page and figures per entry."""
    with Folder(Path(app.srcdir) / "zoo") as folder:
        folder.write("index.md", index())
        for entry in zoo.ENTRIES.values():
            drawn = figures(entry)
            for end, content in drawn.files.items() if drawn else ():
                folder.write(f"{entry.name}{end}", content)
            folder.write(f"{entry.name}.md", card(entry, drawn))


def card(entry: Entry, drawn: Figures | None) -> str:
    """The page of an entry."""
    reference = reference_of(entry)
    lines = [f"# {entry.name}", "", f"{entry.summary}.", ""]
    lines += ["```{list-table}", ":widths: 16 84", ":class: facts", ""]
    for title, text in facts(entry, reference["recipe"] if reference else None, reference):
        lines += [f"* - {title}", f"  - {plain(text)}"]
    lines += ["```", "", "## Scores", "", *scores(entry, reference), ""]
    if drawn:
        stem = entry.name.rpartition("/")[2]
        for end in drawn.files:
            theme = Path(end).stem.removeprefix("-")
            lines += [f"```{{image}} {stem}{end}", f":alt: {drawn.description}", f":class: only-{theme}", "```", ""]
        lines += [drawn.description, ""]
    lines += ["## Run it", "", "```bash", f"pyrodrop show {entry.name}     # this card"]
    lines += [f"pyrodrop run {entry.name}      # as published", "```", "", "```python", "from pyrodrop import zoo", ""]
    lines += [f'entry = zoo.entry("{entry.name}")', "model, guide = entry.build(train)  # a Dataset"]
    if trained.file(entry.name):
        lines.append(f'posterior = zoo.load("{entry.name}")  # trained, predicts without the data')
    lines += ["```", ""]
    return "\n".join(lines)


def scores(entry: Entry, reference: Mapping[str, Any] | None) -> list[str]:
    """Published scores and ours as a Markdown table."""
    rows = card_scores(entry, reference["result"] if reference else None)
    if not rows:
        return ["Neither the source nor a full run of ours gives scores."]
    return table({f"`{name}`": row for name, row in rows.items()}, "score")


def table(rows: Mapping[str, Mapping[str, float | None]], corner: str) -> list[str]:
    """A Markdown table with a row per name."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [f"| {corner} | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    for name, row in rows.items():
        cells = [cell(row.get(column), FORMS.get(column, ".4g")) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def index() -> str:
    """A table of all entries."""
    lines = [
        "# Zoo",
        "",
        "Models and posteriors by name: published ones, each with its data, training and published results, and others by "
        "the kind of data that one takes them for.",
        "",
    ]
    lines += ["```{list-table}", ":header-rows: 1", ":class: zoo", ""]
    lines += [f"{'  ' if number else '* '}- {head}" for number, head in enumerate(HEADS)]
    for entry in zoo.ENTRIES.values():
        cells = row(entry)
        lines += [f"* - {cells[0]}", *(f"  - {cell}" for cell in cells[1:])]
    lines += [
        "```",
        "",
        "The first score of each card is shown; ± is one standard error over the splits of the data. Where nobody "
        "published a score, *Published* says which work an entry is made after. What *loads* is trained, and `zoo.load` "
        "has it at once.",
        "",
    ]
    lines += ["```{toctree}", ":hidden:", "", *zoo.ENTRIES, "```", ""]
    return "\n".join(lines)


def row(entry: Entry) -> list[str]:
    """The cells of an entry, none of which is empty."""
    reference, posterior = reference_of(entry), guide_class(entry)
    result = reference["result"] if reference else None
    network = reference["recipe"]["network"].partition("(")[0] if reference else "not built yet"
    ours, errors = result_of(reference)
    score = next(iter([*entry.published, *ours]), "")
    spread = f" ± {errors[score]:.2g}" if score in errors else ""
    shown = f"`{score}` {number(ours[score])}{spread}" if score in ours else plain(str(result or "").partition(":")[0])
    job = references.of_sparse(entry.name)
    if job and score == "error_percent" and score not in ours:
        error, epochs = 100 * job["result"]["error"], job["settings"]["epochs"]
        shown = f"`{score}` {number(error)} (pyrodrop run sparse, {epochs} epochs)"
    return [
        f"[{entry.name}]({entry.name}.md)",
        plain(entry.purpose) or "own",
        entry.data,
        posterior.__name__ if posterior else "own",
        network,
        _published(entry, score) if score in entry.published else plain(_work(entry.source)),
        shown or "not run yet",
        "yes" if trained.file(entry.name) else "no",
    ]


def _work(source: str) -> str:
    """Authors and year of a source, whose title and figures are on the card."""
    return source[: match.end()] if (match := re.match(r".*?\(\d{4}\)", source)) else source


def _published(entry: Entry, score: str) -> str:
    """A published score, with how it is known if it is not printed."""
    known = "" if entry.published_as == "published" else f" ({entry.published_as})"
    return f"`{score}` {number(entry.published[score])}{known}"


def reference_of(entry: Entry) -> dict[str, Any] | None:
    """The reference of an entry, if it has one."""
    return references.load(entry.name) if references.file(entry.name).is_file() else None


def result_of(reference: Mapping[str, Any] | None) -> tuple[dict[str, float], dict[str, float]]:
    """Scores of the full run and their standard errors; empty if there was none."""
    result = reference["result"] if reference else None
    return (result["scores"], result["standard_errors"]) if isinstance(result, dict) else ({}, {})


def number(value: float | None, digits: int = 4) -> str:
    """A number as in the terminal, or a dash."""
    return "-" if value is None else f"{value:.{digits}g}"


def plain(text: str) -> str:
    """Text that Markdown shows as it is, with commands as code."""
    escaped = "".join(f"\\{letter}" if letter in "*_`[]<>|\\$#" else letter for letter in text)
    return re.sub(r"\bpyrodrop run [^);:,]*[^);:, ]", lambda command: f"`{command[0]}`", escaped)


def guide_class(entry: Entry) -> type | None:
    """The public class of an entry's guide; None if it is neither one of `pyrodrop.guides` nor a partial of one."""
    made: Any = getattr(entry.guide, "func", entry.guide)
    return made if isinstance(made, type) and getattr(guides, made.__name__, None) is made else None
