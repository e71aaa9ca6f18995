"""The entry for ScoringBench, with a stand-in of its layout that was written from its documentation."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from pyrodrop.analysis.lab.peers.scoringbench import LEVELS, entry, entry_of_draws


class DistributionPrediction:
    """What the metrics read: medians, a native grid whose edges are the quantiles, and a resampled grid of equal bins."""

    def __init__(self, q: np.ndarray, alphas: np.ndarray, mean: np.ndarray, train_range: tuple[float, float]) -> None:
        assert train_range[1] > train_range[0]
        assert q.shape == (len(mean), len(alphas))
        assert np.isfinite(q).all()
        assert (np.diff(q) >= 0).all()
        self.q, self.alphas, self.mean, self.train_range = q, alphas, mean, train_range

    @classmethod
    def from_multi_quantile(cls, q: Any, alphas: Any, mean: Any = None, *, train_range: Any) -> DistributionPrediction:
        return cls(q, alphas, mean, train_range)

    @property
    def median(self) -> np.ndarray:
        return np.array([np.interp(0.5, self.alphas, row) for row in self.q])

    @property
    def native(self) -> SimpleNamespace:
        return SimpleNamespace(bin_edges=self.q, probas=np.diff(self.alphas), mean=self.mean)

    @property
    def resampled(self) -> SimpleNamespace:
        edges = np.linspace(min(self.train_range[0], self.q.min()), max(self.train_range[1], self.q.max()), 201)
        probas = [np.diff(np.interp(edges, row, self.alphas, left=0, right=1)) for row in self.q]
        return SimpleNamespace(bin_edges=edges, probas=np.array(probas), mean=self.mean)


class ProbabilisticWrapper:
    _y_train_range: tuple[float, float] | None = None

    def _set_train_range(self, y: Any) -> None:
        self._y_train_range = float(np.min(y)), float(np.max(y))


def installed(monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    for module in ("scoringbench", "scoringbench.univariate", "scoringbench.univariate.wrappers"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    vars(sys.modules["scoringbench.univariate.wrappers"]).update(names)


def test_an_entry_predicts_quantiles_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of y = 2 x + noise of standard deviation 1/2, with text, a gap, a date and names among the columns."""
    installed(monkeypatch, DistributionPrediction=DistributionPrediction, ProbabilisticWrapper=ProbabilisticWrapper)
    random = np.random.default_rng(0)
    x = random.normal(size=150)
    X = pd.DataFrame({
        "x": x, "kind": np.where(np.arange(150) % 3, "a", "b"), "gap": np.where(np.arange(150) % 4, 1.0, np.nan),
        "when": pd.date_range("2020", periods=150), "name": [f"n{n}" for n in range(150)],
    })  # fmt: skip
    y = pd.Series(2 * x + 0.5 * random.normal(size=150))
    models = {"pyrodrop": entry(max_steps=200, hidden_layer_sizes=(8,))}
    model = models["pyrodrop"]()
    assert isinstance(model, ProbabilisticWrapper)
    model.fit(X[:120], y[:120])
    new = X[120:].assign(kind="c")  # not in the training rows
    predicted = model.predict_distribution(new)
    np.testing.assert_allclose(predicted.mean, model.predict(new))
    np.testing.assert_allclose(predicted.median, predicted.q[:, 499])
    assert predicted.train_range == (y[:120].min(), y[:120].max())
    want = norm(2 * x[120:, None], 0.5).ppf(LEVELS)
    assert np.abs(predicted.q - want)[:, 50:-50].mean() < 0.3
    np.testing.assert_allclose(predicted.resampled.probas.sum(1), 1, atol=0.0021)  # without the tails
    mids = (predicted.native.bin_edges[:, 1:] + predicted.native.bin_edges[:, :-1]) / 2
    np.testing.assert_allclose(mids @ predicted.native.probas, predicted.mean, atol=0.05)


def test_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scoringbench", "scoringbench.univariate", "scoringbench.univariate.wrappers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="scoringbench"):
        entry()
    installed(monkeypatch)
    with pytest.raises(
        ImportError, match="layout of 2026; got one without from_multi_quantile, median, native, resampled"
    ):
        entry()
    old = type("DistributionPrediction", (DistributionPrediction,), {"from_multi_quantile": lambda q, alphas: None})
    installed(monkeypatch, DistributionPrediction=old, ProbabilisticWrapper=ProbabilisticWrapper)
    with pytest.raises(ImportError, match="without train_range of from_multi_quantile"):
        entry()
    installed(monkeypatch, DistributionPrediction=DistributionPrediction, ProbabilisticWrapper=object)
    with pytest.raises(ImportError, match="without ProbabilisticWrapper._set_train_range"):
        entry()


class MultivariateSamplePrediction:
    """Draws ``[rows, draws, columns]``, of which all scores are computed, and their mean."""

    def __init__(self, samples: np.ndarray, mean: np.ndarray) -> None:
        assert samples.ndim == 3
        assert np.isfinite(samples).all()
        assert mean.shape == samples.shape[::2]
        self.samples, self.mean = samples, mean


class MultivariateWrapper:
    def fit(self, X: Any, Y: Any) -> MultivariateWrapper:
        raise NotImplementedError

    def predict_ensemble(self, X: Any) -> MultivariateSamplePrediction:
        raise NotImplementedError

    def predict(self, X: Any) -> np.ndarray:
        return self.predict_ensemble(X).mean


def of_several(monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    for module in ("", ".wrappers", ".prediction", ".config"):
        name = f"scoringbench.multivariate{module}"
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(names)


def test_draws_of_several_columns_have_their_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns, 2 x and -x, with noise of standard deviations 1/2 and 1."""
    parts: Any = {
        "MultivariateWrapper": MultivariateWrapper,
        "MultivariateSamplePrediction": MultivariateSamplePrediction,
    }
    installed(monkeypatch)
    of_several(monkeypatch, **parts, N_DRAWS=400)
    random = np.random.default_rng(0)
    x = random.normal(size=160)
    X = pd.DataFrame({"x": x, "kind": np.where(np.arange(160) % 3, "a", "b")})
    Y = pd.DataFrame({"first": 2 * x, "second": -x}) + random.normal(size=(160, 2)) * [0.5, 1]
    model = entry_of_draws(max_steps=200, hidden_layer_sizes=(8,))()
    predicted = model.fit(X[:120], Y[:120]).predict_ensemble(X[120:].assign(kind="c"))
    assert predicted.samples.shape == (40, 400, 2)
    np.testing.assert_allclose(predicted.mean, model.predict(X[120:].assign(kind="c")))
    np.testing.assert_allclose(predicted.samples.mean(1), predicted.mean, atol=0.3)  # standard error at most .06
    np.testing.assert_allclose(predicted.samples.std(1).mean(0), [0.5, 1], rtol=0.35)
    assert np.abs(predicted.mean - np.c_[2 * x, -x][120:]).mean() < 0.25
    of_several(monkeypatch, **parts)
    with pytest.raises(ImportError, match="multivariate must have the layout of 2026; got one without N_DRAWS"):
        entry_of_draws()
    renamed = type("Renamed", (), {"__init__": lambda self, draws: None})
    of_several(monkeypatch, **parts | {"MultivariateSamplePrediction": renamed}, N_DRAWS=4)
    with pytest.raises(ImportError, match="without samples and mean of MultivariateSamplePrediction"):
        entry_of_draws()
    of_several(monkeypatch, **parts | {"MultivariateWrapper": object}, N_DRAWS=4)
    with pytest.raises(ImportError, match="MultivariateWrapper.predict_ensemble"):
        entry_of_draws()
