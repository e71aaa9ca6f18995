"""Data sets of published experiments, whose files are in the table of `pyrodrop.data.files`, and a line made here:

y = 2 x + 8 + N(0, 1), x ~ N(0, 1)     Gal, Hron & Kendall (2017), https://arxiv.org/abs/1705.07832, notebook
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import numpy as np
import torch

from pyrodrop.checks import Count, Flag, Seed, checked, known
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.files import FILES, numbers
from pyrodrop.data.splits import Split, Splits
from pyrodrop.devices import seeded
from pyrodrop.scaling import Standardize

Series: TypeAlias = Literal["co2", "solar"]

UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
SPLITS = {name: 5 if name in ("protein", "airfoil") else 20 for name in (*UCI, "airfoil")} | {"bikes": 1}
_USED = {  # without a second y, and without number and date of the row and the two counts of which y is the sum
    "naval": range(17), "bikes": (*range(2, 14), 16),
}  # fmt: skip
TRAINING_MONTHS = 272  # of Mauna Loa
MONTH = 0.0127358  # one month of the CO2 series in standardised time
SLICE = 500  # points along the diagonal of `foong2020`


def mauna_loa() -> Split:
    """Monthly CO2 at Mauna Loa: x in years ``[N, 1]``, y in ppm ``[N, 1]``, float32.

    The first 272 months are the training part, as in figure 2 of Gal & Ghahramani (2016); the following 249 months are the
    test part. Both have the standardisation of the training part.
    """
    months = Dataset(*numbers("mauna_loa").float().split(1, 1))
    train = months.first(TRAINING_MONTHS).standardized()
    later = months.rows(slice(TRAINING_MONTHS, None)).with_values(inputs=train.inputs, targets=train.targets)
    source = (
        "Keeling & Whorf (2004), Atmospheric CO2 concentrations derived from flask air samples at sites in the SIO "
        "network, Carbon Dioxide Information Analysis Center; weekly record in statsmodels.datasets.co2 (public domain), "
        "monthly means"
    )
    return Split("mauna-loa", train, later, "year", "ppm", source, period=1.0)


@checked
def gal2016(series: Series = "co2") -> Split:
    """A regression series of Gal & Ghahramani (2016) as in their experiments: x and y ``[N, 1]``, float32, standardised.

    CO2 is the Mauna Loa series of figure 2 (272 months, detrended and standardised by the authors). Its test part is a grid
    of inputs without observations; y has the placeholders of the file. Solar is the series of the appendix, and its test
    part fills five gaps of 20 years each in the training part.

    Args:
        series: ``co2`` or ``solar``.

    Raises:
        ValueError: `series` is unknown, or a file has the wrong content.
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: a file cannot be downloaded.
    """
    train, test = (Dataset(*numbers(f"{series}_{part}").float().split(1, 1)) for part in ("train", "test"))
    return Split(
        name=f"gal2016-{series}",
        train=train,
        test=test,
        x_unit="standardised time",
        y_unit="standardised",
        source=f"Gal & Ghahramani (2016), {FILES[f'{series}_train'].url}",
        period=12 * MONTH if series == "co2" else None,
        truth=series == "solar",
    )


def foong2020() -> Split:
    """Two clusters of points in the plane: x ``[100, 2]`` and y ``[100, 1]``, float32, without standardisation.

    50 points lie around (1, 1) and 50 around (-1, -1), with y of each cluster near one value. The question is how uncertain
    a posterior is between them. The test part is the diagonal slice of the paper's figures, 500 points from (-2, -2) to
    (2, 2). It has no observations; its y is 0.

    Raises:
        FileNotFoundError, ConnectionError, ValueError: as `gal2016`.
    """
    x, y = (numbers(f"origin_{name}").float() for name in "xy")
    test = Dataset(torch.linspace(-2, 2, SLICE)[:, None].repeat(1, 2), torch.zeros(SLICE, 1))
    source = f"Foong et al. (2020), {FILES['origin_x'].url} (MIT)"
    return Split("foong2020-origin", Dataset(x, y.reshape(-1, 1)), test, "", "", source, truth=False)


@checked
def line(n: Annotated[int, Count("the number of examples")], seed: Seed = 0) -> Dataset:
    """Sample n examples of the line y = 2 x + 8 with noise: x and y ``[n, 1]``. The same `seed` gives the same data."""
    with seeded(seed, torch.device("cpu")):
        x = torch.randn(n, 1)
        return Dataset(x, 2 * x + 8 + torch.randn(n, 1))


@checked
def mnist(
    *,
    flat: Annotated[bool, Flag("whether images are flattened")] = True,
) -> Split:
    """MNIST: grey values x in [0, 1], float32, ``[N, 784]`` or ``[N, 1, 28, 28]``, and digits y, int64, ``[N]``.

    60,000 digits are the training part and 10,000 the test part.

    Args:
        flat: whether images are flattened to ``[N, 784]``.

    Raises:
        FileNotFoundError, ConnectionError, ValueError: as `uci`.
        TypeError: `flat` is neither True nor False.
    """
    parts = []
    for stem in ("train", "t10k"):
        images = numbers(f"{stem}-images-idx3-ubyte").float().div_(255)
        labels = numbers(f"{stem}-labels-idx1-ubyte").long()
        x = images.flatten(1) if flat else images[:, None]
        parts.append(Dataset(x, labels, inputs=Standardize(), targets=Standardize()))
    source = "LeCun, Cortes & Burges, The MNIST database of handwritten digits"
    return Split("mnist", parts[0], parts[1], "grey value", "digit", source)


def uci(name: str) -> Splits:
    """A table of the UCI repository with its splits, x ``[N, D]`` and y ``[N, 1]``, float32, in the original units.

    The regression sets of Hernández-Lobato & Adams (2015), arXiv:1502.05336, and Gal & Ghahramani (2016), arXiv:1506.02142,
    have the published splits. *airfoil*, the sound level of airfoils in a wind tunnel in dB, has five random splits.
    *bikes*, the number of bicycles hired per hour in Washington, has one; x describes calendar and weather by numbers, and
    the hours before and after a test row are mostly training rows, but their counts are not in x. The first split of both is
    scikit-learn's ``train_test_split`` with ``random_state=0``, as in scikit-learn-contrib/bde.

    Args:
        name: boston, concrete, energy, kin8nm, naval, power, protein, wine, yacht, airfoil or bikes.

    Raises:
        ValueError: `name` is unknown, or the file has the wrong content.
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.

    Example:
        ``uci("boston")[0].train`` has x ``[455, 13]`` and y ``[455, 1]``.
    """
    values = numbers(known(name, SPLITS, "UCI set"), used=_USED.get(name))
    size, terms = len(values), "" if name in UCI else " (CC BY 4.0)"
    if name in UCI:  # split i has the first nine tenths of the i-th permutation of one generator as training rows
        draw, first = np.random.RandomState(1), round(0.9 * size)
        orders = [draw.choice(range(size), size, replace=False) for _ in range(SPLITS[name])]
        rows = [(order[:first], order[first:]) for order in orders]
    else:  # the first fifth of each permutation, rounded up, is held out
        orders, first = [np.random.RandomState(seed).permutation(size) for seed in range(SPLITS[name])], -(-size // 5)
        rows = [(order[first:], order[:first]) for order in orders]
    source = f"UCI Machine Learning Repository{terms}, {FILES[name].url}"
    return Splits(name, values[:, :-1].contiguous(), values[:, -1:].contiguous(), rows, source)
