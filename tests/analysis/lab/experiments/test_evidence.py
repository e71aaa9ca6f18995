"""The log evidence by thermodynamic integration, against Gaussian integrals, and the bounds of networks beside it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import likelihoods, models, priors
from pyrodrop.analysis.lab.experiments.references import evidence, load
from pyrodrop.analysis.lab.experiments.remedies import bounds, networks
from pyrodrop.data import Dataset
from pyrodrop.zoo.exact import PROBLEMS

SIZES, PRECISION = 20, 1e4  # w ~ N(0, I), ln L = -PRECISION |w|^2 / 2: ln Z = -SIZES ln(1 + PRECISION) / 2


def _error(factor: float) -> float:
    """Of the integral from 1e-4 to 1, with draws whose means and variances are exact."""
    powers = factor ** -np.arange(round(4 / math.log10(factor)) + 1.0)
    draws = []
    for power in powers:
        mean = -SIZES / 2 * PRECISION / (1 + power * PRECISION)
        spread = math.sqrt(SIZES) / 2 * PRECISION / (1 + power * PRECISION)  # sd / sqrt(2), by two draws
        draws.append(torch.tensor([mean - spread, mean + spread], dtype=torch.float64))
    truth = -SIZES / 2 * (math.log1p(PRECISION) - math.log1p(powers[-1] * PRECISION))
    return evidence._integral(powers, draws, math.log(factor)) - truth


def test_the_integral_over_powers_has_an_error_of_the_fourth_order() -> None:
    fine, coarse = _error(10**0.125), _error(10**0.25)
    assert abs(_error(2.0)) < 1e-3
    assert coarse / fine == pytest.approx(16, rel=0.05)


@pytest.mark.slow
def test_the_log_evidence_of_a_linear_regression() -> None:
    x, y = bounds.problem(0)
    model = models.from_module(
        nn.Linear(bounds.COLUMNS, 1, bias=False), priors.Gaussian(1.0), likelihoods.Gaussian(4.0)
    )
    exact = pyrodrop.sample(model, (x, y), chains=32, draws=64, tune=100, engine="traced", device="cpu", progress=False)
    found = evidence.log_evidence(exact, Dataset(x, y), seed=0, factor=8.0, progress=False)
    assert found == pytest.approx(bounds.log_evidence(x, y), abs=1.0)  # 5 sd: 0.1 per power and piece of ln 8


def test_importance_weights_of_a_network_are_those_of_plain_torch() -> None:
    problem, exact = PROBLEMS["co2"], load("co2")
    train, model = problem.data()[0], problem.model()
    guide = pyrodrop.guides.MeanField(model, 0.3)
    fit = pyrodrop.fit(model, guide, train, steps=1, device="cpu", engine="pyro", progress=False)
    found = networks.log_weights(problem, exact, fit, train, 3, seed=0).detach()
    q = {name: fit.guide.posterior(name) for name in exact.samples}
    with pyrodrop.devices.seeded(0, torch.device("cpu")):
        drawn = {name: own.sample((3,)).double() for name, own in q.items()}
    for i, one in enumerate(found):
        w = {name: value[i] for name, value in drawn.items()}
        z = ((train.x - train.x.mean(0)) / train.x.std(0, correction=0)).double()
        f = torch.tanh(z @ w["layers.0.weight"].T + w["layers.0.bias"]) @ w["layers.1.weight"].T + w["layers.1.bias"]
        f = f * train.y.double().std(correction=0) + train.y.double().mean()
        total = torch.distributions.Normal(f, 2.0).log_prob(train.y.double()).sum()
        for name, value in w.items():
            sd = 1.0 if name.endswith("bias") else 4.0 / math.sqrt(value.shape[1])
            own = q[name].base_dist
            total += torch.distributions.Normal(0.0, sd).log_prob(value).sum()
            total -= torch.distributions.Normal(own.loc.double(), own.scale.double()).log_prob(value).sum()
        assert float(one) == pytest.approx(float(total), rel=1e-4)


def test_every_problem_has_a_stored_evidence() -> None:
    stored = json.loads(evidence.FILE.read_text(encoding="utf-8"))
    assert stored.keys() == PROBLEMS.keys()
    assert all(math.isfinite(value) for value in stored.values())


def test_equal_modes() -> None:
    assert networks.equal_modes(PROBLEMS["co2"]) == pytest.approx(math.log(math.factorial(20) * 2**20))
    assert networks.equal_modes(PROBLEMS["foong"]) == pytest.approx(math.log(math.factorial(50)))
