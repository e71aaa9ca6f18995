"""Where uncertainty comes from, against scipy's entropies, closed forms and draws."""

from __future__ import annotations

import math

import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pyrodrop import metrics
from pyrodrop.prediction.prediction import Prediction

pytestmark = pytest.mark.usefixtures("float64")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.floats(0.01, 100), st.integers(0, 2**20))
def test_entropies_are_scipys(draws: int, n: int, classes: int, spread: float, seed: int) -> None:
    """H of the mean, and I as the mean Kullback-Leibler divergence of the draws from their mean."""
    logits = spread * torch.randn(draws, n, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p = logits.softmax(-1)
    mean = p.mean(0)
    total = stats.entropy(mean.numpy(), axis=-1)
    information = stats.entropy(p.numpy(), mean.expand_as(p).numpy(), axis=-1).mean(0)
    for predicted in (p, Prediction(f=logits, distribution=dist.Categorical(logits=logits))):
        split = metrics.entropy_split(predicted)
        assert split.total.numpy() == pytest.approx(total, abs=1e-12)
        assert split.epistemic.numpy() == pytest.approx(information, abs=1e-12)
        assert split.aleatoric.numpy() == pytest.approx(stats.entropy(p.numpy(), axis=-1).mean(0), abs=1e-12)
        torch.testing.assert_close(split.total, split.aleatoric + split.epistemic, atol=1e-12, rtol=0)
        assert float(split.epistemic.min()) >= 0
        assert float(split.epistemic.max()) <= math.log(min(draws, classes)) + 1e-12
        torch.testing.assert_close(metrics.predictive_entropy(predicted), split.total)
        torch.testing.assert_close(metrics.expected_entropy(predicted), split.aleatoric)
        torch.testing.assert_close(metrics.mutual_information(predicted), split.epistemic)


def test_the_parts_of_the_variance_are_those_of_draws() -> None:
    """Noise that differs by draw and point: total against draws of y, within 4 s.e. of a variance."""
    f, sd = torch.randn(50, 4, 2), 0.2 + torch.rand(50, 4, 2)
    prediction = Prediction(f=f, distribution=dist.Normal(f, sd).to_event(1))
    split = metrics.variance_split(prediction)
    torch.testing.assert_close(split.total, split.aleatoric + split.epistemic)
    torch.testing.assert_close(split.aleatoric, (sd**2).mean(0))
    y = prediction.sample_y(100_000)
    fourth = (y - y.mean(0)).pow(4).mean(0)
    se = ((fourth - y.var(0) ** 2) / len(y)).sqrt()
    assert float(((y.var(0) - split.total) / se).abs().max()) < 4


def test_a_prediction_in_closed_form_has_its_parts_too() -> None:
    """As from a Gaussian process: one component, whose variance is the sum of those of function and noise."""
    loc, f_sd = torch.zeros(1, 3, 1), torch.tensor([[0.3], [0.0], [2.0]])
    distribution = dist.Normal(loc, (f_sd**2 + 0.25).sqrt()).to_event(1)
    split = metrics.variance_split(Prediction(f=torch.randn(7, 3, 1), distribution=distribution, f_sd=f_sd))
    torch.testing.assert_close(split.epistemic, f_sd**2)
    torch.testing.assert_close(split.aleatoric, torch.full((3, 1), 0.25))
