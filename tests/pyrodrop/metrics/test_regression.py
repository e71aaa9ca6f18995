"""Scores of real observations and where uncertainty comes from, against SciPy, closed forms and draws."""

import math

import pyro.distributions as dist
import pytest
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pyrodrop import metrics
from pyrodrop.prediction.prediction import Prediction

pytestmark = pytest.mark.usefixtures("float64")


def gaussian(loc: torch.Tensor, sd: float) -> Prediction:
    return Prediction(f=loc[None], distribution=dist.Normal(loc[None], sd).to_event(1))


def test_log_density_of_one_draw_is_the_gaussians() -> None:
    f, y = torch.randn(1, 9, 2), torch.randn(9, 2)
    want = torch.from_numpy(stats.norm.logpdf(y.numpy(), f[0].numpy(), 0.5)).sum(1)
    torch.testing.assert_close(gaussian(f[0], 0.5).log_density(y), want)


def test_log_density_survives_a_shift_that_underflows() -> None:
    """exp(-tau |y - f|^2 / 2) is 0 in floating point, its logarithm is not."""
    f, y = torch.tensor([[[1e4]], [[1e4 + 1]]]), torch.zeros(1, 1)
    want = -0.5 * 1e8 - math.log(2) - 0.5 * math.log(2 * math.pi) + math.log1p(math.exp(-0.5 * (2e4 + 1)))
    prediction = Prediction(f, dist.Normal(f, 1.0).to_event(1))
    assert float(prediction.log_density(y)) == pytest.approx(want, rel=1e-14)


def test_crps_of_a_gaussian() -> None:
    """sd [z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)] (Gneiting & Raftery 2007, section 4.2), at known quantiles."""
    z = torch.tensor([[-1.0], [0.2], [2.0]])
    levels = (torch.arange(100_000) + 0.5) / 100_000
    draws = 2.0 * torch.special.ndtri(levels)[:, None, None].expand(-1, 3, 1)
    z_ = z.numpy()
    want = 2 * (z_ * (2 * stats.norm.cdf(z_) - 1) + 2 * stats.norm.pdf(z_) - 1 / math.sqrt(math.pi))
    assert metrics.crps(draws, 2 * z) == pytest.approx(float(want.mean()), abs=1e-4)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_scores_of_draws_are_those_of_scoringrules(offset: float) -> None:
    """Draws far from y, on both sides, and equal to y."""
    draws, y = torch.randn(30, 9, 2) + offset, 2 * torch.randn(9, 2) + offset
    y[0], y[1] = draws[3, 0], offset + 9.0
    theirs = scoringrules.crps_ensemble(y.numpy(), draws.numpy(), m_axis=0, estimator="nrg").mean()
    assert metrics.crps(draws, y) == pytest.approx(float(theirs), rel=1e-7)


def test_sharpness_is_the_rmse_of_a_right_prediction() -> None:
    loc = torch.randn(4_000, 1)
    prediction, y = gaussian(loc, 0.7), loc + 0.7 * torch.randn(4_000, 1)
    scores = metrics.regression_scores(prediction, y)
    assert scores["sharpness"] == pytest.approx(0.7, rel=1e-12)
    se = 0.7 / math.sqrt(2 * 4_000)  # of the rmse of 4,000 Gaussian errors
    assert abs(scores["rmse"] - scores["sharpness"]) < 4 * se


def test_a_calibrated_prediction_is_uniform_and_covers() -> None:
    loc = torch.randn(50_000, 1)
    y = loc + 0.7 * torch.randn(50_000, 1)
    prediction = gaussian(loc, 0.7)
    pit = metrics.pit(prediction, y)
    assert stats.kstest(pit.numpy().ravel(), "uniform").pvalue > 1e-3
    for level in (0.5, 0.95):
        assert metrics.coverage(pit, level) == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 50_000))
    assert metrics.coverage(metrics.pit(gaussian(loc, 0.35), y), 0.95) < 0.75


def test_regression_scores_are_the_parts() -> None:
    loc, y = torch.randn(40, 1), torch.randn(40, 1)
    prediction = gaussian(loc, 1.0)
    scores = metrics.regression_scores(prediction, y[:, 0])
    assert scores["rmse"] == metrics.rmse(loc, y)
    assert scores["log_density"] == pytest.approx(float(prediction.log_density(y).mean()))
    assert scores["coverage_50"] == metrics.coverage(metrics.pit(prediction, y), 0.5)
    assert scores["width_95"] == pytest.approx(2 * 1.96, rel=0.05)
    assert scores["sharpness"] == 1


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
        torch.testing.assert_close(metrics.mutual_information(predicted), split.epistemic)


def test_the_variance_is_that_of_draws() -> None:
    """Noise that differs by draw and point, within 4 s.e. of a variance."""
    f, sd = torch.randn(50, 4, 2), 0.2 + torch.rand(50, 4, 2)
    prediction = Prediction(f=f, distribution=dist.Normal(f, sd).to_event(1))
    y = prediction.sample_y(100_000)
    fourth = (y - y.mean(0)).pow(4).mean(0)
    se = ((fourth - y.var(0) ** 2) / len(y)).sqrt()
    assert float(((y.var(0) - prediction.variance) / se).abs().max()) < 4
