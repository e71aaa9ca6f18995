"""Every estimator of the loss and its gradient is unbiased, under every objective of Pyro."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pyro.infer import Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from torch import Tensor

from pyrodrop import guides, models
from pyrodrop.reparam import STRATEGIES, reparameterize
from tests.small import normal

pytestmark = pytest.mark.usefixtures("float64")
Linear = tuple[models.NetworkModel, guides.MeanField]
N, TAU = 6, 2.0
X = normal(6, 3, seed=0, dtype=torch.float64)
Y = normal(6, 1, seed=1, dtype=torch.float64)


def wrap(model: Any, guide: Any, strategy: Any) -> tuple[Any, Any]:
    return (model, guide) if strategy is None else reparameterize(model, guide, strategy)


def exact(guide: guides.MeanField) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradient in closed form: N/2 ln(2 pi / tau) + tau/2 sum [(y - x m)^2 + x^2 v], plus the divergence."""
    m, log_v = (p.detach().clone().requires_grad_() for p in guide.parameters())
    v = log_v.exp()
    nll = N / 2 * math.log(2 * math.pi / TAU) + TAU / 2 * ((Y - X @ m.T).square() + X.square() @ v.T).sum()
    kl = 0.5 * (math.log(0.64) - log_v + (v + m**2) / 0.64 - 1).sum()
    return nll + kl, list(torch.autograd.grad(nll + kl, [m, log_v]))


@pytest.mark.few(1)
@pytest.mark.parametrize("subsample", [False, True], ids=["whole", "minibatch"])
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO])
@pytest.mark.parametrize("name", STRATEGIES)
def test_unbiased(name: str, elbo: Any, subsample: bool, linear: Linear) -> None:
    """Loss and every component of the gradient within 4 standard errors of the closed form."""
    model, guide = linear
    wrapped = wrap(model, guide, STRATEGIES[name])
    objective = elbo()
    loss, gradient = exact(guide)
    parameters, estimates = list(guide.parameters()), []
    for _ in range(500):
        rows = torch.randperm(N)[:2] if subsample else slice(None)
        for p in parameters:
            p.grad = None
        value = objective.loss_and_grads(*wrapped, X[rows], Y[rows], num_data=N)
        estimates.append(torch.cat([torch.tensor([value]), *(p.grad.flatten() for p in parameters)]))  # type: ignore[union-attr]
    draws = torch.stack(estimates)
    want = torch.cat([loss.detach()[None], *(g.flatten() for g in gradient)])
    z = (draws.mean(0) - want) / (draws.std(0) / math.sqrt(len(draws)))
    assert float(z.abs().max()) < 4, z


@pytest.mark.parametrize("name", ["per_example", "local"])
def test_particles_at_once_are_refused(name: str, linear: Linear) -> None:
    wrapped = wrap(*linear, STRATEGIES[name])
    many = TraceMeanField_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=1)
    with pytest.raises(ValueError, match="take num_particles without vectorize_particles=True"):
        many.differentiable_loss(*wrapped, X, Y)
