"""The local reparameterisation trick: noise on activations, independent between examples.

    independent Gaussian weights          y = f(x, m) + sqrt(f(x^2, v)) zeta
    input units scaled or dropped         y = f(x s, m),           s one number per example and input unit
    Bernoulli mixture, theta > 0          y = f(x z, m) + theta sqrt(f(x^2, 1)) zeta
    DropConnect                           y ~ N(f(x, p m), f(x^2, p (1-p) m^2 + theta^2))            approximate: moments
    factor Gaussian                       y = f(x, m) + sum_r e_r f(x, F_r) + sqrt(f(x^2, v)) zeta,  e one per example

Kingma, Salimans & Welling (2015), eq. 6-7, and section 3 for types A and B; DropConnect by moments as Wan et al. (2013).
A fully connected layer on ``[N, in]`` gives every example's outputs the distribution that a weight of its own gives them
(DropConnect: its mean and variance). Where an example has several rows that share the weight, as tokens, nodes or positions
of a convolution have, it depends on whose the noise is:

    s and e         one per example, the same for all of its rows: the distribution of a weight draw, all rows together
    zeta            one per row: every row alone has the right distribution, and the correlation of an example's rows,
                    Cov(y_t, y_u) = sum_i x_ti x_ui v_i per output, is dropped

With zeta and several rows the objective is therefore that of another posterior, over activations, as is usual for
convolutions; training under `shared`, `per_example` or `flipout` is on the posterior over weights, and so are the ELBO and
joint predictions after any of them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from pyrodrop.distributions import (
    BernoulliMixture,
    CorrelatedNormal,
    LowRankNormal,
    MultiplicativeNormal,
    RelaxedBernoulliMixture,
)
from pyrodrop.distributions.bernoulli_mixture import never_drops
from pyrodrop.distributions.coins import coins
from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.maps import LinearMap


class LocalReparam(LazyReparam):
    """Draw activations instead of weights; see the module's text for each posterior.

    Use it by `reparameterize`, or in ``poutine.reparam`` around model *and* guide.
    """

    def pushes(self, q: Any, at: LinearMap) -> bool:
        return at.fits(q) if getattr(q, "columns", False) else not isinstance(q, RelaxedBernoulliMixture)

    def keeps(self, q: Any) -> bool:
        return getattr(q, "columns", False) and getattr(q, "theta", 0.0) == 0

    def push(self, q: Distribution, at: LinearMap) -> Tensor:
        return push_locally(q, at)


def draws_by_row(q: Any) -> bool:
    """Whether the noise of a weight with posterior q is drawn for every row of an example by itself (zeta above)."""
    if isinstance(q, BernoulliMixture):
        return q.theta > 0 or not (q.columns or never_drops(q.drop_rate))
    return not isinstance(q, CorrelatedNormal)


@functools.singledispatch
def push_locally(q: Any, at: LinearMap) -> Tensor:
    """f(x, w) for one weight w ~ q per example, without drawing weights."""
    raise ValueError(
        f"the local estimator does not know how {type(q).__name__} goes through a linear map; use estimator='per_example' "
        "or 'shared'"
    )


@push_locally.register
def _independent(q: Independent, at: LinearMap) -> Tensor:
    if not isinstance(q.base_dist, Normal):
        return push_locally.dispatch(object)(q.base_dist, at)
    return _gaussian(at, q.base_dist.loc, q.base_dist.scale**2)


@push_locally.register
def _multiplicative(q: MultiplicativeNormal, at: LinearMap) -> Tensor:
    return _gaussian(at, q.mean, q.variance)


@push_locally.register
def _correlated(q: CorrelatedNormal, at: LinearMap) -> Tensor:
    if not q.columns:  # every weight has a scale of its own
        return _gaussian(at, q.mean, q.variance)
    deviation = torch.exp(q.log_alpha / 2)
    scale = at.unit_noise(lambda shape: 1 + deviation * torch.randn(shape, dtype=at.x.dtype, device=at.x.device))
    return at.f(at.x * scale, q.loc)


@push_locally.register
def _bernoulli(q: BernoulliMixture, at: LinearMap) -> Tensor:
    if q.columns:
        keep = q.keep_rate.to(at.x.dtype)
        dropped = at.x if never_drops(q.drop_rate) else at.x * at.unit_noise(lambda shape: coins(keep, shape))
        y = at.f(dropped, q.loc)
    elif never_drops(q.drop_rate):
        y = at.f(at.x, q.loc)
    else:
        return _gaussian(at, q.mean, q.variance)
    return y if q.theta == 0 else y + _noise(at.f(at.x**2, torch.full_like(q.loc, q.theta**2)))


@push_locally.register
def _relaxed(q: RelaxedBernoulliMixture, at: LinearMap) -> Tensor:
    return at.f(at.x * at.unit_noise(lambda shape: q.relaxed_mask(shape).to(at.x.dtype)), q.loc)


@push_locally.register
def _low_rank(q: LowRankNormal, at: LinearMap) -> Tensor:
    y = _gaussian(at, q.loc, q.diagonal.reshape(q.event_shape))
    for column in q.factor.unbind(-1):
        factor = torch.randn(at.batch, dtype=y.dtype, device=y.device)
        y = y + at.over_examples(factor) * at.f(at.x, column.reshape(q.event_shape))
    return y


def _gaussian(at: LinearMap, loc: Tensor, variance: Tensor) -> Tensor:
    """N(gamma, delta): gamma = f(x, m), delta = f(x^2, v)."""
    return at.f(at.x, loc) + _noise(at.f(at.x**2, variance))


def _noise(delta: Tensor) -> Tensor:
    return torch.sqrt(delta.clamp_min(torch.finfo(delta.dtype).tiny)) * torch.randn_like(delta)
