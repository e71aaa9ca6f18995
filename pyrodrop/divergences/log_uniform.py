"""KL divergences from the log-uniform prior, with the constant chosen so that they are zero at alpha -> infinity.

    w_ij ~ N(m_ij, alpha_ij m_ij^2), independent      sum_ij KL(alpha_ij)
    w_k = s_k m_k,  s_k ~ N(1, alpha_k)                sum_k  KL(alpha_k)              one term per unit
    any Gaussian with marginals as above               sum_ij [KL(alpha_ij) + ln(2 pi e sigma_ij^2) / 2] - H(q)

Kingma, Salimans & Welling (2015), arXiv:1506.02557, section 3 and appendix B. The last line holds because the KL divergence
depends on q only through E_q[ln |w|], a sum over the marginals, and the entropy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from pyrodrop.distributions import (
    CorrelatedNormal,
    CutNormal,
    LogUniform,
    LowRankNormal,
    MultiplicativeNormal,
)
from pyrodrop.divergences.log_uniform_kl import log_uniform_kl
from pyrodrop.divergences.table import Convention, pair, refuse

_IMPROPER = "log-uniform prior, improper: zero at alpha -> infinity"
IMPROPER = Convention("up_to_constant", _IMPROPER)


@pair(Normal, LogUniform, IMPROPER)
def _normal(q: Normal, p: LogUniform) -> Tensor:
    return log_uniform_kl(_log_alpha(q.loc, q.scale**2))


@pair(MultiplicativeNormal, LogUniform, IMPROPER)
def _multiplicative(q: MultiplicativeNormal, p: LogUniform) -> Tensor:
    return q.total_weights(log_uniform_kl(q.log_alpha).expand(q.loc.shape))


def _uncut_convention(q: CutNormal, p: LogUniform) -> Convention:
    most = float(log_uniform_kl(torch.tensor(q.threshold)))
    return Convention("up_to_constant", f"{_IMPROPER}; an upper bound, counted as if nothing were cut", most)


pair(CutNormal, LogUniform, _uncut_convention)(_multiplicative)


@pair(CorrelatedNormal, LogUniform, IMPROPER)
def _correlated(q: CorrelatedNormal, p: LogUniform) -> Tensor:
    return q.total(log_uniform_kl(q.log_alpha).expand(q.batch_shape + q.noise_shape))


@pair(LowRankNormal, LogUniform, IMPROPER)
def _low_rank(q: LowRankNormal, p: LogUniform) -> Tensor:
    marginal = log_uniform_kl(_log_alpha(q.loc, q.variance)) + torch.log(2 * math.pi * math.e * q.variance) / 2
    return q.total_weights(marginal) - q.entropy()


def _log_alpha(loc: Tensor, variance: Tensor) -> Tensor:
    return variance.log() - torch.log(loc**2 + torch.finfo(loc.dtype).tiny)


_NO_DENSITY = (
    "type A has no density over weights; use priors.LogUniform, for which the KL divergence is that of the scales, "
    "or use type B"
)
refuse(CorrelatedNormal, Distribution, lambda q, p: None if isinstance(p, LogUniform) else _NO_DENSITY)
