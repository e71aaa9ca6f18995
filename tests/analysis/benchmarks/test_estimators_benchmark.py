"""The estimators on tables: the baselines against computations by hand, and the stored numbers that the page shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.ensemble import RandomForestRegressor

from pyrodrop.analysis.benchmarks import estimators
from pyrodrop.analysis.benchmarks.tables import twelve

STORED = Path(estimators.__file__).with_name("results") / "estimators-cpu.json"


@pytest.fixture
def stored() -> Any:
    return json.loads(STORED.read_text(encoding="utf-8"))


def test_forests_have_the_noise_of_rows_that_are_out_of_the_bag() -> None:
    """The constant noise by hand; the noise by trees is at least as good for out-of-bag rows, of which it is chosen."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 2))
    y = x[:, 0] + np.where(x[:, 1] > 0, 1.0, 0.05) * rng.normal(size=400)
    train, test = (x[:300], y[:300]), (x[300:], y[300:])
    constant, spread = twelve.forests(train, test)
    forest = RandomForestRegressor(100, oob_score=True, random_state=0).fit(*train)
    sd = np.sqrt(np.mean((forest.oob_prediction_ - y[:300]) ** 2))
    assert constant == pytest.approx(norm.logpdf(y[300:], forest.predict(x[300:]), sd).mean())
    assert spread > constant + 0.1  # the noise depends on x


def test_numbers_of_the_network_are_means_over_seeds(stored: Any) -> None:
    for own in stored["tables"].values():
        assert len(own["densities"]) == estimators.SEEDS
        assert own["density"] == pytest.approx(np.mean(own["densities"]))


def test_the_stored_tables_are_those_of_the_script(stored: Any) -> None:
    assert set(stored["tables"]) == set(estimators.REGRESSIONS)
