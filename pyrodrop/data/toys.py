"""Three problems of one input in which one can see what uncertainty should be.

motorcycle    head acceleration after an impact, in g by ms: Silverman (1985); R's MASS::mcycle
snelson       Snelson & Ghahramani (2006), Sparse Gaussian processes using pseudo-inputs
in-between    y = cos(4 x + .8) + N(0, .1^2) on both sides of a gap: Foong, Li, Hernández-Lobato & Turner (2019)
"""

from __future__ import annotations

from importlib import resources
from typing import Literal, TypeAlias

import numpy as np
import torch

from pyrodrop.constraints import checked
from pyrodrop.data.dataset import Dataset
from pyrodrop.data.splits import Split

Toy: TypeAlias = Literal["motorcycle", "snelson", "in-between"]
TEST_SHARE, ROWS, GAP, NOISE = 0.2, 160, (-0.7, 0.5), 0.1  # the last three are of in-between
_UNITS = {"motorcycle": ("ms", "g"), "snelson": ("", ""), "in-between": ("", "")}


@checked
def toy(name: Toy) -> Split:
    """A problem of one input: x ``[N, 1]``, y ``[N, 1]``, float32, with the standardisation of the training part.

    The test part has first a random fifth of the rows near training rows, then all rows away from them: for *in-between*
    those in the gap, otherwise those with x between its quantiles .55 and .65, or above its quantile .95.

    Args:
        name: motorcycle (90 rows to train, 43 to test), snelson (136, 64) or in-between (60, 100).

    Raises:
        ValueError: there is no such problem.
        TypeError: the name is no string.
    """
    random = np.random.default_rng(0)
    x, y, away = in_between(random) if name == "in-between" else (*_table(name), None)
    parts = divided(x[:, None], y, away, random)
    train, inside, outside = (
        Dataset(torch.tensor(x[rows]).float()[:, None], torch.tensor(y[rows])[:, None].float()) for rows in parts
    )
    train = train.standardized()
    held_out = (torch.cat([getattr(rows, name) for rows in (inside, outside)]) for name in ("x", "y"))
    test = Dataset(*held_out, inputs=train.inputs, targets=train.targets)
    return Split(name, train, test, *_UNITS[name], __doc__.splitlines()[0])


def _table(name: str) -> tuple[np.ndarray, np.ndarray]:
    with (resources.files("pyrodrop.data") / f"{name}.csv").open() as lines:
        rows = np.loadtxt(lines, delimiter=",", skiprows=1)
    return rows[:, 0], rows[:, 1]


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
