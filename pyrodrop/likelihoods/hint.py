"""A hint that a likelihood of counts or binary values suits y better than a Gaussian, from y alone.

    gain = mean_n [ln NB(y_n; m, s^2) - ln P(y_n - 1/2 < z < y_n + 1/2)],   z ~ N(m, s^2)

NB is the negative binomial distribution with the mean m and the variance s^2 of y. For Poisson counts the Gaussian
probability is within .1 nats of Poisson's. x is not used, so a y that is skewed only because x is skewed also gets a hint:
it is advice to compare, not a choice.
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
    """A sentence that names a likelihood for whole numbers y ``[N]`` or ``[N, D]``, or None.

    `Bernoulli` is named if all y are 0 and 1; the negative binomial if the variance of each column exceeds its mean and the
    gain, averaged over columns, is at least .1 nats per value and four standard errors. Rows with NaN are left out. The hint
    is None for other values, for fewer than 20 rows, and if a column is constant.
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
