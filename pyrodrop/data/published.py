"""Series and small tables of published experiments, and the lines of one that are made here.

Every file of numbers is a row of `FILES`. Those without an address come with this package. The others are read from the
folder that the environment variable PYRODROP_DATA names or, if it is not set, downloaded once and cached; in both cases
their hashes are checked.

    mauna_loa     Keeling & Whorf (2004), as distributed with statsmodels: monthly means of the weeks with a value
    gal2016       Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142
    foong2020     Foong, Burt, Li & Turner (2020), https://arxiv.org/abs/1909.00719: the data set ``origin`` (MIT licence)
    larynx        Kardaun (1983), Statistica Neerlandica 37, as in lifelines (MIT licence)
    motorcycle    Silverman (1985), as MASS::mcycle of R
    snelson       Snelson & Ghahramani (2006), Sparse Gaussian processes using pseudo-inputs
    in-between    y = cos(4 x + .8) + N(0, .1^2) on both sides of a gap: Foong, Li, Hernández-Lobato & Turner (2019)
    line          y = 2 x + 8 + N(0, 1), x ~ N(0, 1): Gal, Hron & Kendall (2017), https://arxiv.org/abs/1705.07832, notebook
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

import h5py
import numpy as np
import torch
from torch import Tensor

from pyrodrop.arguments import MOST
from pyrodrop.constraints import Count, Seed, checked
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.download import data_file
from pyrodrop.data.splits import Split
from pyrodrop.devices import seeded
from pyrodrop.scaling import Standardize

Series: TypeAlias = Literal["co2", "solar"]
Toy: TypeAlias = Literal["motorcycle", "snelson", "in-between"]


class File(NamedTuple):
    """A file of numbers in columns, of which those of x come first; CSV files have a header.

    Attributes:
        sha256: hash of the file in the folder PYRODROP_DATA.
        url: address of the file; empty for a file of this package.
        published: hash of the file at the address, if that is another one, with the same numbers.
    """

    sha256: str = ""
    url: str = ""
    published: str = ""


_GAL = "yaringal/DropoutUncertaintyCaffeModels", "afd0b1c72ecf4669c0823a2458d645c2683159a3"
_FOONG = "cambridge-mlg/expressiveness-approx-bnns", "47099e0cd4fb23907cbef3fba572d01eaa8d52ae"
_RAW = "https://raw.githubusercontent.com/{}/{}/"
_SERIES, _ORIGIN = _RAW.format(*_GAL) + "{}_regression/data/{}.h5", _RAW.format(*_FOONG) + "datasets/origin/{}"
FILES = {
    "mauna_loa.csv": File(),
    "larynx.csv": File(),
    "motorcycle.csv": File(),
    "snelson.csv": File(),
    "foong2020/origin_x.txt": File(
        "0138acedcb795f3abf15fc140681fb36c80ddee86433f140fe0132eca711b237", _ORIGIN.format("origin_x.txt")
    ),
    "foong2020/origin_y.txt": File(
        "422bf501f1b40f281f3e1a90355ac68bd55d48073a591eba994d0b24614d7fb9", _ORIGIN.format("origin_y.txt")
    ),
    "gal2016/co2_train.csv": File(
        "3ff58ef6c4aabb94322fa32b0a28895c700786fe3164b6addbffd92579183056", _SERIES.format("co2", "train"),
        "5e872111e517ac619350009fe3b9b5e2752ad52b4cf0086ec53b33db4c32417b",
    ),
    "gal2016/co2_test.csv": File(
        "f23852c124cdb56efa5953a44d0fc32b8db89501fc79daedaf534eeaf6f90b2c", _SERIES.format("co2", "test"),
        "87da916948348f9f850a52327a457dc091f3104cafa42f75e176f66dc9b966fb",
    ),
    "gal2016/solar_train.csv": File(
        "b392e8e6bbfcd24f790d2eb333f08ea5c2579a2b6e7632811fcc2106182afc4d", _SERIES.format("solar", "train"),
        "b6ee46f254c1272987f590a36f9fb43c5f64fb8cdac8c0065b99793c868bdd08",
    ),
    "gal2016/solar_test.csv": File(
        "5010a2e64a9785658a2536c08bccdfe97a57a0a2ebe5616bc946ae7ea5dd5608", _SERIES.format("solar", "test"),
        "fb9e9199f05dd2e493b0d10dad2fa41b5015afd2d61c2d83f6857e7cb97b5e76",
    ),
}  # fmt: skip
TRAINING_MONTHS = 272  # of Mauna Loa
MONTH = 0.0127358  # one month of the CO2 series in standardised time
YEARS, TRAINING_YEARS = 375, 300  # of `solar`, the forecasts of the solar series
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
    table = _numbers("mauna_loa.csv").float()
    parts = table[:TRAINING_MONTHS], table[TRAINING_MONTHS:]
    inputs, targets = Standardize.of(parts[0][:, :1]), Standardize.of(parts[0][:, 1:])
    source = (
        "Keeling & Whorf (2004), Atmospheric CO2 concentrations derived from flask air samples at sites in the SIO "
        "network, Carbon Dioxide Information Analysis Center; weekly record in statsmodels.datasets.co2 (public domain), "
        "monthly means"
    )
    train, test = (Dataset(part[:, :1], part[:, 1:], inputs=inputs, targets=targets) for part in parts)
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
    train, test = (_numbers(f"gal2016/{series}_{part}.csv").float() for part in ("train", "test"))
    return Split(
        name=f"gal2016-{series}",
        train=Dataset(train[:, :1], train[:, 1:]),
        test=Dataset(test[:, :1], test[:, 1:]),
        x_unit="standardised time",
        y_unit="standardised",
        source="Gal & Ghahramani (2016), GitHub {} at {}".format(*_GAL),
        period=12 * MONTH if series == "co2" else None,
        truth=series == "solar",
    )


@checked
def solar(
    past: Annotated[int, Count("the number of past years", most=100)] = 22,
    ahead: Annotated[int, Count("the number of years until the forecast year", most=100)] = 5,
) -> Split:
    """Forecasts of the solar series: its change over the next years from its changes in the years before, float32.

        y = s[t + ahead] - s[t]                                                 [N, 1]
        x = s[t - past + 1] - s[t - past], ..., s[t] - s[t - 1]                 [N, past, 1]

    for every year t. s is the training and test part of `gal2016` ("solar") in order of time: the irradiance of the sun in
    375 years, one value per year, standardised by the authors. Levels are left out, as the series rises over its centuries
    and the last years lie above all earlier ones.

    The training part has all windows within the first 300 years. The test part forecasts each of the last 75 years from the
    years before; the first of these windows overlap with training years. Both parts have the standardisation of the training
    part, with one mean and scale for all positions in a window. The forecast "no change" is y = 0.

    Args:
        past: number of yearly changes in a window; 22 years are two cycles of the sun.
        ahead: number of years from the last year of a window to the forecast year.

    Raises:
        ValueError: an argument is outside 1 ... 100; otherwise as `gal2016`.
        TypeError: an argument is no whole number.
        FileNotFoundError, ConnectionError: as `gal2016`.
    """
    split = gal2016("solar")
    times = torch.cat([split.train.x, split.test.x])[:, 0]
    series = torch.cat([split.train.y, split.test.y])[times.argsort(), 0]
    last = torch.arange(past, YEARS - ahead)  # the last year of each window
    x = series.diff().unfold(0, past, 1)[: len(last), :, None]
    y = (series[last + ahead] - series[last])[:, None]
    held_out = last + ahead >= TRAINING_YEARS
    inputs = Standardize.of(x[~held_out].reshape(-1, 1))
    targets = Standardize.of(y[~held_out])
    train, test = (Dataset(x[rows], y[rows], inputs=inputs, targets=targets) for rows in (~held_out, held_out))
    units = "change per year, standardised", f"change in {ahead} years, standardised"
    return Split("solar", train, test, *units, split.source)


def foong2020() -> Split:
    """Two clusters of points in the plane: x ``[100, 2]`` and y ``[100, 1]``, float32, without standardisation.

    50 points lie around (1, 1) and 50 around (-1, -1), with y of each cluster near one value. The question is how uncertain
    a posterior is between them. The test part is the diagonal slice of the paper's figures, 500 points from (-2, -2) to
    (2, 2). It has no observations; its y is 0.

    Raises:
        FileNotFoundError, ConnectionError, ValueError: as `gal2016`.
    """
    x, y = (_numbers(f"foong2020/origin_{name}.txt").float() for name in "xy")
    line = torch.linspace(-2, 2, SLICE)[:, None]
    test = Dataset(line.expand(-1, 2).contiguous(), torch.zeros(SLICE, 1))
    source = "Foong et al. (2020), GitHub {} (MIT) at {}".format(*_FOONG)
    return Split("foong2020-origin", Dataset(x, y.reshape(-1, 1)), test, "", "", source, truth=False)


def larynx() -> Dataset:
    """Survival of 90 men with cancer of the larynx, of whom 40 were alive at the end of the study.

    x ``[90, 2]``: age in years, stage 1 to 4. y ``[90, 2]``: lower and upper end of the years to death. The ends are equal
    for men who died. For the others the upper end is infinite (`likelihoods.Censored`).
    """
    years, died, *x = _numbers("larynx.csv").float().T
    return Dataset(torch.stack(x, 1), torch.stack([years, years.where(died == 1, torch.inf)], 1))


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
    x, y, away = in_between(random) if name == "in-between" else (*_numbers(f"{name}.csv").numpy().T, None)
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


def _numbers(name: str) -> Tensor:
    """The numbers of one of `FILES`, ``[N, columns]``, float64."""
    file, place = FILES[name], name
    if not file.url:
        path = Path(str(resources.files("pyrodrop.data") / name))
    else:
        of_url = bool(file.published) and not os.environ.get("PYRODROP_DATA")
        place = f"{name.rpartition('.')[0]}.{file.url.rpartition('.')[2]}" if of_url else name
        path = data_file(place, f"the table {name}", file.url, file.published if of_url else file.sha256)
    if path.suffix == ".h5":
        with h5py.File(path) as content:
            return torch.from_numpy(np.concatenate([np.asarray(content[key]) for key in ("data", "label")], 1)).double()
    comma = path.suffix == ".csv"
    return torch.from_numpy(np.loadtxt(path, delimiter="," if comma else None, skiprows=int(comma), ndmin=2))
