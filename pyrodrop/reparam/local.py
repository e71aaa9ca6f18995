"""The local reparameterisation trick: activations are sampled instead of weights, independently per example."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrodrop.distributions.weight import NoiseForm, noise_form
from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.maps import LinearMap


class LocalReparam(LazyReparam):
    """Sample activations instead of weights, independently per example.

        independent Gaussian weights          y = f(x, m) + sqrt(f(x^2, v)) zeta
        input units scaled or dropped         y = f(x s, m),           s one number per example and input unit
        Bernoulli mixture, theta > 0          y = f(x z, m) + theta sqrt(f(x^2, 1)) zeta
        DropConnect                           y ~ N(f(x, p m), f(x^2, p (1-p) m^2 + theta^2))            approximate: moments
        factor Gaussian                       y = f(x, m) + sum_r e_r f(x, F_r) + sqrt(f(x^2, v)) zeta,  e one per example

    All of them follow from the distribution's `NoiseForm`.

    In a fully connected layer on ``[N, in]`` the outputs of each example have the distribution that an independent weight
    sample gives them (for DropConnect: its mean and variance). If an example has several rows that share the weight
    (tokens, nodes, positions of a convolution), it depends on the kind of noise:

        s and e         one per example, the same for all of its rows: the joint distribution of the rows is that of a weight
                        sample
        zeta            one per row: each row has the right marginal distribution, and the covariance between the rows of an
                        example, Cov(y_t, y_u) = sum_i x_ti x_ui v_i per output, is left out

    With zeta and several rows the objective is therefore that of another posterior, over activations, as is usual for
    convolutions. Training under `shared` or `per_example` uses the posterior over weights, and so do the ELBO
    and joint predictions after any of them.

    Use it through `reparameterize`, or in ``poutine.reparam`` around model *and* guide.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, eq. 6-7, and section 3 for types A and B.
        Wan et al. (2013), https://proceedings.mlr.press/v28/wan13.html.
    """

    def pushes(self, q: Any, at: LinearMap) -> bool:
        if getattr(q, "columns", False):
            return at.fits(q)
        form = noise_form(q)
        return form is None or form.scales is None

    def push(self, q: Any, at: LinearMap) -> Tensor:
        """f(x, w) ``[N, ..., out]`` with independent noise per example, without sampling weights.

        Raises:
            ValueError: q has no noise form.
        """
        form = noise_form(q)
        if form is None:
            raise ValueError(
                f"the local estimator needs a posterior with a noise_form (pyrodrop.distributions.NoiseForm); got "
                f"{type(getattr(q, 'base_dist', q)).__name__}: use estimator='per_example' or 'shared'"
            )
        return push_locally(form, at)


def push_locally(form: NoiseForm, at: LinearMap) -> Tensor:
    """f(x, W) with an independent W per example, by sampling the noise of the outputs; without bias."""
    loc = form.loc()
    variance = None if form.variance is None else form.variance()
    scales, x = form.scales, at.x
    if scales is not None:
        x = x * at.unit_noise(lambda shape: scales(shape, at.x.dtype))
    y = at.f(x, loc)
    if variance is not None:
        of_y = at.f(at.x**2, variance)
        # zeta is in the same order for all layouts of images, and the root differentiable where the variance is 0
        zeta = torch.randn_like(of_y, memory_format=torch.contiguous_format)
        y = y + torch.sqrt(of_y.clamp_min(torch.finfo(of_y.dtype).tiny)) * zeta
    for factor in () if form.factors is None else form.factors():
        e = torch.randn(at.batch, dtype=y.dtype, device=y.device)
        y = y + at.over_examples(e) * at.f(at.x, factor)
    return y


def draws_by_row(q: Any) -> bool:
    """Whether local noise for posterior q is sampled for every row of an example separately, as zeta above is."""
    form = noise_form(q)
    return form is None or form.variance is not None
