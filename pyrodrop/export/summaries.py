"""Summaries of a predictive mixture as graphs of elementary operations.

    mean            mean_t E[y | f_t]
    sd              (mean_t Var[y | f_t] + var_t E[y | f_t])^(1/2)
    probabilities   mean_t P(y = k | f_t)                               of class labels, or of y = 1
    quantiles       y_q with mean_t Phi((y_q - mu_t) / s_t) = q         of Gaussian or log-normal y
    draws           f_t

They equal those of `Prediction`. Quantiles are searched between the smallest and the largest quantile of the components, in
an interval that shrinks to a ninth in every step. The error function is computed in float32, which gives quantiles an error
of 6e-8 divided by the density: far out in a tail it is large, and they differ from `Prediction.quantile`.
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

_PARTS, _STEPS = 8, 9  # values that are tried in a step, and number of steps: 9^9 is 4e8


def possible(distribution: Any) -> tuple[Output, ...]:
    """The summaries that exist for a distribution of y."""
    of_element = elements(distribution)
    if isinstance(of_element, Categorical):
        return "probabilities", "draws"
    if isinstance(of_element, Bernoulli):
        return "mean", "sd", "probabilities", "draws"
    return (
        ("mean", "sd", "quantiles", "draws") if isinstance(of_element, Normal | LogNormal) else ("mean", "sd", "draws")
    )


def summaries(
    f: Tensor, distributions: Sequence[Any], outputs: Sequence[Output], levels: Sequence[float]
) -> dict[str, Tensor]:
    """The `outputs` by name, in their order.

    Args:
        f: the functions, ``[S, N, ...]``.
        distributions: for each posterior, the distribution of y given its functions, batch ``[S_r, N]``; the S_r sum to S.
        outputs: names of the summaries, among those of `possible`.
    """
    values = {"draws": f}
    if {"mean", "sd", "probabilities"} & set(outputs):
        means, variances = zip(*(component_moments(one) for one in distributions), strict=True)
        mean, variance = torch.cat(means), torch.cat(variances)
        values["mean"] = values["probabilities"] = mean.mean(0)
        values["sd"] = (variance.mean(0) + mean.var(0, correction=0)).sqrt()
    if "quantiles" in outputs:
        values["quantiles"] = _quantiles(distributions, levels)
    return {name: values[name] for name in outputs}


def _quantiles(distributions: Sequence[Any], levels: Sequence[float]) -> Tensor:
    """Quantiles ``[Q, N, ...]`` of the mixture of Gaussian or log-normal components."""
    components: list[Any] = [elements(element) for element in distributions]
    loc, scale = (
        torch.cat([element.loc for element in components]),
        torch.cat([element.scale for element in components]),
    )
    # made from plain numbers, so that they become constants of the graph
    each = loc.new_tensor([(NormalDist().inv_cdf(q), 2 * q - 1) for q in levels])
    z, wanted = each.T.reshape(2, -1, *(1,) * (loc.dim() - 1))
    ends = loc + scale * z[:, None]
    low, width = ends.amin(1), ends.amax(1) - ends.amin(1)
    places = loc.new_tensor([k / (_PARTS + 1) for k in range(1, _PARTS + 1)]).reshape(-1, *(1,) * low.dim())
    for _ in range(_STEPS):
        y = low + width * places
        probabilities = torch.erf(((y[:, :, None] - loc) / (math.sqrt(2) * scale)).float()).mean(
            2
        )  # onnxruntime has no other
        below = (probabilities < wanted).to(loc.dtype).sum(0)  # how many of these values are below the quantile
        low, width = low + width * below / (_PARTS + 1), width / (_PARTS + 1)
    y = low + width / 2
    return y.exp() if isinstance(components[0], LogNormal) else y
