"""The zoo's data sets by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch.nn.functional import avg_pool2d

from pyrodrop import data as published
from pyrodrop.data import Dataset, Split, uci
from pyrodrop.data.files import UCI
from pyrodrop.data.published import SPLITS


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


def _changed(split: Split, change: Callable[[Dataset], Dataset]) -> Split:
    return replace(split, train=change(split.train), test=change(split.test))


def _small_digits() -> Split:
    """The first digits of both parts of MNIST, averaged over squares of 2 x 2 pixels: ``[N, 1, 14, 14]``."""
    split = published.mnist(flat=False)
    first = replace(split, name="mnist-small", train=split.train.first(6000), test=split.test.first(2000))
    return _changed(first, lambda rows: Dataset(avg_pool2d(rows.x, 2), rows.y))


_TABLE = "{:,} rows of {} inputs, {} published splits"
_ONE: dict[str, tuple[str, Callable[[], Split]]] = {  # data sets of one split
    "mauna-loa": ("monthly CO2 at Mauna Loa, ppm by year: 272 months to train, 249 to test", published.mauna_loa),
    "gal2016/co2": (
        "the CO2 series of Gal & Ghahramani (2016), standardised: 272 months to train, no truth to test",
        published.gal2016,
    ),
    "gospels": (
        "Mark and Luke in sequences of 50 characters, y the next ones: 3,803 to train, 423 to test", published.gospels,
    ),
    "line-1000": ("y = 2 x + 8 + N(0, 1): 1,000 to train, 2,000 to test", lambda: published.line_split(1000)),
    "mnist": ("digits as rows of 784 grey values: 60,000 to train, 10,000 to test", published.mnist),
    "mnist/images": (
        "digits as images of 28 x 28 grey values: 60,000 to train, 10,000 to test", lambda: published.mnist(flat=False),
    ),
    "mnist/small": (
        "digits as images of 14 x 14, means of 2 x 2 pixels: the first 6,000 to train, 2,000 to test", _small_digits,
    ),
    "solar": (
        "change of solar irradiance in 5 years from those of the last 22: 273 windows to train, 75 years to test",
        published.solar,
    ),
    "solar/plain": (
        "the windows of solar as they are, without a standardisation: 273 to train, 75 to test",
        lambda: _changed(published.solar(), lambda rows: Dataset(rows.x, rows.y)),
    ),
    "toys/motorcycle": (
        "head acceleration by time after an impact: 90 rows to train, 43 to test", lambda: published.toy("motorcycle"),
    ),
    "toys/snelson": ("Snelson's example: 136 rows to train, 64 to test", lambda: published.toy("snelson")),
    "toys/in-between": (
        "a cosine on both sides of a gap: 60 rows to train, 15 to test among them and 85 in the gap",
        lambda: published.toy("in-between"),
    ),
}  # fmt: skip
SOURCES: dict[str, Source] = {
    **{name: Source(summary, functools.partial(_alone, load)) for name, (summary, load) in _ONE.items()},
    "airfoil": Source(
        "sound level of airfoils, dB: 1,503 rows of 5 inputs, 5 random splits", functools.partial(uci, "airfoil")
    ),
    "bikes": Source(
        "bicycles hired per hour: 17,379 rows of 12 inputs, one random split", functools.partial(uci, "bikes")
    ),
    **{
        f"uci/{name}": Source(
            f"UCI {folder}: {_TABLE.format(rows, columns - 1, SPLITS[name])}", functools.partial(uci, name)
        )
        for name, (folder, rows, columns, _) in UCI.items()
    },
}
