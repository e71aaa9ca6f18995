"""Scores of scikit-learn's models on the data of an entry, with default settings (LogisticRegression with 1,000
iterations). Their inputs are those of our network, flattened.

    Ridge, or PoissonRegressor for counts, or LogisticRegression for classes, and a random forest

Scores have the same names as ours. The log density of Ridge is Gaussian, with the standard deviation of its training
residuals; that of PoissonRegressor is Poisson. Forests have no log density: a regression forest predicts no distribution,
and a classification forest gives some rows the probability 0.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import norm, poisson

from pyrodrop.analysis.zoo.train import means_and_errors
from pyrodrop.data import Split
from pyrodrop.scaling import Standardize


def beside(splits: Sequence[Split]) -> dict[str, Any]:
    """Means over the splits by model and score, and the version: ``{"by": ..., "scores": {model: {score: mean}}}``."""
    each = [_of_split(split) for split in splits]
    scores = {
        model: means_and_errors({score: [rows[model][score] for rows in each] for score in each[0][model]})[0]
        for model in each[0]
    }
    return {"by": f"scikit-learn {importlib.metadata.version('scikit-learn')}", "scores": scores}


def _of_split(split: Split) -> dict[str, dict[str, float]]:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

    inputs = split.train.inputs or Standardize()
    x, new = (inputs(rows.x).double().flatten(1).numpy() for rows in (split.train, split.test))
    y, truth = (rows.y.numpy().astype(float).reshape(-1) for rows in (split.train, split.test))
    if not split.train.y.is_floating_point():
        linear, forest = LogisticRegression(max_iter=1000).fit(x, y), RandomForestClassifier(random_state=0).fit(x, y)
        density = linear.predict_log_proba(new)[np.arange(len(truth)), truth.astype(int)]  # of classes 0, 1, ...
        wrong = {type(model).__name__: 100 * (1 - float(model.score(new, truth))) for model in (linear, forest)}
        scores = {name: {"error_percent": error} for name, error in wrong.items()}
    else:
        counts = bool((y == y.round()).all() and y.min() >= 0)
        linear, forest = (PoissonRegressor() if counts else Ridge()).fit(x, y), RandomForestRegressor(random_state=0)
        mean, sd = linear.predict(new), (y - linear.predict(x)).std()
        density = poisson.logpmf(truth, mean) if counts else norm.logpdf(truth, mean, sd)
        of_forest = forest.fit(x, y).predict(new)
        off = {type(linear).__name__: mean - truth, type(forest).__name__: of_forest - truth}
        scores = {name: {"rmse": float(np.sqrt((error**2).mean()))} for name, error in off.items()}
    scores[type(linear).__name__]["log_density"] = float(density.mean())
    return scores
