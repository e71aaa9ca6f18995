"""The spread of f of every posterior over that of the reference, at the data, between them, away, and along a line.

Ratios of single fits are taken over all points and all fits together, without points at which the reference does not vary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

from pyrodrop.analysis.comparison.between_points import without_shift
from pyrodrop.analysis.comparison.spreads import spread
from pyrodrop.analysis.comparison.to_reference import independent_of_fits, two_of
from pyrodrop.analysis.lab.experiments.references.places import line, places
from pyrodrop.data import Dataset
from pyrodrop.likelihoods import elements
from pyrodrop.prediction.prediction import Prediction, Predicts
from pyrodrop.training.replicates import Replicates

PLACES = ("at", "between", "away")
_DIGITS = 4  # significant digits of the curves


def spread_ratios(
    fits: Mapping[str, Replicates], train: Dataset, reference: Predicts, *, num_samples: int, seed: int
) -> dict[str, Any]:
    """Median and range of the ratios by posterior and place (``places``), and the curves along the line (``line``)."""
    sets, along = places(train), line(train)
    points = torch.cat([*sets.values(), along.x])
    sizes = [len(points_of_set) for points_of_set in (*sets.values(), along.x)]
    exact = _spread(independent_of_fits(reference, points, num_samples, seed))
    first, second = (_spread(half) for half in two_of(reference, points, num_samples, seed))
    ratios = {}
    for name, many in fits.items():
        ratios[name] = torch.stack([_spread(fit.predict(points, num_samples, seed=seed)) for fit in many]) / exact
        ratios[f"ensemble {name}"] = _spread(many.predict(points, num_samples, seed=seed))[None] / exact
    ratios["reference"] = (first / second)[None]
    split = {name: values.split(sizes, 1) for name, values in ratios.items()}
    return {
        "places": {name: dict(zip(sets, map(_summary, parts), strict=False)) for name, parts in split.items()},
        "line": {
            "t": _rounded(along.t),
            "data": _rounded(along.data),
            "exact": _rounded(exact[-len(along.t) :]),
            **{name: _rounded(parts[-1].mean(0)) for name, parts in split.items()},
        },
    }


def _spread(prediction: Prediction) -> Tensor:
    classes = isinstance(elements(prediction.distribution), Categorical)
    return spread(without_shift(prediction.f) if classes else prediction.f).cpu()


def _summary(ratio: Tensor) -> dict[str, float | None]:
    """Median and range of the finite ratios."""
    finite = ratio[ratio.isfinite()]
    if not len(finite):
        return dict.fromkeys(("median", "lowest", "highest"))
    return {"median": float(finite.quantile(0.5)), "lowest": float(finite.min()), "highest": float(finite.max())}


def _rounded(values: Tensor) -> list[float | None]:
    return [float(f"{value:.{_DIGITS}g}") if value == value else None for value in values.tolist()]
