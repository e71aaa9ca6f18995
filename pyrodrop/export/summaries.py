"""Summaries of a predictive mixture as graphs of elementary operations.

    mean            mean_t E[y | f_t]
    sd              (mean_t Var[y | f_t] + var_t E[y | f_t])^(1/2)
    probabilities   mean_t P(y = k | f_t)                               of class labels, or of y = 1
    quantiles       y_q with mean_t Phi((y_q - mu_t) / s_t) = q         of Gaussian or log-normal y
    draws           f_t

They are those of `Prediction`. Quantiles are sought between the smallest and the largest of the components, in an interval
that becomes a ninth in every step, by probabilities of the nearer tail. The complementary error function is that of Press et
al. (2007), Numerical Recipes, 3rd edition, section 6.2.2, with a relative error of at most 1.2e-7 everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, LogNormal, Normal

from pyrodrop.likelihoods import elements
from pyrodrop.prediction.moments import component_moments

Output = Literal["mean", "sd", "quantiles", "probabilities", "draws"]
OUTPUTS: tuple[Output, ...] = get_args(Output)

_PARTS, _STEPS = 8, 9  # values that are tried at a time, and how often: 9^9 is 4e8
_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806,
    0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


def possible(distribution: Any) -> tuple[Output, ...]:
    """The summaries that a distribution of y has."""
    one = elements(distribution)
    if isinstance(one, Categorical):
        return "probabilities", "draws"
    if isinstance(one, Bernoulli):
        return "mean", "sd", "probabilities", "draws"
    return ("mean", "sd", "quantiles", "draws") if isinstance(one, Normal | LogNormal) else ("mean", "sd", "draws")


def summaries(
    f: Tensor, distributions: Sequence[Any], outputs: Sequence[Output], levels: Sequence[float]
) -> dict[str, Tensor]:
    """The `outputs` by name, in their order.

    Args:
        f: the functions, ``[S, N, ...]``.
        distributions: of y given the functions of each posterior, batch ``[S_r, N]``, S in all.
        outputs: which summaries; those of `possible`.
        levels: Q probabilities of the quantiles.
    """
    found = {"draws": f}
    if {"mean", "sd", "probabilities"} & set(outputs):
        means, variances = zip(*(component_moments(one) for one in distributions), strict=True)
        mean, variance = torch.cat(means), torch.cat(variances)
        found["mean"] = found["probabilities"] = mean.mean(0)
        found["sd"] = (variance.mean(0) + mean.var(0, correction=0)).sqrt()
    if "quantiles" in outputs:
        found["quantiles"] = _quantiles(distributions, levels)
    return {name: found[name] for name in outputs}


def _quantiles(distributions: Sequence[Any], levels: Sequence[float]) -> Tensor:
    """Quantiles ``[Q, N, ...]`` of the mixture of Gaussian or log-normal components."""
    ones: list[Any] = [elements(one) for one in distributions]
    loc, scale = torch.cat([one.loc for one in ones]), torch.cat([one.scale for one in ones])
    # of numbers, so that they are constants of a graph; quantiles above 1/2 are those of -y at 1 - q, negated
    each = [(NormalDist().inv_cdf(q), -1.0 if q > 0.5 else 1.0, min(q, 1 - q)) for q in levels]
    z, side, tail = loc.new_tensor(each).T.reshape(3, -1, *(1,) * (loc.dim() - 1))
    ends = loc + scale * z[:, None]
    low, width = ends.amin(1), ends.amax(1) - ends.amin(1)
    places = loc.new_tensor([k / (_PARTS + 1) for k in range(1, _PARTS + 1)]).reshape(-1, *(1,) * low.dim())
    for _ in range(_STEPS):
        y = low + width * places
        below = _erfc(side[:, None] * (loc - y[:, :, None]) / (math.sqrt(2) * scale)).mean(2) / 2
        up = (side * (tail - below) > 0).to(loc.dtype).sum(0)  # how many of these values are below the quantile
        low, width = low + width * up / (_PARTS + 1), width / (_PARTS + 1)
    y = low + width / 2
    return y.exp() if isinstance(ones[0], LogNormal) else y


def _erfc(z: Tensor) -> Tensor:
    size = z.abs()
    t = 1 / (1 + size / 2)
    series = torch.full_like(t, _ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        series = series * t + coefficient
    beyond = t * (series - size.square()).exp()
    return torch.where(z < 0, 2 - beyond, beyond)
