"""What `pyrodrop.fit` trains where no guide is given: of curves and small tables, the nearest to the exact posterior.

The scales of the priors and the noise maximise the evidence of the network's Gaussian process (`priors.from_gp`). The last
layer of real y has its exact posterior, and that of class labels Laplace's approximation of it (`guides.ExactLastLayer`).
Where more than two classes have more than 400 weights there, all weights have a `guides.MeanField`, by local noise.
"""

from __future__ import annotations

import logging
from typing import Any

from pyrodrop.checks import shown
from pyrodrop.data import Dataset
from pyrodrop.guides import ExactLastLayer, MeanField
from pyrodrop.guides.guide import Guide
from pyrodrop.likelihoods import Categorical, Gaussian
from pyrodrop.models import MLP
from pyrodrop.priors.fitted import ROWS, FittedPriors, from_gp
from pyrodrop.scaling import Standardize
from pyrodrop.training.settings import TrainingOptions

STEPS, STEPS_OF_LABELS, LR = 3000, 200, 1e-2
_WEIGHTS = 400  # of the last layer, whose precision matrix of several classes is factorised at each step
_log = logging.getLogger("pyrodrop")


def by_default(model: Any, data: Any, seed: int = 0) -> tuple[FittedPriors, Guide, Dataset]:
    """The network under fitted priors, its guide, and the data, standardised unless they are.

    Raises:
        TypeError: `data` is missing, or the model is no `models.MLP` under a `Gaussian` or `Categorical`.
        ValueError: there are more than 2,000 rows; as `priors.from_gp`.
    """
    if not isinstance(data, Dataset | tuple):
        raise TypeError(
            "data must be a Dataset or a pair (x, y), in fit(model, data) or fit(model, guide, data, steps=...); got "
            f"{shown(data)}"
        )
    if type(model) is not MLP or type(model.likelihood) not in (Gaussian, Categorical):
        raise TypeError(
            "guide must be given, fit(model, guide, data, steps=...), unless the model is a models.MLP under a "
            f"likelihoods.Gaussian or likelihoods.Categorical; got {shown(model)}"
        )
    data = Dataset.of(data)
    if len(data) > ROWS:
        raise ValueError(
            f"guide must be given for data of more than {ROWS:,} rows, such as guides.BernoulliDropout(model, 0.05): the "
            f"guide without one, guides.ExactLastLayer, computes all rows at each step; got {len(data):,} rows"
        )
    data = standardised(data)
    fitted = from_gp(model, data, seed=seed)
    weights = list(fitted.model.weight_sites().values())[-2:]
    large = len(weights[-1]) > 2 and sum(weight.numel() for weight in weights) > _WEIGHTS
    of_labels = isinstance(fitted.likelihood, Categorical)
    guide: Any = MeanField(fitted.model) if of_labels and large else ExactLastLayer(fitted.model)
    _log.info(
        "no guide was given: priors and noise of priors.from_gp, and guides.%s; dropout posteriors are given as "
        "fit(model, guides.BernoulliDropout(model, 0.05), data, steps=...)",
        guide.describe(),
    )
    return fitted, guide, data


def settings_for(guide: Any, steps: int | None, options: TrainingOptions) -> tuple[int, TrainingOptions]:
    """The number of steps and the options of a fit without a guide, unless the caller gives others."""
    if isinstance(guide, MeanField):
        return STEPS if steps is None else steps, {"lr": LR, "estimator": "local", **options}
    usual = STEPS_OF_LABELS if guide.of_labels else STEPS  # each has several of Newton's method
    return usual if steps is None else steps, {"lr": LR, **options}


def standardised(data: Dataset) -> Dataset:
    """The data with a standardisation of x, and of y if it is real, unless they have one already."""
    targets = data.targets or (Standardize.of(data.y) if data.y.is_floating_point() else None)
    return data.with_values(inputs=data.inputs or Standardize.of_inputs(data.x), targets=targets)
