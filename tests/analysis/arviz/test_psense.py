"""ArviZ's sensitivity to power-scaling on the tree of a fit, against quadrature on a regression whose posterior is known."""

from __future__ import annotations

from typing import Any

import arviz_stats
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import pyrodrop
from pyrodrop import guides, priors

ALPHAS = (0.8, 1.25)
N, TAU = 60, 1.0  # of small.conjugate


def distance(grid: NDArray[Any], p: NDArray[Any], q: NDArray[Any]) -> float:
    """Cumulative Jensen-Shannon distance of two distribution functions on a grid; Kallioinen et al. (2024), eq. 8."""
    both = (p + q) / 2
    mass = np.trapezoid(p, grid), np.trapezoid(q, grid)
    one = np.trapezoid(p * np.log2(p / both), grid) + (mass[1] - mass[0]) / (2 * np.log(2))
    two = np.trapezoid(q * np.log2(q / both), grid) + (mass[0] - mass[1]) / (2 * np.log(2))
    return float(np.sqrt((one + two) / sum(mass)))


def sensitivity(draws: NDArray[Any], mean: float, scaled: str) -> float:
    """Of a weight with posterior N(mean, 1 / (N tau + 1)) under the prior N(0, 1), over the range of the draws.

    The prior to the power a has precision a, the likelihood to the power a has a N tau.
    """
    grid = np.linspace(draws.min(), draws.max(), 20_001)
    base = stats.norm(mean, (N * TAU + 1) ** -0.5)
    found = 0.0
    for alpha in ALPHAS:
        of_prior, of_data = (alpha, 1.0) if scaled == "prior" else (1.0, alpha)
        precision = of_data * N * TAU + of_prior
        other = stats.norm(mean * (N * TAU + 1) / (N * TAU) * of_data * N * TAU / precision, precision**-0.5)
        either = distance(grid, base.cdf(grid), other.cdf(grid)), distance(grid, base.sf(grid), other.sf(grid))
        found += max(either) / abs(np.log2(alpha))
    return found / 2


@pytest.mark.few(1)
@pytest.mark.parametrize("scaled", ["prior", "likelihood"])
def test_the_sensitivity_of_the_exact_posterior(small: Any, scaled: str) -> None:
    fit, _ = small.conjugate(1.0)
    tree = pyrodrop.to_arviz(fit, fit.data, num_samples=20_000, weights=True)
    found = arviz_stats.psense(tree, var_names=["weight"], group=scaled, alphas=ALPHAS)["weight"].values[0]
    draws = tree["posterior"]["weight"].values[0, :, 0]
    means = fit.guide.loc["weight"][0].tolist()
    want = [sensitivity(draws[:, j], mean, scaled) for j, mean in enumerate(means)]
    np.testing.assert_allclose(found, want, rtol=0.1)


def test_log_prior_is_that_of_each_site(small: Any) -> None:
    fit = small.fitted(guides.MeanField, small.regressor(bias_prior=priors.Gaussian(2.0)), steps=2)
    tree = pyrodrop.to_arviz(fit, small.waves(), num_samples=30, weights=True, log_likelihood=True)
    scales = {"layers.0.weight": 1.0, "layers.0.bias": 2.0, "layers.1.weight": 1.0, "layers.1.bias": 2.0}
    assert set(tree["log_prior"].data_vars) == set(scales)
    for name, scale in scales.items():
        values = tree["posterior"][name].values[0].reshape(30, -1)
        np.testing.assert_allclose(tree["log_prior"][name][0], stats.norm(0, scale).logpdf(values).sum(1), rtol=1e-4)
    total = tree["log_likelihood"]["y"].sum("obs_id") + sum(tree["log_prior"][name] for name in scales)
    np.testing.assert_allclose(total, tree["sample_stats"]["lp"], rtol=1e-4)


def test_without_a_density_there_is_no_log_prior(small: Any) -> None:
    fit = small.fitted(small.dropout, steps=2)
    tree = pyrodrop.to_arviz(fit, small.waves(), num_samples=30)
    assert "log_prior" not in tree.children
    with pytest.raises(TypeError, match="log prior not found"):
        arviz_stats.psense(tree, group="prior")
