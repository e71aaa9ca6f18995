"""Log density of observations that a fit has not seen: what compares every posterior with every other.

log_density   ln p(y_n | x_n) = ln mean_s p(y_n | f_s(x_n))           a test set
kfold         the same for every observation, by a fit to the data without its fold
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyrodrop.data import Data, Dataset
from pyrodrop.networks.mixing import mixes_examples
from pyrodrop.prediction.prediction import Predicts
from pyrodrop.scaling import Standardize
from pyrodrop.training.fit import fit
from pyrodrop.training.replicates import Replicates

_ROWS = 1000  # predicted at a time


def log_density(run: Predicts, data: Data, num_samples: int = 1000, *, seed: int = 0) -> Tensor:
    """ln p(y_n | x_n) of every observation, in nats and the units of y: ``[N]``, in float64.

    Args:
        run: a fit, replicates as an ensemble, a Gaussian process, anything with their `predict`.
        data: observations that it was not trained on.
        num_samples: functions drawn; a Gaussian process of real y needs none. Too few are too low, by about the relative
            variance of the draws' densities over twice their number.
        seed: of the draws.
    """
    data = Dataset.of(data)
    if hasattr(run, "log_density"):
        found: Tensor = run.log_density(data)
        return found.detach().cpu().double()
    rows = len(data) if _together(run, data) else _ROWS
    parts = []
    for first in range(0, len(data), rows):
        some = data.rows(slice(first, first + rows))
        parts.append(run.predict(some.x, num_samples, seed=seed).log_density(some.y))
    return torch.cat(parts).detach().cpu().double()


def _together(run: Predicts, data: Dataset) -> bool:
    """Whether the predictions at some points depend on the others."""
    one = run[0] if isinstance(run, Replicates) else run
    return mixes_examples(getattr(one, "model", None), data.x)


@dataclass(frozen=True)
class KFold:
    """Cross-validated log density, in nats for the observations held out.

    Attributes:
        elpd, se: the sum over the observations and its standard error.
        pointwise: by observation, ``[N]``; NaN for those that were never held out.
        folds: which fold held an observation out, ``[N]``; -1 for none.
        fits: one a fold.
    """

    elpd: float
    se: float
    pointwise: Tensor
    folds: Tensor
    fits: Replicates

    def __str__(self) -> str:
        held = int((self.folds >= 0).sum())
        return f"{self.elpd:.4g} +- {self.se:.2g} nats ({held} observations, {len(self.fits)} folds)"


def kfold(
    model: Any,
    guide: Any,
    data: Data,
    k: int = 5,
    *,
    num_samples: int = 1000,
    seed: int = 0,
    **settings: Any,
) -> KFold:
    """Cross-validation in k folds, trained together as replicates.

    Folds are random and of equal size, floor(N / k); the N mod k observations left over are in every training set. Data
    that carry a standardisation get that of each training set.

    Args:
        model, guide: as of `pyrodrop.fit`. Every fold starts from new weights of its own (``starts="new"``), unless
            `settings` say ``starts="model"``: weights that have seen the data know the rows that are left out.
        data: all of it.
        k: number of folds, from 2 to N.
        num_samples: functions drawn for each fold's prediction.
        seed: of the folds, the fits and the draws.
        settings: of `pyrodrop.fit`: steps, lr, batch_size, estimator ...

    Raises:
        ValueError: k out of range, or a network whose examples see each other, as the nodes of a graph do.
    """
    data = Dataset.of(data)
    if mixes_examples(model, data.x):
        raise ValueError(
            "folds are rows that are left out, but in this network the output of one example depends on others, as in a "
            "graph: to hold observations out, leave them out of a likelihood of one's own"
        )
    if not 2 <= k <= len(data):
        raise ValueError(f"k is the number of folds and must lie in 2 ... {len(data)}, the observations; got {k}")
    folds = _folds(len(data), k, seed)
    sets = [_subset(data, folds != number) for number in range(k)]
    fits = fit(model, guide, sets, replicates=k, seed=seed, **{"starts": "new", **settings})
    if fits.failed:
        raise FloatingPointError(f"folds {sorted(fits.failed)} stopped with a loss that is not finite")
    pointwise = torch.full((len(data),), math.nan, dtype=torch.float64)
    for number, one in enumerate(fits):
        held = folds == number
        pointwise[held] = log_density(one, data.rows(held), num_samples, seed=seed)
    known = pointwise[folds >= 0]
    se = float(known.std() * math.sqrt(len(known)))
    return KFold(float(known.sum()), se, pointwise, folds, fits)


def _folds(count: int, k: int, seed: int) -> Tensor:
    """The fold of every observation, -1 for the remainder."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    folds = torch.full((count,), -1)
    folds[order[: count // k * k]] = torch.arange(k).repeat_interleave(count // k)
    return folds


def _subset(data: Dataset, chosen: Tensor) -> Dataset:
    """Some rows, where the whole has a standardisation with that of these rows."""
    part = data.rows(chosen)
    return Dataset(
        part.x,
        part.y,
        inputs=None if data.inputs is None else Standardize.of(part.x),
        targets=None if data.targets is None else Standardize.of(part.y),
    )
