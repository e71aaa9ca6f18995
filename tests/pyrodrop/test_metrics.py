"""Scores, against scipy and closed forms."""

import math

import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from pyrodrop import metrics
from pyrodrop.predictive import Prediction

pytestmark = pytest.mark.usefixtures("float64")


def gaussian(loc: torch.Tensor, sd: float) -> Prediction:
    return Prediction(f=loc[None], law=dist.Normal(loc[None], sd).to_event(1))


def test_log_density_of_one_draw_is_the_gaussians() -> None:
    f, y = torch.randn(1, 9, 2), torch.randn(9, 2)
    want = torch.from_numpy(stats.norm.logpdf(y.numpy(), f[0].numpy(), 0.5)).sum(1)
    torch.testing.assert_close(metrics.log_predictive_density(f, y, 4.0), want)
    torch.testing.assert_close(gaussian(f[0], 0.5).log_density(y), want)


def test_log_density_survives_a_shift_that_underflows() -> None:
    """exp(-tau |y - f|^2 / 2) is 0 in floating point, its logarithm is not."""
    f, y = torch.tensor([[[1e4]], [[1e4 + 1]]]), torch.zeros(1, 1)
    want = -0.5 * 1e8 - math.log(2) - 0.5 * math.log(2 * math.pi) + math.log1p(math.exp(-0.5 * (2e4 + 1)))
    assert float(metrics.log_predictive_density(f, y, 1.0)) == pytest.approx(want, rel=1e-14)


def test_crps_of_a_gaussian() -> None:
    """sd [z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)] (Gneiting & Raftery 2007, eq. 21)."""
    z = torch.tensor([[-1.0], [0.2], [2.0]])
    draws = 2.0 * torch.randn(200_000, 3, 1)
    z_ = z.numpy()
    want = 2 * (z_ * (2 * stats.norm.cdf(z_) - 1) + 2 * stats.norm.pdf(z_) - 1 / math.sqrt(math.pi))
    assert metrics.crps(draws, 2 * z) == pytest.approx(float(want.mean()), abs=5e-3)


def test_a_calibrated_prediction_is_uniform_and_covers() -> None:
    loc = torch.randn(50_000, 1)
    y = loc + 0.7 * torch.randn(50_000, 1)
    prediction = gaussian(loc, 0.7)
    pit = metrics.pit(prediction, y)
    assert stats.kstest(pit.numpy().ravel(), "uniform").pvalue > 1e-3
    for level in (0.5, 0.95):
        assert metrics.coverage(pit, level) == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 50_000))
    assert metrics.coverage(metrics.pit(gaussian(loc, 0.35), y), 0.95) < 0.75


def test_interval_width_of_a_gaussian() -> None:
    draws = 3 * torch.randn(100_000, 2, 1)
    assert metrics.interval_width(draws, 0.95) == pytest.approx(2 * 1.959964 * 3, rel=0.01)


def test_rmse() -> None:
    assert metrics.rmse(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]])) == pytest.approx(math.sqrt(2.5))


def test_regression_scores_are_the_parts() -> None:
    loc, y = torch.randn(40, 1), torch.randn(40, 1)
    prediction = gaussian(loc, 1.0)
    scores = metrics.regression_scores(prediction, y[:, 0])
    assert scores["rmse"] == metrics.rmse(loc, y)
    assert scores["log_density"] == pytest.approx(float(prediction.log_density(y).mean()))
    assert scores["coverage_50"] == metrics.coverage(metrics.pit(prediction, y), 0.5)
    assert scores["width_95"] == pytest.approx(2 * 1.96, rel=0.05)


def test_shapes_are_never_broadcast() -> None:
    column, row = torch.ones(4, 1), torch.ones(4)
    with pytest.raises(ValueError, match="one shape"):
        metrics.rmse(column, row)
    with pytest.raises(ValueError, match="shape of y"):
        metrics.crps(torch.ones(3, 4, 1), row)
    with pytest.raises(ValueError, match="shape of y"):
        metrics.log_predictive_density(torch.ones(3, 4, 1), row, 1.0)
    with pytest.raises(ValueError, match="must lie in"):
        metrics.coverage(column, 95.0)
