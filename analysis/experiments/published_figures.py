"""The published figures, as they were printed or released: ``analysis/reference/published.json``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrodrop.analysis.reports.json_files import read_record

REFERENCE = Path(__file__).parents[1] / "reference"
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
# Methods that the papers compare with and that are not in the zoo, with the reason.
FOREIGN = {
    "VI": "variational inference of Graves (2011) as Hernández-Lobato & Adams (2015) ran it; its settings are not published",
    "PBP": "probabilistic backpropagation is not a posterior of this zoo",
    "Pruning": "pruning by magnitude is not a posterior",
    "DNS": "dynamic network surgery is not a posterior",
    "SWS": "soft weight sharing is not a posterior of this zoo",
    "SSL": "structured sparsity learning is not a posterior",
}


@dataclass(frozen=True)
class Figure:
    """One published figure.

    Attributes:
        paper: a key of `PAPERS`.
        where: table, figure or section.
        data, method, metric: as the paper calls them.
        value: a number, a list of numbers, settings by name, or text; None if no number is printed.
        error: its standard error, the length of its error bar, or the quartiles of a median; None if there is none.
    """

    paper: str
    where: str
    data: str
    method: str
    metric: str
    value: Any
    error: Any

    @property
    def foreign(self) -> bool:
        return self.method in FOREIGN

    @property
    def published(self) -> bool:
        """Whether it was published; the others were computed for reference."""
        return self.paper != "quadrature"

    @property
    def repeated(self) -> bool:
        """Whether it is a rounded figure of the released results, which are counted instead."""
        return (self.paper, self.where) == ("gal2016", "Table 1") and not self.foreign


def figures() -> list[Figure]:
    """All figures, in the order of the papers."""
    content = read_record(REFERENCE / "published.json").content
    return [Figure(**row) for row in content["figures"]]
