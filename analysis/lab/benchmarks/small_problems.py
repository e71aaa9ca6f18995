"""Twenty small problems whose uncertainty can be plotted: one or two inputs, 30 to 300 rows.

    train     training rows
    inside    test rows: a fifth of the rows that are not ``away``, at random
    away      test rows between and beyond the training rows: unless the problem defines them, those whose first input lies
              in its quantiles .55 to .65 or above .95

Measured data, in the folder ``small`` if no loader has them: *motorcycle*, head acceleration after an impact (Silverman
1985; R's MASS::mcycle); *snelson*, Snelson & Ghahramani (2006); *cars*, stopping distances (Ezekiel 1930; R's cars);
*faithful*, waiting times by eruptions of a geyser (Azzalini & Bowman 1990; R's faithful); *ethanol*, NOx by compression and
mixture of an engine (Brinkman 1981; R's lattice::ethanol). *in between* is the example of Foong, Li, Hernandez-Lobato &
Turner (2019), https://arxiv.org/abs/1906.11537; *forrester* that of Forrester, Sobester & Keane (2008), with noise.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pyrodrop import data
from pyrodrop.data import Dataset
from pyrodrop.zoo.sources import divided, in_between

MOST_ROWS = 300
_FOLDERS = Path(__file__).with_name("small"), Path(data.__file__).parent
_Random = np.random.Generator
_Made = tuple[np.ndarray, np.ndarray, np.ndarray | None]


class Problem(NamedTuple):
    """The three parts of a problem; `classes` is the number of classes, 0 if y is a real number or a count. The seed
    determines its rows, and the networks and their training."""

    name: str
    train: Dataset
    inside: Dataset
    away: Dataset
    counts: bool
    classes: int
    seed: int


def problem(name: str, seed: int = 0) -> Problem:
    """A problem by its name in `PROBLEMS`; the seed is that of its rows."""
    random = np.random.default_rng(seed)
    x, y, away = PROBLEMS[name](random)
    x = x.reshape(len(x), -1)
    if len(x) > MOST_ROWS:
        kept = random.permutation(len(x))[:MOST_ROWS]
        x, y, away = x[kept], y[kept], None if away is None else away[kept]
    targets = (
        torch.from_numpy(y).long() if y.dtype.kind == "i" and name != "counts" else torch.tensor(y).float()[:, None]
    )
    rows = Dataset(torch.tensor(x).float(), targets)
    train, inside, outside = (rows.rows(torch.from_numpy(of)) for of in divided(x, y, away, random))
    classes = 0 if targets.is_floating_point() else int(targets.max()) + 1
    scaled = Dataset(train.x, train.y, inputs=Dataset(train.x, train.x).standardized().inputs)
    return Problem(
        name,
        scaled if classes or name == "counts" else train.standardized(),
        inside,
        outside,
        name == "counts",
        classes,
        seed,
    )


def _of_file(name: str) -> Callable[[_Random], _Made]:
    def load(random: _Random) -> _Made:
        (file,) = (file for folder in _FOLDERS if (file := folder / f"{name}.csv").is_file())
        rows = np.loadtxt(file, delimiter=",", skiprows=1)
        return rows[:, :-1], rows[:, -1], None

    return load


def _airfoil(random: _Random) -> _Made:
    """Sound level by frequency, the first of five inputs."""
    table = data.uci("airfoil")
    return table.x[:, 0].numpy(), table.y[:, 0].numpy(), None


def _series(split: data.Split, ahead: int | None) -> _Made:
    """All training rows and the first `ahead` test rows (all if None), which are ``away``."""
    test = split.test.first(ahead) if ahead else split.test
    x, y = (torch.cat(both).double().numpy() for both in ((split.train.x, test.x), (split.train.y, test.y)))
    return x, y[:, 0], np.arange(len(x)) >= len(split.train)


def _foong(random: _Random) -> _Made:
    train = data.foong2020().train
    return train.x.double().numpy(), train.y[:, 0].double().numpy(), None


def _diabetes(random: _Random) -> _Made:
    """The progression of diabetes by the body mass index."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    return x[:, 2], y, None


def _iris(random: _Random) -> _Made:
    """Three species by length and width of the sepal, which overlap."""
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    return x[:, :2], y, None


def _moons(random: _Random) -> _Made:
    angle, y = random.uniform(0, np.pi, 200), np.arange(200) % 2
    x = np.stack([np.cos(angle) + y, np.sin(angle) * (1 - 2 * y) + y / 2], 1)
    return x + 0.2 * random.standard_normal(x.shape), y, None


def _spirals(random: _Random) -> _Made:
    turn, y = 3 * np.sqrt(random.uniform(0.05, 1, 200)), np.arange(200) % 2
    x = turn[:, None] * np.stack([np.cos(turn + np.pi * y), np.sin(turn + np.pi * y)], 1)
    return x + 0.15 * random.standard_normal(x.shape), y, None


def _noisy(
    rows: int,
    low: float,
    high: float,
    mean: Callable[[np.ndarray], np.ndarray],
    sd: float | Callable[[np.ndarray], np.ndarray],
    away: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Callable[[_Random], _Made]:
    """x uniform between two ends, and y ~ N(mean(x), sd(x)^2)."""

    def make(random: _Random) -> _Made:
        x = random.uniform(low, high, rows)
        noise = random.standard_normal(rows) * (sd(x) if callable(sd) else sd)
        return x, mean(x) + noise, None if away is None else away(x)

    return make


def _counts(random: _Random) -> _Made:
    x = random.uniform(-3, 3, 150)
    return x, random.poisson(np.exp(1 + np.sin(2 * x) + x / 4)), None


PROBLEMS: dict[str, Callable[[_Random], _Made]] = {
    **{name: _of_file(name) for name in ("motorcycle", "snelson", "cars", "faithful", "ethanol")},
    "co2": lambda random: _series(data.mauna_loa(), 28),
    "solar": lambda random: _series(data.gal2016("solar"), None),
    "airfoil": _airfoil,
    "diabetes": _diabetes,
    "two clusters": _foong,
    "in between": in_between,
    "step": _noisy(120, -1.0, 1.0, np.sign, 0.2),
    "forrester": _noisy(45, 0.0, 1.0, lambda x: (6 * x - 2) ** 2 * np.sin(12 * x - 4), 1.0),
    "sinc with a gap": _noisy(150, -10.0, 10.0, lambda x: np.sinc(x / np.pi), 0.05, lambda x: (x > 1) & (x < 5)),
    "uneven noise": _noisy(200, 0.0, 3.0, lambda x: np.sin(3 * x), lambda x: 0.05 + 0.25 * x),
    "damped sine": _noisy(150, 0.0, 4.0, lambda x: 10 * np.exp(-0.3 * x) * np.sin(4 * x), 1.0),
    "counts": _counts,
    "moons": _moons,
    "spirals": _spirals,
    "iris": _iris,
}  # fmt: skip
