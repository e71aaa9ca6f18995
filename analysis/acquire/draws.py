"""The draws of a prediction from which information is computed: class probabilities, or Gaussians of one real y.

Classes are those of `Categorical`, and of `Bernoulli` with one target, which has two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal

from pyrodrop.checks import all_finite, instance
from pyrodrop.likelihoods import elements
from pyrodrop.prediction.prediction import Prediction

_NUMBERS = 2**22  # double-precision values at a time
_LEAST_NOISE = 1e-12  # as a share of the variance of y; less noise is lost to rounding in float64


@dataclass(frozen=True)
class Classes:
    """Logits of S draws at N points, ``[S, N, C]``."""

    logits: Tensor

    def log_probabilities(self, rows: Any) -> Tensor:
        """ln p(c | f_s(x_n)) at some points, ``[S, n, C]`` in float64."""
        return self.logits[:, rows].double().log_softmax(-1)

    def blocks(self, numbers: int = 0) -> Iterator[tuple[slice, Tensor]]:
        """Slices of points, and p(c | f_s(x_n)) there, ``[S, n, C]``; the caller needs `numbers` more values per point."""
        for rows in blocks(self.logits.shape[1], max(numbers, self.logits[:, 0].numel())):
            yield rows, self.log_probabilities(rows).exp()


@dataclass(frozen=True)
class Gaussians:
    """Means and standard deviations of y for S draws at N points, ``[S, N]`` each in float64."""

    loc: Tensor
    scale: Tensor

    def moments(self) -> tuple[Tensor, Tensor]:
        """A ``[S, N]`` and v ``[N]``, where A^T A is the covariance of E[y | f] over draws, and v the mean noise variance.

        Raises:
            ValueError: noise is less than 1e-6 of the standard deviation of y.
        """
        centred = (self.loc - self.loc.mean(0)) / len(self.loc) ** 0.5
        noise = self.scale.square().mean(0)
        share = noise / (noise + centred.square().sum(0))
        if float(share.min()) < _LEAST_NOISE:
            raise ValueError(
                "prediction must have noise of at least 1e-6 of the standard deviation of y, or any label tells all about "
                f"f; got {float(share.min()) ** 0.5:.2g} at row {int(share.argmin())}"
            )
        return centred, noise


def draws_of(prediction: Any, needed_by: str, *, least: int = 2, joint: bool = False) -> Classes | Gaussians:
    """The draws of a prediction, checked for the function `needed_by`.

    Args:
        least, joint: the smallest number of draws, and whether every draw must be a function, joint over the points.

    Raises:
        TypeError: `prediction` is no `Prediction`, or not of one label or one real y with Gaussian noise.
        ValueError: it has fewer than `least` draws, draws that are independent per point, or NaN or infinite parameters.
    """
    instance(prediction, Prediction, "prediction", "a Prediction, as predict(...) returns it")
    distribution = prediction.distribution
    base, draws = elements(distribution), distribution.batch_shape[0]
    single = distribution.batch_shape.numel() == draws * prediction.f.shape[1] and distribution.event_shape.numel() == 1
    if not single or not isinstance(base, Categorical | Bernoulli | Normal):
        raise TypeError(
            f"{needed_by} needs a prediction of one label per row (Categorical, or Bernoulli of one target), or of "
            f"one real y with Gaussian noise; got {type(base).__name__} with y of shape "
            f"{[*distribution.batch_shape[2:], *distribution.event_shape]} in every row"
        )
    if draws < least:
        raise ValueError(
            f"{needed_by} needs a prediction with at least {least} draws of the function, which it compares; got a "
            f"distribution of y with {draws} component"
        )
    if joint and not prediction.joint:
        raise ValueError(
            f"{needed_by} needs a prediction whose draws are functions, joint over the points, as of a fit; got "
            "one with joint=False, whose draws are independent at every point"
        )
    shape = (draws, prediction.f.shape[1])
    with torch.no_grad():
        if isinstance(base, Normal):
            for values in (base.loc, base.scale):
                all_finite(values, "the distribution of prediction")
            loc, scale = (values.expand(base.batch_shape).reshape(shape).double() for values in (base.loc, base.scale))
            return Gaussians(loc, scale)
        logits = base.logits.detach()
        all_finite(logits, "the logits of prediction")
        if isinstance(base, Bernoulli):
            yes = logits.reshape(shape)
            logits = torch.stack((torch.zeros_like(yes), yes), -1)
        return Classes(logits)


def blocks(count: int, numbers: int) -> Iterator[slice]:
    """Slices that cover `count` points, limited in size, where each point needs `numbers` values."""
    size = max(1, _NUMBERS // numbers)
    yield from (slice(first, min(first + size, count)) for first in range(0, count, size))
