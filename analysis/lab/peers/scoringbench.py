"""The entries for ScoringBench, https://github.com/jonaslandsgesell/ScoringBench: wrappers of `NetworkRegressor`.

In ``scoringbench/univariate/models.py``, and with ``entry_of_draws`` in ``scoringbench/multivariate/models.py``:

    from pyrodrop.analysis.lab.peers.scoringbench import entry

    MODELS = {"pyrodrop": entry(), ...}

Predictions are 999 quantiles; of several columns of y, draws of all columns, which depend on each other through the
functions and not through the noise. Single rows are left out (``groups=None``), since the test rows of its folds lie at
random places of a table.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

import numpy as np
import pandas as pd

from pyrodrop.sklearn import NetworkRegressor

LEVELS = np.arange(1, 1000) / 1000
_WRAPPERS, _READ = "scoringbench.univariate.wrappers", ("from_multi_quantile", "median", "native", "resampled")
_MULTIVARIATE = "scoringbench.multivariate"
_ROWS = 100  # predicted at a time
_MOST_VALUES = 20  # of text


def entry(**options: Any) -> type[Any]:
    """The wrapper, a factory without arguments as the values of ``MODELS`` are. `options` are those of `NetworkRegressor`.

    Raises:
        ImportError: ScoringBench is not installed, or its layout is another.
    """
    wrappers = import_module(_WRAPPERS)
    prediction: Any = getattr(wrappers, "DistributionPrediction", None)
    base: Any = getattr(wrappers, "ProbabilisticWrapper", None)
    lacking = [name for name in _READ if not hasattr(prediction, name)]
    if not isinstance(base, type) or not hasattr(base, "_set_train_range"):
        lacking.append("ProbabilisticWrapper._set_train_range")
    if not lacking and "train_range" not in inspect.signature(prediction.from_multi_quantile).parameters:
        lacking.append("train_range of from_multi_quantile")
    if lacking:
        raise ImportError(f"{_WRAPPERS} must have the layout of 2026; got one without {', '.join(lacking)}")

    class Pyrodrop(_Tables, base):  # type: ignore[misc, valid-type]
        def fit(self, X: pd.DataFrame, y: Any) -> Pyrodrop:
            self._set_train_range(y)
            self._train(X, np.asarray(y, float), options)
            return self

        def predict(self, X: pd.DataFrame) -> np.ndarray:
            return np.asarray(self._model.predict(self._known(X)))

        def predict_distribution(self, X: pd.DataFrame) -> Any:
            X = self._known(X)
            parts = [X.iloc[start : start + _ROWS] for start in range(0, len(X), _ROWS)]
            means, quantiles = zip(
                *(self._model.predict(part, quantiles=LEVELS.tolist()) for part in parts), strict=True
            )
            q, mean = np.concatenate(quantiles), np.concatenate(means)
            return prediction.from_multi_quantile(q, LEVELS, mean=mean, train_range=self._y_train_range)

    return Pyrodrop


def entry_of_draws(**options: Any) -> type[Any]:
    """The wrapper of the track of several targets, whose predictions are draws, as many as its ``config.N_DRAWS``.

    Raises:
        ImportError: as `entry`.
    """
    names = {"wrappers": "MultivariateWrapper", "prediction": "MultivariateSamplePrediction", "config": "N_DRAWS"}
    found = {name: getattr(import_module(f"{_MULTIVARIATE}.{of}"), name, None) for of, name in names.items()}
    lacking = [name for name, value in found.items() if value is None]
    base, prediction, count = (cast(Any, value) for value in found.values())
    if base is not None and not hasattr(base, "predict_ensemble"):
        lacking.append("MultivariateWrapper.predict_ensemble")
    if prediction is not None and not {"samples", "mean"} <= {*inspect.signature(prediction).parameters}:
        lacking.append("samples and mean of MultivariateSamplePrediction")
    if lacking:
        raise ImportError(f"{_MULTIVARIATE} must have the layout of 2026; got one without {', '.join(lacking)}")

    class PyrodropDraws(_Tables, base):  # type: ignore[misc, valid-type]
        def fit(self, X: pd.DataFrame, Y: Any) -> PyrodropDraws:
            self._train(X, np.asarray(Y, float).reshape(len(X), -1), options)
            return self

        def predict_ensemble(self, X: pd.DataFrame) -> Any:
            predicted = self._model.prediction(self._known(X), count)
            samples = predicted.sample_y(count).numpy().swapaxes(0, 1)  # [rows, draws, columns]
            return prediction(samples=samples, mean=predicted.mean.numpy())

    return PyrodropDraws


class _Tables:
    """Training on the columns of a frame that can be used."""

    def _train(self, X: pd.DataFrame, y: np.ndarray, options: Mapping[str, Any]) -> None:
        self._kept = [name for name in X if _is_usable(X[name])]
        self._values = {name: set(X[name].dropna()) for name in self._kept if X[name].dtype.kind not in "biuf"}
        self._model = NetworkRegressor(**{"random_state": 0, "groups": None, **options})
        self._model.fit(X[self._kept], y)

    def _known(self, X: pd.DataFrame) -> pd.DataFrame:
        """The columns of ``fit``, in which new categories are missing."""
        return X[self._kept].assign(**{
            name: X[name].where(X[name].isin(values)) for name, values in self._values.items()
        })  # fmt: skip


def _is_usable(column: Any) -> bool:
    """Whether a column is of numbers, bools or categories; no dates, and no text whose values hardly repeat."""
    if column.dtype.kind in "mM":
        return False
    return (
        column.dtype.kind in "biuf"
        or column.dtype == "category"
        or column.nunique() <= max(_MOST_VALUES, len(column) // 2)
    )
