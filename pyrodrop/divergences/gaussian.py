"""KL divergences of Gaussian posteriors from Gaussian priors with fixed or with optimal variances.

    p = N(mu, sigma^2)             KL = sum_ij [ln(2 pi sigma^2) + E_q(w_ij - mu)^2 / sigma^2] / 2 - H(q)
    p = N(0, lambda_g^2), ARD      KL = sum_ij ln(2 pi e lambda_g^2) / 2 - H(q),    lambda_g^2 = mean_g E_q[w^2]
                                      = sum_ij ln(1 + 1 / alpha_ij) / 2             if every weight has its own variance

The second is the minimum of the first over the variances. Titsias & Lazaro-Gredilla (2014),
https://proceedings.mlr.press/v32/titsias14.html, section 3.1; Kharitonov, Molchanov & Vetrov (2018), Variational Dropout
via Empirical Bayes, arXiv:1811.00596, eq. 8.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    Normal,
    register_kl,
)

from pyrodrop.distributions import (
    CutNormal,
    LowRankNormal,
    MultiplicativeNormal,
    PooledNormal,
    WeightDistribution,
)
from pyrodrop.distributions.multiplicative_normal import PrunedNormal
from pyrodrop.divergences.table import EXACT, Convention, pair, refuse


@pair(MultiplicativeNormal, Normal, EXACT)
@pair(LowRankNormal, Normal, EXACT)
def _from_normal(q: MultiplicativeNormal | LowRankNormal, p: Normal) -> Tensor:
    variance = p.scale**2
    moment = (q.mean - p.loc) ** 2 + q.variance
    return q.total_weights((torch.log(2 * math.pi * variance) + moment / variance) / 2) - q.entropy()


@pair(MultiplicativeNormal, PooledNormal, EXACT)
def _multiplicative_from_pooled(q: MultiplicativeNormal, p: PooledNormal) -> Tensor:
    if p.group == "weight":
        return q.total_weights(torch.nn.functional.softplus(-q.log_alpha).expand(q.loc.shape)) / 2
    return _from_pooled(q, p)


def _uncut_convention(q: CutNormal, p: PooledNormal) -> Convention:
    """Exact if weights share variances, since the moments of the cut distribution itself are then used."""
    most = math.log1p(math.exp(-q.threshold)) / 2
    detail = "an upper bound, counted as if nothing were cut"
    return Convention("approximate", detail, most) if p.group == "weight" else EXACT


pair(CutNormal, PooledNormal, _uncut_convention)(_multiplicative_from_pooled)


@pair(WeightDistribution, PooledNormal, EXACT)
def _from_pooled(q: WeightDistribution, p: PooledNormal) -> Tensor:
    best = p.pool(q.mean**2 + q.variance)
    return q.total_weights(torch.log(2 * math.pi * math.e * best).expand(q.loc.shape)) / 2 - q.entropy()


@register_kl(Independent, PooledNormal)
def _normal_from_pooled(q: Independent, p: PooledNormal) -> Tensor:
    if not isinstance(q.base_dist, Normal):
        raise NotImplementedError(f"KL({type(q.base_dist).__name__} || PooledNormal) is not implemented")
    loc, variance = q.base_dist.loc, q.base_dist.scale**2
    log_ratio = (
        torch.log1p(loc**2 / variance) if p.group == "weight" else torch.log(p.pool(loc**2 + variance) / variance)
    )
    return log_ratio.flatten(-len(p.event_shape)).sum(-1) / 2


refuse(
    PrunedNormal,
    Distribution,
    "pruned weights are atoms at 0; use the ELBO of the fit before pruning",
)
