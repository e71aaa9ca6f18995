"""Log density of held-out observations, with which any two posteriors can be compared.

log_density   ln p(y_n | x_n) = ln mean_s p(y_n | f_s(x_n))           a test set
kfold         the same for every observation, under a fit to the data without the observation's fold
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from pyrodrop.analysis.comparison.predicts import Predicts, prediction_of
from pyrodrop.checks import Count, Seed, checked, count, shown
from pyrodrop.data import Data, Dataset
from pyrodrop.models.network import mixes_examples
from pyrodrop.parts import Described
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.scaling import Standardize
from pyrodrop.training.replicates import Replicates, fit_replicates

_ROWS = 1000  # predicted at a time


@checked
def log_density(
    run: Predicts,
    data: Data,
    num_samples: Annotated[int, Count("the number of functions that are sampled")] = 1000,
    *,
    seed: Seed = 0,
) -> Tensor:
    """ln p(y_n | x_n) of every observation.

    Args:
        run: a fit, replicates (used as an ensemble), a Gaussian process, or another object with such a method `predict`.
        data: N held-out observations.
        num_samples: number of functions that are sampled; none for an object whose method ``log_density`` has no such
            argument. The estimate is biased downwards, by about the relative variance of the draws' densities divided by
            twice their number.
        seed: seed of the draws.

    Returns:
        ``[N]`` in float64, in nats; densities are in the units of y.

    Raises:
        TypeError: `run` has no method ``predict``, or an argument is of the wrong kind.
        ValueError: the data do not fit the model, or a number is out of range.
    """
    if not callable(getattr(run, "predict", None)):
        raise TypeError(
            f"run must have a method predict, as fits, replicates and Gaussian processes do; got {shown(run)}"
        )
    data = Dataset.of(data)
    if hasattr(run, "log_density"):
        return log_density_of(run, data, num_samples, seed)
    together = mixes_examples(
        getattr(_first_fit(run), "model", None), data.x
    )  # a prediction depends on the other points
    rows = len(data) if together else _ROWS
    parts = []
    for first in range(0, len(data), rows):
        some = data.rows(slice(first, first + rows))
        predicted = prediction_of(run, some.x, num_samples, seed=seed, needed_by="log_density")
        parts.append(log_density_of(run, some, num_samples, seed, predicted))
    return torch.cat(parts)


def log_density_of(run: Any, data: Dataset, num_samples: int, seed: int, predicted: Prediction | None = None) -> Tensor:
    """`log_density` by the run's method of this name, or from its prediction at these observations."""
    if hasattr(run, "log_density"):
        draws = {"num_samples": num_samples, "seed": seed}
        taken = draws.keys() & inspect.signature(run.log_density).parameters
        value: Tensor = run.log_density(data, **{name: draws[name] for name in taken})
    else:
        assert predicted is not None
        value = predicted.log_density(data.y)
    return value.detach().cpu().double()


def _first_fit(run: Any) -> Any:
    """The first fit of replicates, or the run itself."""
    return run[0] if isinstance(run, Replicates) else run


@dataclass(frozen=True, repr=False)
class KFold(Described):
    """Cross-validated log density, in nats.

    Attributes:
        elpd: the sum over the held-out observations.
        se: its standard error.
        pointwise: the log density of each observation, ``[N]``; NaN for those that were never held out.
        folds: the fold that left each observation out, ``[N]``; -1 for none.
        fits: one fit per fold.
    """

    elpd: float
    se: float
    pointwise: Tensor
    folds: Tensor
    fits: Replicates

    def describe(self) -> str:
        count_held_out = int((self.folds >= 0).sum())
        return f"{self.elpd:.4g} +- {self.se:.2g} nats ({count_held_out} observations, {len(self.fits)} folds)"


@checked
def kfold(
    model: Any,
    guide: Any,
    data: Data,
    k: int = 5,
    *,
    num_samples: Annotated[int, Count("the number of functions that are sampled")] = 1000,
    seed: Seed = 0,
    **settings: Any,
) -> KFold:
    """Cross-validation in k folds, which are trained together as replicates.

    Folds are random and have the same size, floor(N / k); the remaining N mod k observations are in every training set. If
    the data carry a standardisation, each fold uses the standardisation of its training set.

    Args:
        model: as in `pyrodrop.fit`. Every fold starts from new weights (``starts="new"``), unless `settings` contain
            ``starts="model"``: weights that were trained on all the data would leak the held-out rows.
        guide: as in `pyrodrop.fit`.
        data: all N observations.
        k: number of folds, from 2 to N.
        num_samples: number of functions that are sampled for each fold's prediction.
        seed: seed of the folds, the fits and the draws.
        settings: further arguments of `pyrodrop.fit`: steps, lr, batch_size, estimator ...

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: k is out of range, y has missing values, or examples depend on each other, such as the nodes of a graph.
        FloatingPointError: the loss of a fold is not finite.
    """
    data = Dataset.of(data)
    if mixes_examples(model, data.x):
        raise ValueError(
            "kfold leaves out rows of the data, but in this network the output of one example depends on the others, as in "
            "a graph: leave the held-out observations out in a likelihood of your own instead"
        )
    k = count(k, "k", "the number of folds", least=2, most=len(data))
    folds = _folds(len(data), k, seed)
    sets = [_subset(data, folds != number) for number in range(k)]
    fits = fit_replicates(model, guide, sets, count=k, seed=seed, **{"starts": "new", **settings})
    if fits.failed:
        raise FloatingPointError(f"the loss of folds {sorted(fits.failed)} is not finite")
    pointwise = torch.full((len(data),), math.nan, dtype=torch.float64)
    for number, fit in enumerate(fits):
        in_fold = folds == number
        pointwise[in_fold] = log_density(fit, data.rows(in_fold), num_samples, seed=seed)
    known = pointwise[folds >= 0]
    se = float(known.std() * math.sqrt(len(known)))
    return KFold(float(known.sum()), se, pointwise, folds, fits)


def _folds(count: int, k: int, seed: int) -> Tensor:
    """The fold of every observation, ``[N]``; -1 for the remainder."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    folds = torch.full((count,), -1)
    folds[order[: count // k * k]] = torch.arange(k).repeat_interleave(count // k)
    return folds


def _subset(data: Dataset, chosen: Tensor) -> Dataset:
    """Some rows of the data; if the data have a standardisation, with one computed from these rows."""
    rows = data.rows(chosen)
    return Dataset(
        rows.x,
        rows.y,
        inputs=None if data.inputs is None else Standardize.of_inputs(rows.x),
        targets=None if data.targets is None else Standardize.of(rows.y),
    )
