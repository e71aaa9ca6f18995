"""Published figures beside ours: which agree within two standard errors, and for each of the others, why not.

Nothing is trained: our numbers are the results in ``analysis/lab/results`` and ``analysis/reference``, and numbers that the
package computes directly. If data are not on this machine, facts about them are taken from the stored outcome,
``analysis/lab/results/published-results.json``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from pyrodrop import priors
from pyrodrop.analysis.lab import RESULTS, generated
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.lab.experiments.published.compare import outcome
from pyrodrop.analysis.lab.experiments.published.outcome import Outcome
from pyrodrop.analysis.lab.experiments.published_figures import FOREIGN, PAPERS, Figure, figures
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.analysis.reports.terminal import paragraph, print_table, text_table
from pyrodrop.devices import processor

STORED = RESULTS / "published-results.json"
Row = tuple[Figure, Outcome]
_COLUMNS = (
    "figures",
    "of this zoo",
    "repeated",
    "with an error",
    "within 2 s.e.",
    "outside",
    "equal",
    "unequal",
    "no error",
    "missing",
)


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
        print_figures(rows)
        print(f"every figure: {experiment.folder / 'published.md'}")
        return experiment.write(results(rows))


def print_figures(rows: Sequence[Row]) -> None:
    """Print the tally, and the reasons of figures that do not agree."""
    print_table(text_table("published figures beside ours", _tally_rows(rows)))
    print()
    for line in _reasons(rows):
        paragraph(line)


def compare() -> list[Row]:
    """Every figure with its outcome; the stored outcome if its data are not on this machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", priors.ImproperPrior)
        return [(figure, _outcome(number, figure)) for number, figure in enumerate(figures())]


def _outcome(number: int, figure: Figure) -> Outcome:
    try:
        return outcome(figure)
    except FileNotFoundError:
        return stored()[number][1]


def stored() -> list[Row]:
    """The outcomes in ``analysis/lab/results/published-results.json``, in the order of the figures."""
    rows = read_record(STORED).content["outcomes"]
    reasons = [{"reason": FOREIGN.get(figure.method, "")} for figure in figures()]
    return [(figure, Outcome(**(why | row))) for figure, why, row in zip(figures(), reasons, rows, strict=True)]


def text() -> str:
    """The section of ``analysis/lab/results/README.md``, from the stored outcomes."""
    return page(stored())


def results(rows: Sequence[Row]) -> dict[str, Any]:
    """Everything as JSON."""
    return {
        "tally": tally(rows),
        "outcomes": [_brief(result) for _, result in rows],
        "date": f"{date.today()}",
        "versions": versions(),
        "machine": {"processor": processor()},
        "command": "pyrodrop run published",
    }


def _brief(result: Outcome) -> dict[str, Any]:
    """What differs from the defaults; the reason of a foreign figure is that of its method."""
    content = asdict(result) | ({"reason": ""} if result.status == "foreign" else {})
    return {name: value for name, value in content.items() if value not in (None, "")}


def tally(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Numbers of published figures by outcome, for each paper and for all. Outcomes of repeated figures count only once."""
    published = [row for row in rows if row[0].published]
    counts = {paper: _count([row for row in published if row[0].paper == paper]) for paper in PAPERS}
    return {**{paper: row for paper, row in counts.items() if row["figures"]}, "all": _count(published)}


def _tally_rows(rows: Sequence[Row]) -> list[list[str]]:
    return [["paper", *_COLUMNS]] + [
        [PAPERS.get(paper, "all"), *map(str, row.values())] for paper, row in tally(rows).items()
    ]


def _count(rows: Sequence[Row]) -> dict[str, int]:
    of_this_zoo, counted = [row for row in rows if not row[0].foreign], _counted(rows)
    by_status = Counter(result.status for _, result in counted)
    errors = sum(figure.error is not None for figure, _ in counted)
    numbers = (by_status[status] for status in ("within", "outside", "equal", "unequal", "compared", "missing"))
    return dict(
        zip(_COLUMNS, (len(rows), len(of_this_zoo), len(of_this_zoo) - len(counted), errors, *numbers), strict=True)
    )


def _counted(rows: Sequence[Row]) -> list[Row]:
    """The published figures of methods of this zoo, each once."""
    return [row for row in rows if row[0].published and not (row[0].foreign or row[0].repeated)]


def page(rows: Sequence[Row]) -> str:
    """Tally, figures that do not agree, and reasons for those that are missing, in Markdown."""
    apart = [
        [PAPERS[figure.paper], _where(figure), _short(figure.value), _short(result.ours), _z(result), result.reason]
        for figure, result in rows
        if result.status in ("outside", "unequal", "compared")
    ]
    gone = [[str(count), PAPERS[paper], reason] for (paper, reason), count in _missing(rows).items()]
    return (
        "\n\n".join(
            [
                generated.table(_tally_rows(rows)),
                "Outside, unequal, or without a published error:",
                generated.table([["paper", "figure", "published", "ours", "z", "why, or how far"], *apart]),
                "Without a number of ours:",
                generated.table([["figures", "paper", "why"], *gone]),
            ]
        )
        + "\n"
    )


def _missing(rows: Sequence[Row]) -> Counter[tuple[str, str]]:
    return Counter((figure.paper, result.reason) for figure, result in _counted(rows) if result.status == "missing")


def _where(figure: Figure) -> str:
    parts = (figure.where.split(" (")[0], figure.data, figure.method, figure.metric.split(" (")[0])
    return ", ".join(text_ for text_ in parts if text_ != "-")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(_short(each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(each)}" for name, each in value.items())
    return str(value)


def _z(outcome_here: Outcome) -> str:
    return "" if outcome_here.z is None else f"{outcome_here.z:+.1f}"


def _reasons(rows: Sequence[Row]) -> list[str]:
    """The reasons why figures are outside, unequal or missing, one line per reason."""
    groups = Counter(
        (PAPERS[figure.paper], result.status, result.reason)
        for figure, result in rows
        if result.status in ("outside", "unequal", "missing") and not figure.repeated
    )
    return [f"{count} {status}, {paper}: {reason}" for (paper, status, reason), count in groups.items()]
