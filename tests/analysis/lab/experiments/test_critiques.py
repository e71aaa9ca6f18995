"""The critiques: every closed form against an independent computation, and the page at the size of a test."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy.integrate import quad
from scipy.optimize import minimize, minimize_scalar
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.experiments.critiques import foong, one_weight, osband

# Osband: one weight


def test_exact_spread_of_one_weight_by_quadrature() -> None:
    for n in (1, 10, 100):
        end = 8 / math.sqrt(n + 1)
        mean = n / (n + 1)

        def density(w: float, n: int = n, mean: float = mean) -> float:
            return math.exp(-n * ((1 - w) ** 2 - (1 - mean) ** 2) / 2 - (w**2 - mean**2) / 2)

        mass, first, second = (
            quad(lambda w, k=k: w**k * density(w), mean - end, mean + end)[0]
            for k in (0, 1, 2)  # type: ignore[misc]
        )
        assert one_weight.exact_sd(n) == pytest.approx(math.sqrt(second / mass - (first / mass) ** 2), rel=1e-6)


@pytest.mark.parametrize("penalty", ["decay", "elbo"])
@pytest.mark.parametrize("n", [1, 10, 100])
def test_dropout_of_one_weight_is_the_minimum_over_both_masks(n: int, penalty: Any) -> None:
    """The loss is written out over z = 0 and z = 1, as `nn.Dropout` (which divides by 1 - r) or as the ELBO has it."""
    r = 0.1

    def loss(m: float) -> float:
        fit = sum(p * n * (1 - z * m) ** 2 / 2 for z, p in ((1, 1 - r), (0, r)))
        return fit + (((1 - r) * m) ** 2 / 2 if penalty == "decay" else (1 - r) * m**2 / 2)

    m = minimize_scalar(loss, bounds=(0, 2), method="bounded", options={"xatol": 1e-10}).x
    mean, sd = one_weight.dropout(n, r, penalty)
    assert mean == pytest.approx((1 - r) * m, rel=1e-6)
    assert sd == pytest.approx(math.sqrt((1 - r) * r) * m, rel=1e-6)
    assert sd / mean == pytest.approx(math.sqrt(r / (1 - r)))


def test_published_spreads_of_one_weight() -> None:
    table = osband.weight_table()
    assert [f"{v:.3f}" for v in table["dropout, rate .1, weight decay"].values()] == [
        "0.158",
        "0.275",
        "0.297",
        "0.300",
    ]
    assert [f"{v:.3f}" for v in table["exact"].values()] == ["0.707", "0.302", "0.100", "0.032"]


def test_learned_rate_of_one_weight_maximises_the_elbo() -> None:
    """Over m and r at once; minus the ELBO at theta = 0 contains -H(r)."""
    n = 3

    def loss(values: np.ndarray) -> float:
        m, r = values[0], 1 / (1 + math.exp(-values[1]))
        entropy = -r * math.log(r) - (1 - r) * math.log(1 - r)
        return n * ((1 - r) * (1 - m) ** 2 + r) / 2 + (1 - r) * m**2 / 2 - entropy

    found = minimize(loss, np.array([0.5, 0.0]), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    assert one_weight.learned_rate(n) == pytest.approx(1 / (1 + math.exp(-found[1])), rel=1e-5)


@pytest.mark.parametrize("alpha", [1 / 9, None])
def test_gaussian_noise_of_one_weight(alpha: float | None) -> None:
    """The fixed alpha by a search over m; the learned alpha gives the exact posterior."""
    n = 5

    def loss(m: float, a: float) -> float:
        v = a * m**2
        return n * ((1 - m) ** 2 + v) / 2 + (m**2 + v) / 2 - math.log(v) / 2  # the last is minus q's entropy

    if alpha is not None:
        m = minimize_scalar(lambda m: loss(m, alpha), bounds=(0.01, 2), method="bounded", options={"xatol": 1e-10}).x
        assert one_weight.gaussian_noise(n, alpha) == pytest.approx((m, math.sqrt(alpha) * m), rel=1e-6)
        return
    found = minimize(lambda v: loss(v[0], math.exp(v[1])), [1.0, 0.0], method="Nelder-Mead", options={"fatol": 1e-13}).x
    assert found[0] * math.exp(found[1] / 2) == pytest.approx(one_weight.exact_sd(n), rel=1e-4)


def test_a_fit_of_one_weight_has_the_spread_of_the_elbo() -> None:
    """`pyrodrop.fit` on the same problem: 10 observations of mean 1."""
    model = models.from_module(nn.Linear(1, 1, bias=False), priors.Gaussian(1.0), likelihoods.Gaussian(1.0))
    y = 1 + torch.linspace(-1, 1, 10)[:, None]
    guide = guides.BernoulliDropout(model, 0.1)
    data, schedule = (torch.ones(10, 1), y), pyrodrop.schedules.cosine(800)
    options: dict[str, Any] = {"estimator": "local", "engine": "traced", "progress": False, "lr_schedule": schedule}
    fit = pyrodrop.fit(model, guide, data, steps=800, lr=0.02, **options)
    loc = float(fit.guide.posterior("weight").loc.detach())
    assert loc * 0.3 == pytest.approx(one_weight.dropout(10, 0.1, "elbo")[1], rel=0.03)


def test_copies_with_a_share_of_the_precision_are_the_same_posterior() -> None:
    data = osband.sample(10, 0)
    problems = ((osband.network(), data), (osband.network(copies=4), osband.repeated(data, 4)))
    values = [{name: torch.randn(w.shape) for name, w in osband.network().weight_sites().items()} for _ in range(2)]
    once, often = (
        [float(poutine.trace(poutine.condition(model, one)).get_trace(own.x, own.y).log_prob_sum()) for one in values]
        for model, own in problems
    )
    assert often[1] - often[0] == pytest.approx(once[1] - once[0], rel=1e-4)
    assert abs(once[1] - once[0]) > 1


# The rest


def test_published_slice_is_that_of_the_file(data_folder: Path) -> None:
    t, sd = foong.published_slice()
    own = np.loadtxt(data_folder / "foong2020" / "hmc_1hl_slice.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(np.interp(t.numpy(), own[:, 0], own[:, 4]), sd.numpy(), atol=2e-4)
    assert float(sd.max()) == pytest.approx(1.014, abs=0.02)


def test_origin_is_two_clusters(data_folder: Path) -> None:
    split = pyrodrop.data.foong2020()
    assert split.train.x.shape == (100, 2)
    assert split.train.y.shape == (100, 1)
    x = split.train.x
    torch.testing.assert_close(x[:50].mean(0), torch.ones(2), atol=0.1, rtol=0)
    torch.testing.assert_close(x[50:].mean(0), -torch.ones(2), atol=0.1, rtol=0)
    assert not split.truth
    assert float((split.test.x[:, 0] - split.test.x[:, 1]).abs().max()) == 0
