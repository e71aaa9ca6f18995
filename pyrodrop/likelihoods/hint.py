"""A hint that y is hardly Gaussian, from y alone.

    gain = mean_n [ln p(y_n) - ln N(y_n; m, s^2)]       m, s the mean and standard deviation of y

p is a negative binomial distribution with the same mean and variance, or a log-normal one with those of ln y. The Gaussian
probability of a whole number is that of the interval of length 1 around it, which is within .1 nats of Poisson's for Poisson
counts. x is not used: y that is skewed because of a skewed x is hinted at, too, so that it is a hint and no choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import LogNormal, NegativeBinomial, Normal

_FEWEST = 20  # rows
_LARGEST = 1e9  # count
_GAIN, _ERRORS = 0.1, 4.0  # nats per value of y, standard errors of their mean


def hint(y: Tensor) -> str | None:
    """A sentence that names a likelihood under which y ``[N]`` or ``[N, D]`` is likelier than under a Gaussian, or None.

    One likelihood is for all columns. It is named if it gains at least .1 nats and four standard errors per value. Rows with
    NaN are left out. None for fewer than 20 rows, for infinite values, and for y that does not vary.
    """
    y = y.detach().cpu().double()
    y = y[:, None] if y.dim() == 1 else y.flatten(1)
    y = y[~y.isnan().any(1)]
    if len(y) < _FEWEST or not bool(y.isfinite().all()) or bool((y == y[0]).all(0).any()):
        return None
    whole = bool(((y == y.round()) & (y >= 0) & (y < _LARGEST)).all())
    if whole and float(y.max()) == 1:
        return "y are 0 and 1, whose distribution is no Gaussian: take likelihoods.Bernoulli()"
    gaussian = _gaussian(y, whole)
    gains = {name: (density - gaussian).mean(1) for name, density in _densities(y, whole)}
    if not gains:
        return None
    best = max(gains, key=lambda name: float(gains[name].mean()))
    gain, error = float(gains[best].mean()), float(gains[best].std()) / math.sqrt(len(y))
    if gain < max(_GAIN, _ERRORS * error):
        return None
    kind = "positive and skewed" if best == "LogNormal" else f"whole numbers from {y.min():g} to {y.max():g}"
    beside = ", or train on ln y" if best == "LogNormal" else ""
    return (
        f"y are {kind}, and without x likelier under likelihoods.{best}() than under a Gaussian, by {gain:.2g} nats per "
        f"value: compare both{beside}"
    )


def _gaussian(y: Tensor, whole: bool) -> Tensor:
    """Log densities of values, or log probabilities of whole numbers, ``[N, D]``."""
    mean, sd = y.mean(0), y.std(0, correction=0)
    if not whole:
        return Normal(mean, sd).log_prob(y)
    near = -(y - mean).abs()  # the lower tail, which does not round to 1
    upper, lower = (torch.special.log_ndtr((near + side) / sd) for side in (0.5, -0.5))
    return upper + (-(lower - upper).exp()).log1p()


def _densities(y: Tensor, whole: bool) -> Iterator[tuple[str, Tensor]]:
    """The likelihoods that y is possible under, and log densities of its values, ``[N, D]``."""
    mean, variance = y.mean(0), y.var(0, correction=0)
    if whole and bool((variance > mean).all()):
        dispersion = (variance - mean) / mean.square()
        yield "NegativeBinomial", NegativeBinomial(1 / dispersion, logits=(dispersion * mean).log()).log_prob(y)
    if bool((y > 0).all()):
        yield "LogNormal", LogNormal(y.log().mean(0), y.log().std(0, correction=0)).log_prob(y)
