"""Data sets in their original units, with the standardisation that training uses."""

from pyrodrop.checks import public
from pyrodrop.data.cifar10 import cifar10
from pyrodrop.data.dataset import Data, Dataset
from pyrodrop.data.gospels import gospels
from pyrodrop.data.keywords import Keywords
from pyrodrop.data.mnist import mnist, turned
from pyrodrop.data.published import foong2020, gal2016, larynx, line, line_split, mauna_loa, solar, toy
from pyrodrop.data.resampled import bootstrapped, perturbed
from pyrodrop.data.splits import Split, Splits
from pyrodrop.data.tables import airfoil, bikes, uci

__all__ = [
    "Data",
    "Dataset",
    "Keywords",
    "Split",
    "Splits",
    "airfoil",
    "bikes",
    "bootstrapped",
    "cifar10",
    "foong2020",
    "gal2016",
    "gospels",
    "larynx",
    "line",
    "line_split",
    "mauna_loa",
    "mnist",
    "perturbed",
    "solar",
    "toy",
    "turned",
    "uci",
]

public(__name__, __all__)
