"""Reparameterisation within Pyro's inference: divergences count once, misuse raises an error, handlers compose."""

from __future__ import annotations

import gc
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.reparam import STRATEGIES, LazyWeight, LocalReparam, reparameterize
from pyrodrop.reparam.lazy import LazyDistribution
from pyrodrop.training.elbo import elbo_terms
from tests.small import normal

pytestmark = pytest.mark.usefixtures("float64")
Linear = tuple[models.NetworkModel, guides.MeanField]
X = normal(6, 3, seed=0, dtype=torch.float64)
Y = normal(6, 1, seed=1, dtype=torch.float64)


def test_the_divergence_is_computed_once_and_no_weight_sized_noise_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.MLP([30, 40, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)).double()
    guide = guides.MeanField(model).double()
    wrapped = reparameterize(model, guide, LocalReparam())
    counted: list[Any] = []
    import pyrodrop.reparam.lazy as lazy

    plain = lazy.divergence
    monkeypatch.setattr(lazy, "divergence", lambda *a: (counted.append(a), plain(*a))[1])
    sizes: list[int] = []
    randn_like, standard = torch.randn_like, torch.distributions.normal._standard_normal
    monkeypatch.setattr(torch, "randn_like", lambda t, **k: (sizes.append(t.numel()), randn_like(t, **k))[1])
    monkeypatch.setattr(
        "torch.distributions.normal._standard_normal", lambda s, **k: (sizes.append(s.numel()), standard(s, **k))[1]
    )
    x, y = torch.randn(7, 30), torch.randn(7, 1)
    for objective in (Trace_ELBO(), TraceMeanField_ELBO(), TraceGraph_ELBO()):
        counted.clear()
        objective.loss_and_grads(*wrapped, x, y)
        assert len(counted) == 2, "one divergence a weight"
    counted.clear()
    elbo_terms(*wrapped, x, y)
    assert len(counted) == 2
    assert max(sizes) <= 7 * 40


def test_reparameterised_in_the_guide_alone_is_refused(linear: Linear) -> None:
    model, guide = linear
    half = poutine.reparam(guide, config={"weight": LocalReparam()})
    for objective in (Trace_ELBO(), TraceMeanField_ELBO()):
        with pytest.raises(ValueError, match="if the second use is the prior's, wrap both model and guide"):
            objective.loss(model, half, X, Y)


def test_a_posterior_that_cannot_go_through_is_named(linear: Linear) -> None:
    model, _ = linear
    guide = guides.from_noise(
        lambda m, e: m + e,
        lambda m: dist.Normal(0.0, 1.0).expand(m.shape).to_event(2),
        regularizer=lambda m: m.square().sum(),
    )(model).double()
    with pytest.raises(ValueError, match="needs a posterior with a noise_form.*got Pushforward"):
        pyrodrop.fit(model, guide, (X, Y), steps=1, estimator="local")
    pyrodrop.fit(model, guide, (X, Y), steps=1, estimator="per_example")
    with pytest.raises(
        ValueError,
        match="estimator must be .* or 'local'; got 'locl'; did you mean 'local'",
    ):
        pyrodrop.fit(model, guide, (X, Y), steps=1, estimator="locl")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="weight_sites"):
        reparameterize(lambda: None, guide, LocalReparam())


def test_nothing_goes_quiet_when_the_distribution_is_collected() -> None:
    m = torch.randn(2, 3)
    lazy = LazyWeight(LazyDistribution(dist.Normal(m, 0.3).to_event(2), LocalReparam(), "w"))
    gc.collect()
    y = F.linear(torch.ones(5, 3), lazy)
    assert len(torch.unique(y[:, 0])) == 5


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["per_example", "local"])
def test_composes_with_pyro(name: str) -> None:
    """By site name and by callable in poutine.reparam; scale, mask, Predictive, SVI, autocast, biases with priors."""
    model = models.MLP(
        [3, 5, 1], "tanh", prior=priors.Gaussian(), bias_prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)
    )
    guide = guides.MeanField(model)
    x, y = X.float(), Y.float()
    strategy = STRATEGIES[name]
    sites = model.weight_sites()
    for config in (dict.fromkeys(sites, strategy), lambda msg: strategy if msg["name"] in sites else None):
        wrapped = poutine.reparam(model, config=config), poutine.reparam(guide, config=config)
        svi = SVI(*wrapped, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
        losses = [svi.step(x, y) for _ in range(60)]
        assert sum(losses[-20:]) < sum(losses[:20])
        scaled = TraceMeanField_ELBO().loss(*(poutine.scale(program, scale=0.5) for program in wrapped), x, y)
        assert math.isfinite(scaled)
        masked = Trace_ELBO().loss(*(poutine.mask(program, mask=False) for program in wrapped), x, y)
        assert masked == 0
        draws = Predictive(wrapped[0], guide=wrapped[1], num_samples=4, return_sites=["y"])(x)["y"]
        assert draws.shape == (4, len(x), 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert math.isfinite(Trace_ELBO().loss(*wrapped, x, y))
