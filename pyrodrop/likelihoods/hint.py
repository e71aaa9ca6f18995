"""A hint that whole numbers are hardly Gaussian, from y alone.

    gain = mean_n [ln NB(y_n; m, s^2) - ln P(y_n - 1/2 < z < y_n + 1/2)],   z ~ N(m, s^2)

NB is the negative binomial distribution with the mean m and the variance s^2 of y. For Poisson counts the Gaussian
probability is within .1 nats of Poisson's. x is not used: y that is skewed because of a skewed x is hinted at, too, so that
it is a hint and no choice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import NegativeBinomial

_FEWEST = 20  # rows
_LARGEST = 1e9  # count
_GAIN, _ERRORS = 0.1, 4.0  # nats per value of y, standard errors of their mean


def hint(y: Tensor) -> str | None:
    """A sentence that names a likelihood under which counts ``[N]`` or ``[N, D]`` are likelier than under a Gaussian, or
    None.

    It is for all columns, and gains at least .1 nats and four standard errors per value. Rows with NaN are left out. None
    for fewer than 20 rows, for infinite values, and for y that does not vary.
    """
    y = y.detach().cpu().double()
    y = y[:, None] if y.dim() == 1 else y.flatten(1)
    y = y[~y.isnan().any(1)]
    if (
        len(y) < _FEWEST
        or not bool(((y == y.round()) & (y >= 0) & (y < _LARGEST)).all())
        or bool((y == y[0]).all(0).any())
    ):
        return None
    if float(y.max()) == 1:
        return "y are 0 and 1, whose distribution is no Gaussian: take likelihoods.Bernoulli()"
    mean, variance = y.mean(0), y.var(0, correction=0)
    if not bool((variance > mean).all()):
        return None
    dispersion = (variance - mean) / mean.square()
    counted = NegativeBinomial(1 / dispersion, logits=(dispersion * mean).log()).log_prob(y)
    near = -(y - mean).abs()  # the lower tail, which does not round to 1
    upper, lower = (torch.special.log_ndtr((near + side) / variance.sqrt()) for side in (0.5, -0.5))
    gains = (counted - upper - (-(lower - upper).exp()).log1p()).mean(1)
    gain, error = float(gains.mean()), float(gains.std()) / math.sqrt(len(y))
    if gain < max(_GAIN, _ERRORS * error):
        return None
    return (
        f"y are whole numbers from {y.min():g} to {y.max():g}, and without x likelier under likelihoods.NegativeBinomial() "
        f"than under a Gaussian, by {gain:.2g} nats per value: compare both"
    )
