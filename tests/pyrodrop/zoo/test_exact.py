"""Exact posteriors: the log density of their stored draws by NumPy and SciPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from pyrodrop import zoo

G = {"tanh": np.tanh, "relu": lambda h: np.maximum(h, 0)}
TABLES = {  # activation, scale of the prior times the root of a layer's width, precision of y
    "co2": ("tanh", 4.0, 0.25),
    "mnist": ("tanh", 5.0, None),
    "foong": ("relu", 4.0, 100.0),
    "yacht": ("relu", 2.0, 0.541869562034),
    "boston": ("relu", 2.0, 0.159707652696),
    "energy": ("relu", 2.0, 0.427114830213),
}


def log_density(name: str, w: dict[str, np.ndarray[Any, Any]]) -> float:
    """The log density of weights, from the data in their own units."""
    activation, scale, precision = TABLES[name]
    train, _ = zoo.PROBLEMS[name].data()
    x, y = train.x.double().numpy(), train.y.double().numpy()
    loc, size = 0.0, 1.0
    if name not in ("mnist", "foong"):
        spread = x.std(0)
        x = (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)
        loc, size = y.mean(), y.std()
    h = G[activation](x @ w["layers.0.weight"].T + w["layers.0.bias"])
    h = h @ w["layers.1.weight"].T + w["layers.1.bias"]
    total = sum(
        stats.norm(0, scale / value.shape[1] ** 0.5 if value.ndim == 2 else 1).logpdf(value).sum()
        for value in w.values()
    )
    if precision is None:
        p = np.exp(h - h.max(1, keepdims=True))
        return float(total + np.log((p / p.sum(1, keepdims=True))[np.arange(len(y)), y.astype(int)]).sum())
    return float(total + stats.norm(loc + size * h, precision**-0.5).logpdf(y).sum())


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TABLES)
def test_the_draws_have_the_log_density_of_the_network_written_out(name: str, request: pytest.FixtureRequest) -> None:
    if name != "co2":  # whose data are in the package
        request.getfixturevalue("data_folder")
    drawn: Any = zoo.load(f"exact/{name}")
    for chain, draw in ((0, 0), (3, 2)):
        weights = {site: values[chain, draw].double().numpy() for site, values in drawn.samples.items()}
        assert log_density(name, weights) == pytest.approx(float(drawn.stats["lp"][chain, draw]), abs=2e-3)


def test_an_approximation_is_a_fit_of_the_same_network() -> None:
    exact, fit = (zoo.load(name, device="cpu") for name in ("exact/co2", "exact/co2.mean-field"))
    assert fit.predict(zoo.PROBLEMS["co2"].data()[1].x, 3).f.shape == (3, 249, 1)
    assert exact.model.describe() == fit.model.describe()  # type: ignore[union-attr]
