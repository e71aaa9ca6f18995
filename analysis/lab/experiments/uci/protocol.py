"""Protocols of the UCI tables: training settings of every data set, and how the protocols use them.

    gal2016   400 epochs (protein 200) of batches of 32; the published precision tau, drop rate and length scale,
              which were tuned on test rows of other splits
    gal2018   4,000 epochs (protein 2,000) of batches of 128; 4 drop rates x 3 precisions, chosen by the last fifth of every
              training split
    gal2016-100x, gal2016-500x    the authors' longer runs of September 2016: the same settings in batches of 128, for 4,000
              epochs (protein 2,000), and for 20,000 (10,000) of a network with two hidden layers
    quick     gal2016 with 1,000 samples, for comparing many posteriors

Gal & Ghahramani (2016), section 5.3; https://github.com/yaringal/DropoutUncertaintyExps, whose re-run of 2018 searched the
grid. One hidden layer of ReLU units, Adam, y standardised with the training rows, tau in raw units of y. Minibatches have 32
rows in the code that was committed with the results of 2016, and 128 in later code. With 128, 400 epochs are too few steps
for table 1; on yacht the RMSE is twice as large.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from pyrodrop.checks import known
from pyrodrop.zoo.entries import SETTINGS

RATES = (0.005, 0.01, 0.05, 0.1)
VALIDATION = 0.2  # share of the training rows for validation, the last ones


SMALL = ("yacht", "boston", "energy", "concrete", "wine")
ALL = (*SMALL, "kin8nm", "power", "naval", "protein")


@dataclass(frozen=True)
class Point:
    """One setting of a grid.

    Attributes:
        precision: tau in raw units of y; None if it is learned.
        drop_rate: drop rate of hidden units and inputs; None for posteriors without one to set.
        length_scale: length scale of the Gaussian prior.
    """

    precision: float | None
    drop_rate: float | None
    length_scale: float


@dataclass(frozen=True)
class Protocol:
    """A protocol of the table.

    Attributes:
        factor: number of epochs over that in the settings of the data set.
        batch: rows per minibatch.
        searches: whether to search the grid on validation rows.
        draws: T, number of posterior samples.
        published: name of the file in ``analysis/reference/uci/published`` with the published results by split.
        layers: number of hidden layers.
    """

    factor: int
    batch: int
    searches: bool
    draws: int
    published: str
    layers: int = 1

    def epochs(self, name: str) -> int:
        """Passes over the training rows of this set."""
        return self.factor * SETTINGS[name].epochs

    def points(self, name: str, *, fixed_precision: bool = True, with_rate: bool = True) -> list[Point]:
        """The grid of a set; a single point if the protocol does not search.

        Args:
            name: the data set.
            fixed_precision: whether tau is set by the grid instead of learned.
            with_rate: whether the posterior has a drop rate to set.
        """
        setting = SETTINGS[name]
        if not self.searches:
            rate = setting.drop_rate if with_rate else None
            return [Point(setting.precision if fixed_precision else None, rate, setting.length_scale)]
        if not setting.precisions:
            raise ValueError(f"{name} was not in the search of 2018 and has no grid; use the protocol gal2016 or quick")
        rates = RATES if with_rate else (None,)
        precisions = setting.precisions if fixed_precision else (None,)
        return [Point(tau, rate, 1e-2) for rate, tau in itertools.product(rates, precisions)]


PROTOCOLS = {
    "gal2016": Protocol(10, 32, False, 10_000, "gal2016"),
    "gal2018": Protocol(100, 128, True, 10_000, "gal2018"),
    "gal2016-100x": Protocol(100, 128, False, 10_000, "gal2016-100x"),
    "gal2016-500x": Protocol(500, 128, False, 10_000, "gal2016-500x", layers=2),
    "quick": Protocol(10, 32, False, 1000, "gal2016"),
}


def chosen_sets(names: list[str]) -> list[str]:
    """Names of the data sets; ``small`` stands for the five that take minutes, ``all`` for the nine."""
    several = {"small": SMALL, "all": ALL}
    chosen = [n for name in names for n in several.get(name, (name,))]
    for name in chosen:
        known(name, [*SETTINGS, *several], "UCI set")
    return list(dict.fromkeys(chosen))
