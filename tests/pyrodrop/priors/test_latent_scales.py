"""Posteriors of atoms under priors whose scales are latent: what depends on a learned scale is in the objective.

The objective of q(W) q(v) is E[-ln p(y | W)] + E[-ln p(W | v)] - H(masks) + KL(q(v) || p(v)). Every optimum here is found
without this package: in closed form, or by a plain minimiser of the objective written out.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from scipy import stats
from scipy.optimize import minimize
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.training.elbo import elbo_terms

K, A, B, TAU = 60, 2.0, 1.0, 1e3
ATOMS: dict[str, Any] = {
    "Point": guides.Point,
    "BernoulliDropout": lambda m: guides.BernoulliDropout(m, 0.3),
    "DropConnect": lambda m: guides.DropConnect(m, 0.3),
    "ConcreteDropout": lambda m: guides.ConcreteDropout(m, drop_rate=0.3),
}


def observed() -> tuple[torch.Tensor, torch.Tensor]:
    """Each of K weights seen once: y_k = w_k + noise of precision TAU."""
    w = 1.5 * torch.randn(K, generator=torch.Generator().manual_seed(4))
    return torch.eye(K), w[:, None]


def linear(prior: priors.Prior, inputs: int = K) -> models.NetworkModel:
    torch.manual_seed(0)
    net = nn.Linear(inputs, 1, bias=False)
    return models.from_module(net, prior=prior, likelihood=likelihoods.Gaussian(TAU))


def optimum(keep: float) -> tuple[float, float]:
    """ln v ~ N(a, s^2) at the optimum, by minimising over a, ln s and the weights m.

    E[1/v] = exp(-a + s^2/2); y_k is hit by m_k with probability keep and by 0 else; v ~ InverseGamma(A, B).
    """
    y = observed()[1][:, 0].double().numpy()

    def objective(at: Any) -> tuple[float, Any]:
        a, log_s, m = at[0], at[1], at[2:]
        inverse = math.exp(-a + math.exp(2 * log_s) / 2)
        misses = TAU / 2 * (keep * (y - m) ** 2 + (1 - keep) * y**2).sum()
        scale = B + keep * (m**2).sum() / 2
        value = misses + (K / 2 + A) * a + scale * inverse - log_s
        along = [K / 2 + A - scale * inverse, scale * inverse * math.exp(2 * log_s) - 1]
        return value, np.concatenate([along, keep * (TAU * (m - y) + inverse * m)])

    optimum = minimize(objective, np.concatenate([[0.0, -2.0], y]), jac=True, method="BFGS", options={"gtol": 1e-6})
    return float(optimum.x[0]), math.exp(float(optimum.x[1]))


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "keep"), [("Point", 1.0), ("BernoulliDropout", 0.7)])
def test_a_variance_under_a_hyperprior_is_learned_as_it_should_be(name: str, keep: float) -> None:
    model = linear(priors.ARD("layer", dist.InverseGamma(A, B)))
    rate = lambda name: 0.15 if "hyper" in name else 0.05  # noqa: E731
    fit = pyrodrop.fit(
        model, ATOMS[name](model), observed(), steps=1500, lr=rate, lr_schedule=lambda t: (1 - t / 1500) ** 2,
        engine="traced",
    )  # fmt: skip
    loc, sd = learned(fit)
    a, s = optimum(keep)
    assert loc == pytest.approx(a, abs=0.05)
    assert sd == pytest.approx(s, rel=0.2)


def learned(fit: Any) -> tuple[float, float]:
    """Mean and standard deviation of ln v."""
    site = "weight_prior_variance"
    return float(fit.guide.hyper_loc[site].detach()), float(fit.guide.hyper_log_scale[site].detach().exp())


LATENT = {
    "ARD(layer, InverseGamma)": priors.ARD("layer", dist.InverseGamma(A, B)),
    "ARD(input, HalfCauchy)": priors.ARD("input", dist.HalfCauchy(0.5)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("prior", LATENT)
@pytest.mark.parametrize("name", ["Point", "BernoulliDropout", "DropConnect"])
def test_the_objective_is_pyros_log_joint_summed_over_all_masks(name: str, prior: str, float64: None) -> None:
    """Given a draw of the scales: sum_z q(z) [ln q(z) - ln p(W_z | scales)], by Pyro's density of the model's own trace."""
    torch.manual_seed(1)
    model = linear(LATENT[prior], 4).double()
    guide = ATOMS[name](model).double()
    x, y = torch.randn(3, 4), torch.randn(3, 1)
    torch.manual_seed(2)
    terms = elbo_terms(model, guide, x, y)
    torch.manual_seed(2)
    drawn = poutine.trace(guide).get_trace(x, y)
    scales = {n: drawn.nodes[n]["value"] for n in drawn.stochastic_nodes if n != "weight"}
    keep, m, want = 1.0 if name == "Point" else 0.7, guide.loc["weight"], torch.zeros(())
    for mask in itertools.product([0.0, 1.0], repeat=4):
        log_q = sum(math.log(keep) if z else math.log(1 - keep) for z in mask) if keep < 1 or all(mask) else -math.inf
        if log_q == -math.inf:
            continue
        conditioned = poutine.condition(model, {**scales, "weight": m * torch.tensor(mask)})
        trace = poutine.trace(conditioned).get_trace(x, y)
        trace.compute_log_prob()
        want = want + math.exp(log_q) * (log_q - trace.nodes["weight"]["log_prob_sum"])
    torch.testing.assert_close(terms.kl_weights, want)


@pytest.mark.parametrize("estimator", ["shared", "local"])
def test_a_point_and_a_delta_give_one_log_joint(estimator: str) -> None:
    """A guide of Pyro's `Delta`s, as `AutoDelta` is, at the same weights and scales, up to the scales' own factors."""
    model = linear(priors.ARD("layer", dist.InverseGamma(A, B)), 4)
    guide: Any = guides.Point(model)
    x, y = torch.randn(5, 4), torch.randn(5, 1)
    with torch.no_grad():
        guide.hyper_log_scale["weight_prior_variance"].fill_(-12.0)  # practically a point estimate
    variance = guide.hyper_loc["weight_prior_variance"].detach().exp()
    model_r, guide_r = model, guide
    if estimator == "local":
        model_r, guide_r = pyrodrop.reparam.reparameterize(model, guide, pyrodrop.reparam.LocalReparam())
    terms = elbo_terms(model_r, guide_r, x, y)

    def delta(*_: Any) -> None:
        pyro.sample("weight_prior_variance", dist.Delta(variance).to_event(2))
        pyro.sample("weight", dist.Delta(guide.loc["weight"].detach()).to_event(2))

    loss = Trace_ELBO().loss(model, delta, x, y)
    assert float(sum(elbo_terms(model, delta, x, y)).detach()) == pytest.approx(loss, rel=1e-5)
    hyperprior = dist.InverseGamma(A, B).log_prob(variance).sum()
    assert float((terms.nll + terms.kl_weights - hyperprior).detach()) == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(("group", "scales"), [("input", (4,)), ("layer", (1, 1, 1)), ("weight", (6, 2, 3))])
def test_a_variance_of_groups_scales_the_weights_of_a_unit_together(group: Any, scales: tuple[int, ...]) -> None:
    """A grouped convolution [6, 4 / 2, 3] by NumPy: unit k of group g is input 2 g + k."""
    layer = torch.nn.Conv1d(4, 6, 3, groups=2, bias=False)
    net = torch.nn.Sequential(layer, torch.nn.Flatten())
    model = models.from_module(net, {"0.weight": priors.ARD(group, dist.HalfCauchy(1.0))}, likelihoods.Gaussian(1.0))
    rng = np.random.default_rng(0)
    local, w = rng.gamma(2.0, size=scales), rng.normal(size=(6, 2, 3))
    values = {"0.weight_prior_variance": local, "0.weight": w}
    trace = poutine.trace(poutine.condition(model, {k: torch.tensor(v).float() for k, v in values.items()})).get_trace(
        torch.zeros(1, 4, 3)
    )
    trace.compute_log_prob()
    each = {
        "input": lambda o, i, k: local[2 * (o // 3) + i],
        "layer": lambda o, i, k: local[0, 0, 0],
        "weight": lambda o, i, k: local[o, i, k],
    }[group]
    sd = np.sqrt([[[each(o, i, k) for k in range(3)] for i in range(2)] for o in range(6)])
    assert float(trace.nodes["0.weight"]["log_prob_sum"]) == pytest.approx(stats.norm.logpdf(w, 0, sd).sum(), rel=1e-4)
    heavy = stats.halfcauchy.logpdf(local).sum()
    assert float(trace.nodes["0.weight_prior_variance"]["log_prob_sum"]) == pytest.approx(heavy, rel=1e-4)
