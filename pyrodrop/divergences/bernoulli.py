"""KL divergences of the Bernoulli mixture.

    KL(BernoulliMixture || Normal(0, sigma^2)) =
        sum_k  p_k ||m_k||^2 / (2 sigma^2)  +  K/2 [theta^2 / sigma^2 - 1 - ln(theta^2 / sigma^2)]  -  H(p_k)  +  h(p_k, d_k)

    at theta = 0, without the term -K/2 ln(2 pi e theta^2)  =  E_q[-ln p(W)] - H(masks)  =
        sum_k  p_k ||m_k||^2 / (2 sigma^2)  +  K/2 ln(2 pi sigma^2)  -  H(p_k)

    h(p, d) = E_q[H(c | w)] = sqrt(p (1-p)) exp(-d^2 / 8) E_s~N(0,1)[g(ln(p / (1-p)) + d s)]
    g(u)    = 2 cosh(u / 2) H(1 / (1 + exp(-u)))

K is the number of weights in a column, d_k = ||m_k|| / theta, c is the component label of w, and H(p) is the entropy of a
Bernoulli variable in nats. h is the entropy of the component label given the weight. Gal & Ghahramani's (2016) formula
(Appendix, arXiv:1506.02157, section 4) is the case h = 0, which is accurate for d >> 1. To derive h, write the density of
the mixture at log odds u as a Gaussian of width d, centred at the prior log odds, times exp(-d^2 / 8) 2 cosh(u / 2). The
remaining integrand is smooth, so the trapezoidal rule converges geometrically.

At theta = 0 the term from the differential entropy of the components, -K/2 ln(2 pi e theta^2) for K weights, is infinite. It
is left out for every prior. It depends only on the number of weights: not on M, the rates or the prior, whose scale can
therefore be learned (ARD with a hyperprior, the horseshoe). The same term is left out for a point mass, so with rate 0
the result is minus the log prior density at M.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Normal

from pyrodrop.distributions import BernoulliMixture, LogUniform, PooledNormal, RelaxedBernoulliMixture
from pyrodrop.divergences.table import EXACT, Convention, pair, refuse

ATOMS = Convention("up_to_constant", "theta -> 0: K/2 ln(2 pi e theta^2) of K weights is left out")
RELAXED = Convention(
    "up_to_constant", f"{ATOMS.detail}; the KL divergence is that of the mask, samples use its relaxation"
)


def _tag(q: BernoulliMixture, p: object) -> Convention:
    if isinstance(q, RelaxedBernoulliMixture):
        return RELAXED
    return EXACT if q.theta > 0 else ATOMS


@pair(BernoulliMixture, Normal, _tag)
def _from_normal(q: BernoulliMixture, p: Normal) -> Tensor:
    keep, loc, variance = q.over_units(q.keep_rate), _distinct(p.loc), _distinct(p.scale) ** 2
    squares = _distinct(keep) / (2 * variance) * (q.loc - p.loc) ** 2
    ratio = q.theta**2 / variance
    of_components = ratio - 1 - ratio.log() if q.theta > 0 else torch.log(2 * math.pi * variance)
    rest = (1 - keep) * loc**2 / (2 * variance) + of_components / 2
    return q.total_weights(squares) + _total_of_equal(q, rest) - q.total(information(q))


def _total_of_equal(q: BernoulliMixture, values: Tensor) -> Tensor:
    """`total_weights` of values that broadcast to the weight, and often are a single number."""
    values = values.reshape((1,) * (q.loc.dim() - values.dim()) + values.shape)
    size = values.shape[-len(q.event_shape) :].numel()
    return q.total_weights(values) * (q.event_shape.numel() / size)


def _distinct(values: Tensor) -> Tensor:
    """The tensor without the repetitions of expanded dimensions, which saves passes over all weights."""
    return values[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in values.stride())]


@pair(BernoulliMixture, torch.distributions.Distribution, _tag)
def _from_any(q: BernoulliMixture, p: object) -> Tensor:
    raise NotImplementedError("only the convention is registered here; the KL divergence is estimated by Monte Carlo")


_NO_SCALE = (
    "weights are exactly zero, or near it, with positive probability, where the density of this prior is not bounded; use a "
    "proper prior with a fixed scale such as priors.Gaussian"
)
refuse(BernoulliMixture, LogUniform, _NO_SCALE)
refuse(BernoulliMixture, PooledNormal, _NO_SCALE)


def information(q: BernoulliMixture) -> Tensor:
    """Mutual information of weight and mask, H(p_k) - h(p_k, d_k) in nats, ``[..., *noise_shape]``; h is 0 at theta = 0."""
    entropy = binary_entropy(q.keep_rate)
    return entropy - lost_entropy(q.keep_rate, _norm(q) / q.theta) if q.theta > 0 else entropy


def _norm(q: BernoulliMixture) -> Tensor:
    """||m_k|| of each unit, ``[..., *noise_shape]``. The gradient is 0 instead of NaN where a column is 0."""
    square = q.sum_units(q.loc**2)
    zero = square == 0
    return torch.where(zero, square.new_zeros(()), torch.where(zero, square.new_ones(()), square).sqrt())


def binary_entropy(p: Tensor) -> Tensor:
    """H(p) = -p ln p - (1-p) ln(1-p) in nats, elementwise; 0 for p = 0 and p = 1, NaN outside [0, 1]."""
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))


# Step and range of the trapezoidal rule in s ~ N(0, 1). The nearest singularities of the integrand, at u = +-i pi, give an
# error of about exp(-2 pi^2 / (d step) - d^2 / 8), at most 1e-12 over all d for this step; P(|s| > 8) is 1e-15.
_STEP, _REACH = 0.125, 8.0


def lost_entropy(p: Tensor, distance: Tensor) -> Tensor:
    """h(p, d): the entropy of the component label given the weight, in nats, elementwise.

    It lies between 0 (d -> infinity) and H(p) (d = 0).

    Args:
        p: probability of keeping the unit, in [0, 1].
        distance: d, the distance between the means of the components in standard deviations; broadcasts with `p`.
    """
    certain = (p == 0) | (p == 1)  # outside [0, 1] the result is NaN
    inside = torch.where(certain, torch.full_like(p, 0.5), p)
    s = torch.arange(-_REACH, _REACH + _STEP / 2, _STEP, dtype=p.dtype, device=p.device)
    weight = torch.exp(-(s**2) / 2) * (_STEP / math.sqrt(2 * math.pi))
    u = torch.logit(inside)[..., None] + distance[..., None] * s
    # g(u) = exp(v/2) ((1 + e^-v) log(1 + e^-v) + v e^-v), v = |u|; the factor exp(-d^2/8) keeps exp(v/2) from overflowing
    v = u.abs()
    small = torch.exp(-v)
    value = torch.exp(v / 2 - distance[..., None] ** 2 / 8) * ((1 + small) * torch.log1p(small) + v * small)
    lost = (inside * (1 - inside)).sqrt() * (value * weight).sum(-1)
    return torch.where(certain, torch.zeros_like(lost), lost)
