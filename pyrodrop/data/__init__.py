"""Data sets in their original units, with the standardisation that training uses."""

from pyrodrop.data.dataset import Data, Dataset
from pyrodrop.data.keywords import Keywords
from pyrodrop.data.published import (
    foong2020,
    gal2016,
    gospels,
    larynx,
    line,
    line_split,
    mauna_loa,
    mnist,
    solar,
    toy,
    uci,
)
from pyrodrop.data.splits import Split, Splits

__all__ = [
    "Data",
    "Dataset",
    "Keywords",
    "Split",
    "Splits",
    "foong2020",
    "gal2016",
    "gospels",
    "larynx",
    "line",
    "line_split",
    "mauna_loa",
    "mnist",
    "solar",
    "toy",
    "uci",
]
