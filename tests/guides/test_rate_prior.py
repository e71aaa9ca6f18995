"""Learned rates with a distribution of their own: the penalty by SciPy, where it counts, and where it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.training.elbo import bound_terms, elbo_terms
from tests.small import mlp, normal

X = normal(20, 3, seed=1)
Y = torch.linspace(-1, 1, 20)[:, None]
BETA, LOG_NORMAL = dist.Beta(2.0, 8.0), dist.LogNormal(-2.0, 0.7)
OF_BETA, OF_LOG_NORMAL = stats.beta(2, 8), stats.lognorm(0.7, scale=math.exp(-2))
GUIDES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "concrete, layer": (lambda m, **options: guides.ConcreteDropout(m, **options), BETA, OF_BETA),
    "concrete, input": (lambda m, **options: guides.ConcreteDropout(m, "input", **options), BETA, OF_BETA),
    "variational A": (lambda m, **options: guides.VariationalDropout(m, "A", "input", **options), LOG_NORMAL, OF_LOG_NORMAL),
    "variational B": (lambda m, **options: guides.VariationalDropout(m, "B", "layer", **options), LOG_NORMAL, OF_LOG_NORMAL),
    "variational, weight": (
        lambda m, **options: guides.VariationalDropout(m, "B", "weight", kl_scale=0.5, **options), LOG_NORMAL, OF_LOG_NORMAL
    ),
    "sparse": (lambda m, **options: guides.SparseDropout(m, -4.0, **options), LOG_NORMAL, OF_LOG_NORMAL),
    "ARD": (lambda m, **options: guides.ARDDropout(m, -4.0, **options), LOG_NORMAL, OF_LOG_NORMAL),
}  # fmt: skip


def model(name: str = "") -> models.MLP:
    prior = priors.LogUniform() if name == "variational A" else priors.Gaussian()
    return mlp(3, 6, 1, activation="tanh", precision=10.0, prior=prior)


def made(name: str) -> tuple[models.MLP, Any, Any]:
    """A model, a guide with a distribution of its rates, and the same without; rates are drawn at random."""
    make, prior, _ = GUIDES[name]
    network = model(name)
    guide, plain = make(network, rate_prior=prior), make(network)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    plain.load_state_dict(guide.state_dict())
    return network, guide, plain


def penalty(name: str, guide: Any) -> float:
    return -float(sum(GUIDES[name][2].logpdf(rate.double().numpy()).sum() for rate in guide.rates().values()))


@pytest.mark.filterwarnings("ignore:the log-uniform prior is improper")
@pytest.mark.parametrize("name", GUIDES)
def test_the_loss_has_minus_the_log_density_of_every_rate(name: str) -> None:
    network, guide, plain = made(name)

    def loss(of: Any) -> Tensor:
        torch.manual_seed(0)
        return elbo_terms(network, of, X, Y).loss

    want = penalty(name, guide)
    assert abs(want) > 0.1
    assert float((loss(guide) - loss(plain)).detach()) == pytest.approx(want, rel=1e-3, abs=1e-3)


@pytest.mark.filterwarnings("ignore:the log-uniform prior is improper")
@pytest.mark.parametrize("name", GUIDES)
def test_the_elbo_has_not(name: str) -> None:
    network, guide, plain = made(name)
    terms = []
    for of in (guide, plain):
        torch.manual_seed(0)
        terms.append(float(bound_terms(network, of, (X, Y), {})[0].loss.detach()))
    assert terms[0] == terms[1]


def test_one_weight_ends_where_the_formula_is_least() -> None:
    """n rows of y = 1 with noise 1: minimise n ((1 - m)^2 + a m^2) / 2 + (m^2 (1 + a) - ln(a m^2)) / 2 - ln p(a)."""
    n, prior = 10, stats.lognorm(0.1, scale=0.02)

    def loss(values: np.ndarray) -> float:
        m, a = values[0], math.exp(values[1])
        fit = n * ((1 - m) ** 2 + a * m**2) / 2 + (m**2 * (1 + a) - math.log(a * m**2)) / 2
        return float(fit - prior.logpdf(a))

    m, log_a = minimize(loss, np.array([0.9, -3.0]), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, 0.9)  # the noise of a weight vanishes where it would change its sign
    network = models.from_module(network, priors.Gaussian(), likelihoods.Gaussian(1.0))
    guide = guides.VariationalDropout(network, rate_prior=dist.LogNormal(math.log(0.02), 0.1))
    settings: dict[str, Any] = {"steps": 800, "lr": 0.03, "lr_schedule": pyrodrop.schedules.cosine(800)}
    data = (torch.ones(n, 1), torch.ones(n, 1))
    fit = pyrodrop.fit(network, guide, data, engine="traced", estimator="local", progress=False, **settings)
    assert float(fit.guide.rates()["weight"]) == pytest.approx(math.exp(log_a), rel=0.03)
    assert float(fit.guide.mean()["weight"]) == pytest.approx(m, rel=0.02)
    free = pyrodrop.fit(network, guides.VariationalDropout(network), data, engine="traced", progress=False, **settings)
    assert float(free.guide.rates()["weight"]) > 3 * math.exp(log_a)  # without it, 1 / n


def test_files_say_which_distribution(tmp_path: Path) -> None:
    network, guide, plain = made("concrete, layer")
    pyrodrop.fit(network, guide, (X, Y), steps=1, engine="pyro", progress=False).save(tmp_path / "fit")
    pyrodrop.Fit.load(tmp_path / "fit", network, guides.ConcreteDropout(network, rate_prior=dist.Beta(2.0, 8.0)))
    for other in (plain, guides.ConcreteDropout(network, rate_prior=dist.Beta(2.0, 9.0))):
        with pytest.raises(ValueError, match="rate_prior"):
            pyrodrop.Fit.load(tmp_path / "fit", network, other)
