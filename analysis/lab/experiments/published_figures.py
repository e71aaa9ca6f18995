"""The published figures and our outcomes, a row each of ``analysis/lab/results/published.csv``.

    z = (ours - published) / sqrt(e_ours^2 + e_published^2)

or, if the published numbers of every split are known, the mean of the paired differences in its standard errors. If no error
of the published figure is known, z is in standard errors of ours alone, and the figure does not count as agreeing or
disagreeing.

    within       at most two standard errors apart, or equal in every split
    outside      further apart
    equal        the same to the printed digits: settings, coefficients, exact values, facts about data
    unequal      not the same
    compared     both numbers are known, but no error of the published one
    missing      no number of ours yet; the reason says what it would take, or why there will be none
    foreign      of a method that is not in this zoo
"""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pyrodrop.analysis.lab import RESULTS
from pyrodrop.files import whole

STORED = RESULTS / "published.csv"
PAPERS = {
    "gal2016": "Gal & Ghahramani (2016)",
    "released": "its released results, 2016 and 2018",
    "kingma2015": "Kingma, Salimans & Welling (2015)",
    "gngdb": "gngdb/variational-dropout, a replication of it",
    "molchanov2017": "Molchanov, Ashukha & Vetrov (2017)",
    "deepbayes2019": "Deep Bayes 2019, a notebook on sparse variational dropout",
    "mittov": "Mittov's slides on ARD",
    "pytorch_ard": "HolyBayes/pytorch_ard",
    "gal2017": "Gal, Hron & Kendall (2017)",
    "neklyudov2017": "Neklyudov et al. (2017)",
    "kharitonov2018": "Kharitonov, Molchanov & Vetrov (2018)",
    "hron2018": "Hron, Matthews & Ghahramani (2018)",
    "quadrature": "computed for reference, not published",
}
Status = Literal["within", "outside", "equal", "unequal", "compared", "missing", "foreign"]


@dataclass(frozen=True)
class Outcome:
    """The outcome for one figure.

    Attributes:
        status: see the docstring of this module.
        ours: our number or numbers; None if there is none.
        z: difference in standard errors; None if it is unknown.
        reason: a sentence; it may be empty for figures that agree.
        file: the stored result; empty if there is none.
    """

    status: Status
    ours: Any = None
    z: float | None = None
    reason: str = ""
    file: str = ""


@dataclass(frozen=True)
class Figure:
    """One published figure.

    Attributes:
        paper: a key of `PAPERS`.
        where: table, figure or section.
        data, method, metric: as the paper calls them.
        value: a number, a list of numbers, settings by name, or text; None if no number is printed.
        error: its standard error, the length of its error bar, or the quartiles of a median; None if there is none.
        outcome: the stored outcome.
    """

    paper: str
    where: str
    data: str
    method: str
    metric: str
    value: Any
    error: Any
    outcome: Outcome

    @property
    def foreign(self) -> bool:
        return self.outcome.status == "foreign"

    @property
    def published(self) -> bool:
        """Whether it was published; the others were computed for reference."""
        return self.paper != "quadrature"

    @property
    def repeated(self) -> bool:
        """Whether it is a rounded figure of the released results, which are counted instead."""
        return (self.paper, self.where) == ("gal2016", "Table 1") and not self.foreign


@functools.cache
def figures() -> tuple[Figure, ...]:
    """All figures, in the order of the papers."""
    with STORED.open(newline="", encoding="utf-8") as file:
        rows = [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(file)]
    ours = Outcome.__dataclass_fields__
    return tuple(
        Figure(
            **{name: row[name] for name in row if name not in ours},
            outcome=Outcome(**{name: row[name] for name in ours}),
        )
        for row in rows
    )


def store(rows: Iterable[Figure]) -> None:
    """Write the figures with their outcomes."""
    with whole(STORED) as part, part.open("w", newline="", encoding="utf-8") as file:
        table = [{**asdict(figure), **asdict(figure.outcome)} for figure in rows]
        names = [name for name in table[0] if name != "outcome"]
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_text(name, row[name]) for name in names] for row in table)
    figures.cache_clear()


_NUMBERS = ("value", "error", "ours", "z")


def _text(name: str, value: Any) -> str:
    return str(value) if name not in _NUMBERS else "" if value is None else json.dumps(value)


def _value(name: str, text: str) -> Any:
    return text if name not in _NUMBERS else json.loads(text) if text else None
