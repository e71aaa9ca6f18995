"""Intervals and sets that contain a new observation with the stated probability, however good or bad the model is.

    score        s_n = max(lo_n - y_n, y_n - hi_n)      numbers; lo, hi the predictive interval
                 s_n = 1 - p(y_n | x_n)                 class labels
    Q            the k-th smallest of n scores,  k = ceil((n + 1) level)
    interval     [lo - Q, hi + Q],   set   {c: 1 - p(c | x) <= Q}

If held-out rows and a new row are exchangeable, the new y lies inside with probability k / (n + 1) >= level, on average
over rows and held-out sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.distributions import Categorical

from pyrodrop.checks import Real, checked, instance
from pyrodrop.likelihoods import elements
from pyrodrop.prediction.prediction import Prediction

Level = Annotated[float, Real("the probability that a new observation lies inside", above=0, below=1)]


@dataclass(frozen=True)
class Conformal:
    """Held-out predictions and observations; `conformal` makes it."""

    held_out: Prediction
    y: Tensor

    @checked
    def interval(self, prediction: Prediction, level: Level = 0.9) -> tuple[Tensor, Tensor]:
        """The ends of an interval for every element of y, ``[N, ...]`` each. An interval can be empty (low above high).

        Args:
            prediction: prediction of the same run at new points.

        Raises:
            ValueError: there are too few held-out rows for this level; the predictions have another shape.
            TypeError: y are class labels, see `sets`; `prediction` is no `Prediction`.
        """
        low, high = (end.double() for end in self.held_out.interval(level))
        reach = self._reach(torch.maximum(low - self.y, self.y - high), prediction, level)
        low, high = prediction.interval(level)
        return low - reach, high + reach

    @checked
    def sets(self, prediction: Prediction, level: Level = 0.9) -> Tensor:
        """Which classes are in the set of every label, bool ``[N, ..., classes]``; a set can be empty if no class is likely.

        The arguments and errors are those of `interval`; y must be class labels.
        """
        if not isinstance(elements(self.held_out.distribution), Categorical):
            raise TypeError("prediction must be of class labels for sets; got one of numbers: see interval")
        scores = 1 - self.held_out.mean.double().gather(-1, self.y[..., None])[..., 0]
        return self._reach(scores, prediction, level)[..., None] >= 1 - prediction.mean.double()

    def _reach(self, scores: Tensor, prediction: Prediction, level: float) -> Tensor:
        """Q, of the shape of one observation."""
        instance(prediction, Prediction, "prediction", "a Prediction, such as run.predict(x)")
        of_y, new = (p.distribution.batch_shape[2:] + p.distribution.event_shape for p in (self.held_out, prediction))
        if new != of_y or type(elements(prediction.distribution)) is not type(elements(self.held_out.distribution)):
            raise ValueError(f"prediction must be one of the same run, of a y of shape {list(of_y)}; got {list(new)}")
        count, least = len(scores), math.ceil(level / (1 - level) - 1e-9)
        if count < least:
            raise ValueError(f"level={level:g} needs at least {least} rows; got {count}")
        return scores.kthvalue(math.ceil((count + 1) * level - 1e-9), 0).values.to(prediction.f.device)


@checked
def conformal(prediction: Prediction, y: Any) -> Conformal:
    """Make intervals, or sets of classes, that cover new observations with a guaranteed probability.

    References:
        Vovk, Gammerman & Shafer (2005), Algorithmic Learning in a Random World.
        Romano, Patterson & Candes (2019), Conformalized Quantile Regression, https://arxiv.org/abs/1905.03222: numbers.
        Sadinle, Lei & Wasserman (2019), Least Ambiguous Set-Valued Classifiers, https://arxiv.org/abs/1609.00451: labels.

    Args:
        prediction: prediction of a run at points that were used neither for training nor for choosing the model.
        y: the observations there, ``[N, ...]``, or class labels.

    Raises:
        ValueError: y does not fit the prediction.
        TypeError: `prediction` is no `Prediction`.

    Example:
        >>> import torch, pyro.distributions as dist, pyrodrop
        >>> y = torch.arange(-9.0, 10.0)[:, None]
        >>> f = torch.zeros(1, 19, 1)
        >>> held_out = pyrodrop.Prediction(f, dist.Normal(f, 0.1).to_event(1))  # far too sure
        >>> low, high = pyrodrop.metrics.conformal(held_out, y).interval(held_out, 0.9)
        >>> high[0]  # the 18th of 19 absolute values
        tensor([9.], dtype=torch.float64)
    """
    instance(prediction, Prediction, "prediction", "a Prediction, such as run.predict(x)")
    return Conformal(prediction, prediction.aligned(y).clone())
