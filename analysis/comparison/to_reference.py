"""Distances of predictions from those of a reference, such as samples of the exact posterior, at the same points.

    total_variation   of the predictive distribution of y at a point, mean over points            (`total_variation`)
    agreement         share of points with the same most probable class                           classes only
    wasserstein       W_2 of f at a point, in the units of y, mean over points                    (`wasserstein`)
    spread            standard deviation of f over that of the reference, median over points      1 if equal (`spreads`)
    covariance        relative distance of the covariance matrices of f over points               (`between_points`)
    correlation       root mean square difference of the correlations of f at two points          (`between_points`)
    to_reference      ln p(y_n) - ln p_ref(y_n), mean over observations, with its paired standard error
    sign_probability  Phi(|to_reference| / s.e.)

Total variation and agreement are those of Wilson et al. (2022), https://proceedings.mlr.press/v176/wilson22a.html, who use
the Wasserstein-2 distance of samples of y for regression. Here it is the distance of f: noise in both sets of samples would
increase the Monte Carlo error and hide differences of the posteriors, and total variation already compares distributions of
y. The values are not comparable with the leaderboard of their competition, whose released code computes W_1 of y: function
``w2_distance`` of metrics.py in https://github.com/izmailovpavel/neurips_bdl_starter_kit calls SciPy's
``wasserstein_distance``. For classes, f are the logits minus their mean over the classes.

``sign_probability`` is the probability, under the normal approximation of the mean with a flat prior, that the mean over the
population of observations has the sign of this one (Sivula, Magnusson, Matamoros & Vehtari 2020,
https://arxiv.org/abs/2008.10296). It says nothing about other training sets, and is rough below about 100 observations.

Even two sets of samples from the same distribution have distances above 0. For comparison, the table therefore also has the
distances between two independent sets from the reference. The samples of fit and reference are independent and equally many.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Categorical

from pyrodrop.analysis.comparison.between_points import correlation_distance, covariance_distance, without_shift
from pyrodrop.analysis.comparison.predicts import Predicts
from pyrodrop.analysis.comparison.spreads import spread_ratio
from pyrodrop.analysis.comparison.total_variation import class_probabilities, coarse_points, total_variation
from pyrodrop.analysis.comparison.wasserstein import wasserstein
from pyrodrop.likelihoods import elements
from pyrodrop.prediction.prediction import Prediction

DISTANCES = ("wasserstein", "covariance", "correlation", "total_variation", "agreement")
COLUMNS = ("wasserstein", "spread", *DISTANCES[1:])  # columns of the table
# added to the fits' seed for independent samples; large, because the members of an ensemble use consecutive seeds
_OTHER_SEED = 7_368_787


@runtime_checkable
class KeepsDraws(Protocol):
    """A reference, a dataclass, with stored draws of one or more chains: another seed does not give other draws.

    Attributes:
        samples, stats: values and statistics by name, ``[chains, draws, ...]``.
    """

    samples: dict[str, Tensor]
    stats: dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Distances:
    """Distances of one prediction from the reference.

    Attributes:
        values: distances by their name in `COLUMNS`; None for a distance that does not exist.
    """

    values: dict[str, float | None]
    notes: list[str]


def independent_of_fits(reference: Predicts, x: Any, num_samples: int, seed: int) -> Prediction:
    """The prediction of the reference, with samples that are independent of those of fits with this `seed`."""
    return reference.predict(x, num_samples, seed=seed + _OTHER_SEED)


def two_of(
    reference: Predicts, x: Any, num_samples: int, seed: int, first: Prediction | None = None
) -> tuple[Prediction, Prediction]:
    """Two predictions of the reference with independent samples.

    For stored draws they use the first and the second half of the chains, since draws within a chain are dependent, or the
    halves of a single chain; each has at most as many samples as a half has draws. Otherwise `first` is used as one of them.
    """
    if isinstance(reference, KeepsDraws):
        chains, draws = next(iter(reference.stats.values())).shape[:2]
        axis, size = (0, chains) if chains > 1 else (1, draws)
        count = max(1, min(num_samples, size // 2 * (draws if axis == 0 else 1)))
        parts = (_half(reference, axis, first, size // 2) for first in (0, size - size // 2))
        one, other = (half.predict(x, count, seed=seed + _OTHER_SEED) for half in parts)
        return one, other
    if first is None:
        first = reference.predict(x, num_samples, seed=seed + 2 * _OTHER_SEED)
    return first, reference.predict(x, num_samples, seed=seed + 3 * _OTHER_SEED)


def _half(reference: Any, axis: int, first: int, size: int) -> Any:
    """The reference with a part of its chains (axis 0) or of its draws (axis 1)."""

    def some(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.narrow(axis, first, size) for name, value in values.items()}

    return dataclasses.replace(reference, samples=some(reference.samples), stats=some(reference.stats))


def distances(name: str, fit: Prediction, reference: Prediction) -> Distances:
    """The values of all `COLUMNS` for the prediction called `name`.

    Raises:
        ValueError: the two predictions are not of the same kind of y at the same points.
    """
    _check(name, fit, reference)
    notes: list[str] = []
    values: dict[str, float | None] = dict.fromkeys(COLUMNS)
    classes, its_classes = class_probabilities(fit), class_probabilities(reference)
    try:
        values["total_variation"] = float(total_variation(fit, reference).mean())
        coarse = coarse_points(fit, reference)
        if coarse:
            notes.append(
                f"the total variation of {name} is a lower bound at {coarse} points, where the noise is less than 1/2000 of "
                "the range of f"
            )
    except TypeError as error:
        notes.append(f"no total variation of {name}: {error}")
    f, g = fit.f, reference.f
    if classes is not None and its_classes is not None:
        values["agreement"] = float((classes.argmax(-1) == its_classes.argmax(-1)).double().mean())
        if isinstance(elements(fit.distribution), Categorical) and f.shape[-1] > 1:  # one: of ordered classes
            f, g = without_shift(f), without_shift(g)
    values["wasserstein"] = float(wasserstein(f, g).mean())
    median = float(spread_ratio(f, g).nanquantile(0.5))
    values["spread"] = None if math.isnan(median) else median
    if not (fit.joint and reference.joint):
        notes.append(f"no covariance of {name}: its samples, or those of the reference, are not joint over the points")
    elif min(len(f), len(g)) < 2:
        notes.append(f"no covariance of {name}: one sample has none")
    else:
        values["covariance"] = covariance_distance(f, g)
        values["correlation"] = correlation_distance(f, g)
        if values["covariance"] is None:
            notes.append(f"no covariance distance of {name}: f of the reference does not vary")
        elif values["correlation"] is None:
            notes.append(f"no correlation distance of {name}: there is one point, or f does not vary at some of them")
    return Distances(values, notes)


def log_density_difference(values: Tensor, reference: Tensor) -> dict[str, float | None]:
    """Mean of the differences of log densities ``[N]``, its paired standard error, and the probability of its sign."""
    difference = values.double() - reference.double()
    mean = float(difference.mean())
    se = float(difference.std() / math.sqrt(len(difference))) if len(difference) > 1 else None
    return {"to_reference": mean, "to_reference_se": se, "sign_probability": sign_probability(mean, se)}


def sign_probability(mean: float, se: float | None) -> float | None:
    """Phi(|mean| / se), from 1/2 to 1; None without a standard error, or if every difference is 0."""
    if se is None or (se == 0 and mean == 0):
        return None
    return 1.0 if se == 0 else float(torch.special.ndtr(torch.tensor(abs(mean) / se, dtype=torch.float64)))


def _check(name: str, fit: Prediction, reference: Prediction) -> None:
    """Raise a ValueError unless both predictions are of the same kind of y at the same points."""
    kinds: list[Callable[[Prediction], Any]] = [
        lambda p: tuple(p.distribution.batch_shape[1:] + p.distribution.event_shape),
        lambda p: tuple(p.f.shape[1:]),
        lambda p: None if (q := class_probabilities(p)) is None else q.shape[-1],
    ]
    if all(kind(fit) == kind(reference) for kind in kinds):
        return

    def words(p: Prediction) -> str:
        y = list(p.distribution.batch_shape[1:] + p.distribution.event_shape)
        return f"y {y} ({type(elements(p.distribution)).__name__}) and f {list(p.f.shape[1:])}"

    raise ValueError(
        f"a fit and the reference must predict the same kind of y; at these points {name!r} predicts {words(fit)}, the "
        f"reference {words(reference)}"
    )
