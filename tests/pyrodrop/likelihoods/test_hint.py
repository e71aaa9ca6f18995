"""The hint of another likelihood than a Gaussian: where it is due, where not, and its number by SciPy."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_diabetes

from pyrodrop import likelihoods
from pyrodrop.likelihoods.hint import _FEWEST, _densities, _gaussian, hint

RNG = np.random.default_rng(0)
SIZE = 400
COUNTS = stats.nbinom(2, 2 / 22).rvs(SIZE, random_state=RNG)  # of mean 20 and dispersion .5
PRICES = np.exp(8 + RNG.normal(size=SIZE))

DUE = {
    "counts": (COUNTS, "NegativeBinomial"),
    "whole numbers in float32": (COUNTS.astype("float32"), "NegativeBinomial"),
    "prices": (PRICES, "LogNormal"),
    "prices in whole units": (PRICES.round() + 1, "LogNormal"),
    "two columns": (np.stack([PRICES, 3 * PRICES[::-1]], 1), "LogNormal"),
    "yes and no": (COUNTS > 20, "Bernoulli"),
    "missing rows": (np.where(np.arange(SIZE) % 3 == 0, math.nan, COUNTS), "NegativeBinomial"),
}
NOT_DUE = {
    "normal": RNG.normal(size=SIZE),
    "positive and nearly normal": 300 + 20 * RNG.normal(size=SIZE),
    "heights in whole centimetres": (170 + 10 * RNG.normal(size=SIZE)).round(),
    "rare events": stats.poisson(0.4).rvs(SIZE, random_state=RNG),
    "years": RNG.integers(1950, 2025, SIZE),
    "grades": RNG.integers(3, 9, SIZE),
    "skewed, with negative values": PRICES - 1000,
    "one skewed column": np.stack([PRICES, RNG.normal(size=SIZE)], 1),
    "diabetes": load_diabetes().target,
    "few rows": PRICES[: _FEWEST - 1],
    "no rows": PRICES[:0],
    "a constant": np.ones(SIZE),
    "large numbers, which are whole in float64": 1e20 * (10 + RNG.normal(size=SIZE)),
    "infinite": np.where(np.arange(SIZE) == 3, math.inf, PRICES),
    "all missing": np.full(SIZE, math.nan),
}


@pytest.mark.parametrize("case", DUE)
def test_the_likelihood_that_y_is_drawn_from_is_named(case: str) -> None:
    y, name = DUE[case]
    message = hint(torch.as_tensor(y))
    assert message is not None
    assert f"likelihoods.{name}()" in message
    assert hasattr(likelihoods, name)


@pytest.mark.parametrize("case", NOT_DUE)
def test_no_other_is_named_than_a_gaussian(case: str) -> None:
    assert hint(torch.as_tensor(NOT_DUE[case])) is None


def test_its_number_is_the_mean_difference_of_log_densities() -> None:
    """SciPy's, of a negative binomial distribution with the moments of y, and of the Gaussian's intervals."""
    y = COUNTS.astype(float)
    m, v = y.mean(), y.var()
    a = (v - m) / m**2
    gaussian = np.log(stats.norm.cdf(y + 0.5, m, v**0.5) - stats.norm.cdf(y - 0.5, m, v**0.5))
    gain = (stats.nbinom(1 / a, 1 / (1 + a * m)).logpmf(y) - gaussian).mean()
    [number] = re.findall(r"by ([0-9.]+) nats", str(hint(torch.as_tensor(y))))
    assert float(number) == pytest.approx(gain, abs=0.006)


def test_densities_are_scipys() -> None:
    y = 1 + COUNTS.astype(float)
    m, v = y.mean(), y.var()
    a, logs = (v - m) / m**2, np.log(y)
    want = {
        "NegativeBinomial": stats.nbinom(1 / a, 1 / (1 + a * m)).logpmf(y),
        "LogNormal": stats.lognorm(logs.std(), scale=np.exp(logs.mean())).logpdf(y),
    }
    columns = torch.as_tensor(y)[:, None]
    ours = dict(_densities(columns, True))
    assert ours.keys() == want.keys()
    for name, density in want.items():
        np.testing.assert_allclose(ours[name][:, 0], density, rtol=1e-8)
    np.testing.assert_allclose(_gaussian(columns, False)[:, 0], stats.norm(m, v**0.5).logpdf(y), rtol=1e-8)
    far = np.r_[np.zeros(399), 1000.0]  # 20 standard deviations away
    of_mass = np.log(stats.norm.sf(999.5, far.mean(), far.std()) - stats.norm.sf(1000.5, far.mean(), far.std()))
    assert float(_gaussian(torch.as_tensor(far)[:, None], True)[-1]) == pytest.approx(of_mass, rel=1e-8)
