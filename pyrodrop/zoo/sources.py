"""The zoo's data sets by name, with those that only entries of the zoo have:

in-between    y = cos(4 x + .8) + N(0, .1^2) on both sides of a gap: Foong, Li, Hernández-Lobato & Turner (2019)
toys          the test part has a random fifth of the rows near training rows, then all rows away from them: those in the
              gap, otherwise those with x between its quantiles .55 and .65, or above its quantile .95
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pyrodrop.data import Dataset, Split, gal2016, line, mauna_loa, mnist, uci
from pyrodrop.data.files import numbers
from pyrodrop.data.published import SPLITS

TEST_SHARE, ROWS, GAP, NOISE = 0.2, 160, (-0.7, 0.5), 0.1  # of toys; the last three are of in-between


@dataclass(frozen=True)
class Source:
    """A data set.

    Attributes:
        summary: one-line description with the number of observations.
        load: loads the splits; most data sets have one.
    """

    summary: str
    load: Callable[[], Sequence[Split]]


def _alone(load: Callable[[], Split]) -> list[Split]:
    return [load()]


def in_between(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and whether a row is in the gap, ``[N]`` each."""
    x = random.uniform(-1.0, 1.0, ROWS)
    return x, np.cos(4 * x + 0.8) + NOISE * random.standard_normal(ROWS), (x > GAP[0]) & (x < GAP[1])


def divided(
    x: np.ndarray, y: np.ndarray, away: np.ndarray | None, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of the training rows, of the fifth near them, and of rows away; by the first column of x if `away` is None."""
    if away is None:
        low, high, end = np.quantile(x[:, 0], (0.55, 0.65, 0.95))
        away = ((x[:, 0] > low) & (x[:, 0] <= high)) | (x[:, 0] > end)
    order = random.permutation(np.flatnonzero(~away))
    size = round(TEST_SHARE * len(order))
    return order[size:], order[:size], np.flatnonzero(away)


def _toy(name: str, units: tuple[str, str] = ("", "")) -> Split:
    random = np.random.default_rng(0)
    x, y, away = in_between(random) if name == "in-between" else (*numbers(name).numpy().T, None)
    parts = divided(x[:, None], y, away, random)
    rows = Dataset(*(torch.tensor(values).float()[:, None] for values in (x, y)))
    train = rows.rows(torch.from_numpy(parts[0])).standardized()
    test = rows.rows(torch.from_numpy(np.concatenate(parts[1:])))
    return Split(name, train, test.with_values(inputs=train.inputs, targets=train.targets), *units, "see docs/data.md")


_UCI = {  # name in the UCI repository, rows, inputs
    "boston": ("bostonHousing", 506, 13), "concrete": ("concrete", 1030, 8), "energy": ("energy", 768, 8),
    "kin8nm": ("kin8nm", 8192, 8), "naval": ("naval-propulsion-plant", 11934, 16), "power": ("power-plant", 9568, 4),
    "protein": ("protein-tertiary-structure", 45730, 9), "wine": ("wine-quality-red", 1599, 11), "yacht": ("yacht", 308, 6),
}  # fmt: skip
_ONE: dict[str, tuple[str, Callable[[], Split]]] = {  # data sets of one split
    "mauna-loa": ("monthly CO2 at Mauna Loa, ppm by year: 272 months to train, 249 to test", mauna_loa),
    "gal2016/co2": (
        "the CO2 series of Gal & Ghahramani (2016), standardised: 272 months to train, no truth to test", gal2016,
    ),
    "line-1000": (
        "y = 2 x + 8 + N(0, 1): 1,000 to train, 2,000 to test",
        lambda: Split("line-1000", line(1000), line(2000, 10_000), "", "", "made here"),
    ),
    "mnist": ("digits as rows of 784 grey values: 60,000 to train, 10,000 to test", mnist),
    "mnist/images": (
        "digits as images of 28 x 28 grey values: 60,000 to train, 10,000 to test", functools.partial(mnist, flat=False),
    ),
    "toys/motorcycle": (
        "head acceleration by time after an impact: 90 rows to train, 43 to test",
        functools.partial(_toy, "motorcycle", ("ms", "g")),
    ),
    "toys/snelson": ("Snelson's example: 136 rows to train, 64 to test", functools.partial(_toy, "snelson")),
    "toys/in-between": (
        "a cosine on both sides of a gap: 60 rows to train, 15 to test among them and 85 in the gap",
        functools.partial(_toy, "in-between"),
    ),
}  # fmt: skip
SOURCES: dict[str, Source] = {
    **{name: Source(summary, functools.partial(_alone, load)) for name, (summary, load) in _ONE.items()},
    **{
        f"uci/{name}": Source(
            f"UCI {of}: {rows:,} rows of {inputs} inputs, {SPLITS[name]} published splits", functools.partial(uci, name)
        )
        for name, (of, rows, inputs) in _UCI.items()
    },
}
