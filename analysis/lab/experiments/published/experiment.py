"""Published figures beside ours: which agree within two standard errors, and for each of the others, why not.

Nothing is trained: our numbers are the results in ``analysis/lab/results`` and ``analysis/reference``, and numbers that the
package computes directly. Figures without one, and those about data that are not on this machine, have the stored outcome of
``analysis/lab/results/published.csv``, which ``python -m pyrodrop.analysis.lab.experiments.published`` writes again.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pyrodrop import priors
from pyrodrop.analysis.lab import generated
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.lab.experiments.published.compare import outcome
from pyrodrop.analysis.lab.experiments.published_figures import PAPERS, Figure, figures
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.terminal import text_table

STATUSES = {
    "within": "within 2 s.e.", "outside": "outside", "equal": "equal", "unequal": "unequal", "compared": "no error",
    "missing": "missing",
}  # fmt: skip


@with_job_options()
def run(job: JobOptions, *, out: Path = Path("runs/published")) -> dict[str, Any]:
    """Print how many published figures agree with ours, by paper, and for all others why not.

    Args:
        out: folder for results.json, which has every outcome, and published.md.

    Returns:
        What is written to results.json.
    """
    with Experiment.begin("published", out, job, {}) as experiment:
        rows = compare()
        (experiment.folder / "published.md").write_text(page(rows), encoding="utf-8")
        shown = {"published figures beside ours": _tally_rows(rows), "without a number of ours": _missing(rows)}
        tables = [text_table(title, cells) for title, cells in shown.items()]
        print(f"every figure: {experiment.folder / 'published.md'}")
        return experiment.write(
            {"tally": tally(rows), "outcomes": [asdict(figure.outcome) for figure in rows]}, *tables
        )


def compare() -> list[Figure]:
    """Every figure with its outcome."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", priors.ImproperPrior)
        return [_compared(figure) for figure in figures()]


def _compared(figure: Figure) -> Figure:
    try:
        return replace(figure, outcome=outcome(figure) or figure.outcome)
    except FileNotFoundError:
        return figure


def text() -> str:
    """The section of ``analysis/lab/results/README.md``, from the stored outcomes."""
    return page(figures())


def tally(rows: Sequence[Figure]) -> dict[str, dict[str, int]]:
    """Numbers of published figures by outcome, for each paper and for all. Outcomes of repeated figures count only once."""
    published = [figure for figure in rows if figure.published]
    counts = {paper: _count([figure for figure in published if figure.paper == paper]) for paper in PAPERS}
    return {**{paper: row for paper, row in counts.items() if row["figures"]}, "all": _count(published)}


def _count(rows: Sequence[Figure]) -> dict[str, int]:
    counted, zoo = _counted(rows), sum(not figure.foreign for figure in rows)
    numbers = {"figures": len(rows), "of this zoo": zoo, "repeated": zoo - len(counted)}
    numbers["with an error"] = sum(figure.error is not None for figure in counted)
    by_status = Counter(figure.outcome.status for figure in counted)
    return numbers | {title: by_status[status] for status, title in STATUSES.items()}  # type: ignore[index]


def _counted(rows: Sequence[Figure]) -> list[Figure]:
    """The published figures of methods of this zoo, each once."""
    return [figure for figure in rows if figure.published and not (figure.foreign or figure.repeated)]


def _tally_rows(rows: Sequence[Figure]) -> list[list[str]]:
    counts = tally(rows)
    return [["paper", *counts["all"]]] + [[PAPERS.get(p, "all"), *map(str, row.values())] for p, row in counts.items()]


def _missing(rows: Sequence[Figure]) -> list[list[str]]:
    """The reasons of figures without a number of ours, with their numbers of figures."""
    gone = Counter((f.paper, f.outcome.reason) for f in _counted(rows) if f.outcome.status == "missing")
    return [["figures", "paper", "why"], *([str(count), PAPERS[paper], why] for (paper, why), count in gone.items())]


def page(rows: Sequence[Figure]) -> str:
    """Tally, figures that do not agree, and reasons for those that are missing, in Markdown."""
    apart = [["paper", "figure", "published", "ours", "z", "why, or how far"]]
    for figure in rows:
        found = figure.outcome
        if found.status in ("outside", "unequal", "compared"):
            words = (figure.where.split(" (")[0], figure.data, figure.method, figure.metric.split(" (")[0])
            where, z = ", ".join(word for word in words if word != "-"), "" if found.z is None else f"{found.z:+.1f}"
            apart.append([PAPERS[figure.paper], where, _short(figure.value), _short(found.ours), z, found.reason])
    parts = [
        generated.table(_tally_rows(rows)),
        "Outside, unequal, or without a published error:",
        generated.table(apart),
        "Without a number of ours:",
        generated.table(_missing(rows)),
    ]
    return "\n\n".join(parts) + "\n"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(_short(each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(each)}" for name, each in value.items())
    return str(value)
