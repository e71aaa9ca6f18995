"""Guides that are not this package's, through `fit`, `elbo` and `predict`: their objective is Pyro's Trace_ELBO.

Pyro's automatic guides draw at sites of their own and make the model's of them; the density of those draws is a part of the
divergence.
"""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro import poutine
from pyro.contrib.easyguide import EasyGuide
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuideList,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoStructured,
)
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import constraints

import pyrodrop
from pyrodrop import likelihoods, models, priors
from pyrodrop.training.elbo import elbo_terms
from tests.small import Heavy

pytestmark = pytest.mark.usefixtures("float64")
PRECISION = 4.0


def line(**settings: Any) -> models.NetworkModel:
    """Linear regression: a posterior in closed form."""
    torch.manual_seed(0)
    net = nn.Linear(2, 1, bias=False)
    likelihood = likelihoods.Gaussian(PRECISION)
    return models.from_module(net, prior=settings.pop("prior", priors.Gaussian(1.0)), likelihood=likelihood)


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(15, 2)
    return x, x @ torch.tensor([[0.7], [-0.4]]) + 0.5 * torch.randn(15, 1)


class Inside(PyroModule):
    """A guide of one's own with an automatic one inside."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = AutoNormal(model)

    def forward(self, x: Tensor, y: Tensor | None = None, num_data: int | None = None) -> Any:
        return self.inner(x, y)


class Grouped(EasyGuide):
    """One diagonal Gaussian over all weights together."""

    def guide(self, x: Tensor, y: Tensor | None = None, num_data: int | None = None) -> None:
        group = self.group(match=".*weight")
        loc = pyro.param("group_loc", lambda: 0.1 * torch.randn(group.event_shape))
        scale = pyro.param("group_scale", lambda: torch.full(group.event_shape, 0.1), constraint=constraints.positive)
        group.sample("all_weights", dist.Normal(loc, scale).to_event(1))


def mixed(model: Any) -> Any:
    both = AutoGuideList(model)
    both.append(AutoDelta(poutine.block(model, expose=["0.weight"])))
    both.append(AutoNormal(poutine.block(model, hide=["0.weight"])))
    return both


OTHERS: dict[str, Any] = {
    "AutoNormal": AutoNormal,
    "AutoDiagonalNormal": AutoDiagonalNormal,
    "AutoMultivariateNormal": AutoMultivariateNormal,
    "AutoLowRank": AutoLowRankMultivariateNormal,
    "AutoStructured": AutoStructured,
    "inside one's own": Inside,
    "EasyGuide": Grouped,
}


HYPER: dict[str, Any] = {
    "ard": lambda: priors.ARD(hyperprior=dist.InverseGamma(1.0, 0.1)),
}


@pytest.mark.parametrize(
    ("name", "prior"), [*((name, Heavy) for name in OTHERS), *(("AutoNormal", prior) for prior in HYPER.values())]
)  # fmt: skip
def test_the_terms_sum_to_pyros_loss_and_gradient(name: str, prior: Any) -> None:
    """On the same draw, the density of what a guide draws besides included, and changes of variables of hyperparameters."""
    model = line(prior=prior())
    guide = OTHERS[name](model)
    x, y = data()
    guide(x, y)
    found = []
    for loss in (
        lambda: sum(elbo_terms(model, guide, x, y)),
        lambda: Trace_ELBO().differentiable_loss(model, guide, x, y),
    ):
        torch.manual_seed(3)
        with poutine.trace(param_only=True) as seen:
            value = loss()
        leaves = sorted((n, s["value"].unconstrained()) for n, s in seen.trace.nodes.items())
        gradients = torch.autograd.grad(value, [leaf for _, leaf in leaves])
        found.append((value.detach(), *gradients))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_point_mass_beside_drawn_factors_is_still_one() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.Linear(3, 1, bias=False))
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    fit = pyrodrop.fit(model, mixed(model), data(), steps=3)
    assert fit.elbo(3).convention.kind == "up_to_constant"
    assert pyrodrop.fit(model, AutoDelta(model), data(), steps=3).elbo(3).convention.kind == "up_to_constant"


def test_an_empirical_prior_has_no_density_for_such_a_guide() -> None:
    model = line(prior=priors.ARD())
    guide = AutoNormal(model, init_loc_fn=pyro.infer.autoguide.init_to_value(values={"weight": torch.ones(1, 2)}))
    with pytest.raises(ValueError, match="ARD without a hyperprior"):
        pyrodrop.fit(model, guide, data(), steps=3)


def test_a_guide_that_a_plate_would_draw_wrongly_is_drawn_one_by_one() -> None:
    """One scale for all weights of a draw, times a vector: in a plate of two draws the two axes would be mixed up."""
    model = line()
    loc = torch.tensor([[1.0, 10.0]])

    def guide(x: Tensor, y: Tensor | None = None, num_data: int | None = None) -> None:
        scale = pyro.sample("scale", dist.Normal(1.0, 0.5), infer={"is_auxiliary": True})
        pyro.sample("weight", dist.Normal(scale * loc, 1e-9).to_event(2))

    f = pyrodrop.Fit(model, guide, None, torch.zeros(1, 3), {}).predict(torch.eye(2), 2).f[..., 0]
    torch.testing.assert_close(f[:, 1], 10 * f[:, 0])
    assert not torch.isclose(f[0, 0], f[1, 0])


def test_a_delta_counts_its_log_density() -> None:
    """A guide that draws by itself, z ~ N(m, s^2), of a conjugate Gaussian, whose ELBO is known."""
    y, m, s = torch.tensor([1.0, 0.5]), torch.tensor([0.3, -0.2]), torch.tensor([0.7, 0.4])

    def model(y: Tensor) -> None:
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(z, 1.0).to_event(1), obs=y)

    def guide(y: Tensor) -> None:
        z = pyro.param("m", m.clone()) + s * torch.randn(2)
        pyro.sample("z", dist.Delta(z, log_density=dist.Normal(m, s).log_prob(z)).to_event(1))

    pyro.clear_param_store()
    elbo = pyrodrop.fit(model, guide, {"y": y}, steps=1, lr=1e-6, engine="pyro").elbo(300)
    nll = 0.5 * (math.log(2 * math.pi) + (y - m) ** 2 + s**2)
    exact = -float((nll + 0.5 * (s**2 + m**2 - 1) - s.log()).sum())
    assert abs(elbo.value - exact) < 4 * elbo.se
    assert elbo.convention.kind == "exact"
