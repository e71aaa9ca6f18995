"""KL divergences from the log-uniform prior, with the constant chosen so that they are zero at alpha -> infinity.

    w_ij ~ N(m_ij, alpha_ij m_ij^2), independent      sum_ij KL(alpha_ij)
    w_k = s_k m_k,  s_k ~ N(1, alpha_k)                sum_k  KL(alpha_k)              one term per unit
    any Gaussian with marginals as above               sum_ij [KL(alpha_ij) + ln(2 pi e sigma_ij^2) / 2] - H(q)

Kingma, Salimans & Welling (2015), arXiv:1506.02557, section 3 and appendix B. The last line holds because the KL divergence
depends on q only through E_q[ln |w|], a sum over the marginals, and the entropy.

The first, as a function of t = log alpha:

For w ~ N(m, alpha m^2) and the improper prior p(log |w|) = const the KL divergence depends only on alpha. It is defined up
to a constant, which is chosen here so that the KL divergence vanishes as alpha -> infinity. With u = 1 / (2 alpha) and
Dawson's function D,

    KL      =  2 integral_0^sqrt(u) D(x) dx  =  u 2F2(1, 1; 3/2, 2; -u)
    dKL/dt  =  -sqrt(u) D(sqrt(u))           =  -u 1F1(1; 3/2; -u)
    KL  ->  u  as alpha -> infinity,     KL  ->  -t/2 + (gamma + ln 2)/2  as alpha -> 0

Value and derivative are evaluated with minimax rational approximations,

    KL  =  ln(1 + u/3)/2 + s P(r)/Q(r),        dKL/dt  =  -s p(r)/q(r)
    ln(1 + u/3)  =  -min(t + ln 6, 0) - ln(1 - min(s, r))

in s = sigmoid(-t - ln 6) = u / (3 + u) and r = 1 - s, with rational functions VALUE = (P, Q) and SLOPE = (p, q) of degree
(9, 10), minimax in relative error: 2e-11 for the value and 1.4e-9 for the slope, at every t. The expansion in r keeps the
sums stable; in float32 only rounding errors remain. The coefficients were computed with 60 digits by Sanathanan-Koerner
linearisation, https://doi.org/10.1109/TAC.1963.1105517, with Lawson's reweighting.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from pyrodrop.checks import shown
from pyrodrop.distributions import (
    CorrelatedNormal,
    CutNormal,
    LogUniform,
    LowRankNormal,
    MultiplicativeNormal,
)
from pyrodrop.divergences.table import Convention, pair, refuse

LOG6 = math.log(6)

# Coefficients of numerator and denominator, highest power of r first.
# fmt: off
VALUE = (
    (7043.797548024, 3596.1352264344, 2324.1823418446, 1760.4857010359, 18.547944455321, 478.01601534057,
     -107.69135444117, 58.933687173585, -8.5211950395237, 1.5310611573448),
    (720.72100613504, 1405.4198983746, 1930.0717498265, 743.40601078524, 1148.1375575213, -179.65384933153,
     355.40279033717, -94.086441725182, 41.932617695662, -6.1845490919522, 1.0),
)
SLOPE = (
    (6307.3982594735, -1463.3856904761, 851.13925034534, 365.38329403451, -143.74726178494, 182.25373396704,
     -65.49747717727, 24.13534562653, -3.9853290643289, 0.5),
    (227.450140791, 342.29890032023, 979.67598233848, -393.06323374157, 1204.3731220683, -720.86468618701,
     515.80159457108, -186.98421190932, 57.514427649418, -9.137325682169, 1.0),
)
# fmt: on

_IMPROPER = "log-uniform prior, improper: zero at alpha -> infinity"
IMPROPER = Convention("up_to_constant", _IMPROPER)


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    """KL(N(m, alpha m^2) || log-uniform), elementwise, zero at alpha -> infinity, by a minimax rational approximation.

    For abs(log alpha) <= 40 the absolute error of the value is below 1e-10 in float64 and 2e-6 in float32, that of the
    derivative below 1e-9 and 1e-6. Value and derivatives are finite at every finite log alpha. Half precision is computed in
    float32. Differentiable to any order in reverse mode.

    References:
        Hron, Matthews & Ghahramani (2017), Variational Gaussian Dropout is not Bayesian, https://arxiv.org/abs/1711.02989.

    Args:
        log_alpha: log of the variance divided by the squared mean, any shape.

    Returns:
        The KL divergence in nats, of the shape and dtype of `log_alpha`. NaN where `log_alpha` is NaN.

    Raises:
        TypeError: `log_alpha` is no tensor of a floating-point dtype.
    """
    # Only the type: reading values would make training steps wait for a GPU.
    if not isinstance(log_alpha, Tensor) or not log_alpha.is_floating_point() or log_alpha.layout != torch.strided:
        raise TypeError(f"log_alpha must be a dense tensor of a floating-point dtype; got {shown(log_alpha)}")
    t = log_alpha.float() if log_alpha.dtype in (torch.float16, torch.bfloat16) else log_alpha
    return _LogUniformKL.apply(t).to(log_alpha.dtype)


class _LogUniformKL(torch.autograd.Function):
    """Avoids the memory traffic of differentiating through the recurrence; differentiable to any order."""

    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor) -> Tensor:
        s, r = _sigmoids(t)
        y = _rational(s, r, *VALUE).sub_((t + LOG6).clamp(max=0), alpha=0.5)
        return y.sub_(torch.minimum(s, r).neg_().log1p_(), alpha=0.5)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (t,) = ctx.saved_tensors
        return -grad * _rational(*_sigmoids(t), *SLOPE)


def _rational(s: Tensor, r: Tensor, numerator: tuple[float, ...], denominator: tuple[float, ...]) -> Tensor:
    return _horner(r, numerator).div_(_horner(r, denominator)).mul_(s)


def _horner(r: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    first, *middle, last = coefficients
    y = r * first
    for c in middle:
        y.add_(c).mul_(r)
    return y.add_(last)


def _sigmoids(t: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(-t - LOG6)
    return s, 1 - s


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
