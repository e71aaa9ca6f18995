"""The entry of ScoringBench: probabilities of bins against SciPy, and scores of bins against those of the distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from pyrodrop import Prediction, likelihoods
from pyrodrop.analysis.lab.benchmarks.scoringbench import Entry
from pyrodrop.sklearn import NetworkRegressor

RNG = np.random.default_rng(0)
LOC, SCALE = 3 * RNG.normal(size=(4, 30)), 10 ** RNG.uniform(-1, 1, size=(4, 30))  # of four components, at 30 rows
Y = LOC[0] + SCALE[0] * RNG.normal(size=30)


class Known:
    """A regressor whose predictions are known: mixtures of normal distributions."""

    def __init__(self, loc: Any, scale: Any) -> None:
        numbers = np.stack([loc, -2 * np.log(scale)], -1)  # the location, and the logarithm of the precision
        self._prediction = Prediction.of_draws(numbers, likelihoods.HeteroscedasticGaussian())

    def prediction(self, _: object) -> Prediction:
        return self._prediction


@pytest.fixture(scope="module")
def bins() -> Any:
    return Entry(Known(LOC, SCALE)).predict_distribution(None)


def crps(y: Any, loc: Any, scale: Any) -> Any:
    """Of a mixture of normal distributions, Grimit et al. (2006), https://doi.org/10.1256/qj.05.235, equation 5."""

    def mean_of_size(m: Any, s: Any) -> Any:  # E |m + s e|
        return 2 * s * norm.pdf(m / s) + m * (2 * norm.cdf(m / s) - 1)

    apart = mean_of_size(loc[:, None] - loc, np.hypot(scale[:, None], scale))
    return mean_of_size(y - loc, scale).mean(0) - apart.mean((0, 1)) / 2


def crps_of_bins(y: float, edges: Any, p: Any) -> float:
    """The integral of (F - 1[t >= y])^2 for a density that is constant in each bin, F linear; Simpson's rule is exact."""
    ends = np.unique(np.append(edges, y))
    at = np.interp(ends, edges, np.append(0, p.cumsum()))
    above = (ends[:-1] + ends[1:]) / 2 > y
    low, high = at[:-1] - above, at[1:] - above
    return float((np.diff(ends) * (low**2 + low * high + high**2) / 3).sum())


def test_probabilities_of_bins_are_those_of_the_mixture(bins: Any) -> None:
    np.testing.assert_allclose(bins.probas.sum(1), 1, atol=1e-12)
    assert (np.diff(bins.bin_edges) > 0).all()
    below = norm.cdf(bins.bin_edges[:, None], LOC.T[..., None], SCALE.T[..., None]).mean(1)
    below[:, 0], below[:, -1] = 0, 1
    np.testing.assert_allclose(bins.probas, np.diff(below), atol=1e-9)
    assert below[:, 1].max() < 1e-6
    assert below[:, -2].min() > 1 - 1e-6
    np.testing.assert_allclose(bins.mean, LOC.mean(0))
    np.testing.assert_allclose((bins.probas * bins.bin_midpoints).sum(1), LOC.mean(0), atol=1e-3 * SCALE.max())


def test_scores_of_bins_are_near_those_of_the_mixture(bins: Any) -> None:
    got = [crps_of_bins(y, *row) for y, *row in zip(Y, bins.bin_edges, bins.probas, strict=True)]
    np.testing.assert_allclose(got, crps(Y, LOC, SCALE), rtol=2e-3, atol=1e-4)
    at = [int(np.searchsorted(edges, y)) - 1 for edges, y in zip(bins.bin_edges, Y, strict=True)]
    density = bins.probas[range(30), at] / np.diff(bins.bin_edges)[range(30), at]
    np.testing.assert_allclose(np.log(density), np.log(norm.pdf(Y, LOC, SCALE).mean(0)), atol=0.1)


def test_bins_that_are_narrower_than_float32_has_numbers() -> None:
    """y near a million with noise of a thousandth: float32 has numbers a sixteenth apart."""
    bins = Entry(Known(np.full((2, 3), 1e6), np.full((2, 3), 1e-3))).predict_distribution(None)
    assert (np.diff(bins.bin_edges.astype(np.float32)) > 0).all()
    np.testing.assert_allclose(bins.probas.sum(1), 1)
    np.testing.assert_array_equal(bins.bin_edges, bins.bin_edges.astype(np.float32))


@pytest.mark.more
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_regressor_is_trained_and_scored() -> None:
    x = pd.DataFrame(RNG.normal(size=(60, 3)), columns=["a", "b", "c"])
    y = pd.Series(300 + 20 * x["a"])
    entry = Entry(NetworkRegressor((8,), members=2, max_steps=50, draws=20, random_state=0)).fit(x, y)
    bins = entry.predict_distribution(x[:7])
    assert bins.probas.shape == (7, 400)
    assert bins.bin_edges.shape == (7, 401)
    np.testing.assert_array_equal(entry.predict(x[:7]), bins.mean)
    np.testing.assert_array_equal(bins.mean, entry.regressor.predict(x[:7]))


def test_counts_are_refused() -> None:
    class Counts:
        def prediction(self, _: object) -> Prediction:
            return Prediction.of_draws(np.ones((2, 3, 1)), likelihoods.Poisson())

    with pytest.raises(TypeError, match="must predict real numbers.*whole numbers"):
        Entry(Counts()).predict_distribution(None)


def test_scoringbench_itself(bins: Any) -> None:
    """Its scores of the bins, in float32."""
    metrics = pytest.importorskip("scoringbench.metrics")
    assert isinstance(Entry(), pytest.importorskip("scoringbench.wrappers.base").ProbabilisticWrapper)
    scores = metrics.compute_metrics(bins, Y)
    assert scores["crps"] == pytest.approx(crps(Y, LOC, SCALE).mean(), rel=2e-3)
    assert scores["log_score"] == pytest.approx(-np.log(norm.pdf(Y, LOC, SCALE).mean(0)).mean(), abs=5e-3)
    assert scores["rmse"] == pytest.approx(np.sqrt(((Y - LOC.mean(0)) ** 2).mean()))
