"""The hint that whole numbers are hardly Gaussian: where it is due, where not, and its number by SciPy."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from scipy import stats

from pyrodrop import likelihoods
from pyrodrop.likelihoods.hint import _FEWEST, hint

RNG = np.random.default_rng(0)
SIZE = 400
COUNTS = stats.nbinom(2, 2 / 22).rvs(SIZE, random_state=RNG)  # of mean 20 and dispersion .5
PRICES = np.exp(8 + RNG.normal(size=SIZE))

DUE = {
    "counts": (COUNTS, "NegativeBinomial"),
    "two columns": (np.stack([COUNTS, 3 * COUNTS[::-1]], 1), "NegativeBinomial"),
    "yes and no": (COUNTS > 20, "Bernoulli"),
    "missing rows": (np.where(np.arange(SIZE) % 3 == 0, math.nan, COUNTS), "NegativeBinomial"),
}
NOT_DUE = {
    "normal": RNG.normal(size=SIZE),
    "heights in whole centimetres": (170 + 10 * RNG.normal(size=SIZE)).round(),
    "rare events": stats.poisson(0.4).rvs(SIZE, random_state=RNG),
    "prices, which recipes compare with their logarithm": PRICES,
    "one column of counts": np.stack([COUNTS, RNG.normal(size=SIZE)], 1),
    "few rows": COUNTS[: _FEWEST - 1],
    "a constant": np.ones(SIZE),
    "large numbers, which are whole in float64": 1e20 * (10 + RNG.normal(size=SIZE)),
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
