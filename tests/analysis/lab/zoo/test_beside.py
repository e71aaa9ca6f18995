"""Scores of scikit-learn's models beside ours: what they are, and that cards have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import log_loss

from pyrodrop import zoo
from pyrodrop.analysis.lab.zoo.beside import beside
from pyrodrop.analysis.zoo import card, references
from pyrodrop.data import Dataset, Split

WITH = [name for name in zoo.ENTRIES if "beside" in references.load(name)["result"]]


def split(y: Any) -> Split:
    x = np.random.default_rng(0).standard_normal((80, 2)) * [1, 30]
    y = y(x[:, 0])
    y = y if y.dtype.kind == "i" else y[:, None]
    train = Dataset(x[:60], y[:60]).standardized() if y.dtype.kind == "f" else Dataset(x[:60], y[:60])
    inputs = Dataset(x[:60], x[:60]).standardized().inputs
    return Split("s", Dataset(train.x, train.y, inputs=inputs), Dataset(x[60:], y[60:]), "", "", "here")


def test_scores_of_others_are_theirs() -> None:
    """Against their own score functions and SciPy's densities."""
    noise = np.random.default_rng(1)
    real, count, grade = (
        split(y)
        for y in (
            lambda x: 100 + x + 0.1 * noise.standard_normal(80),
            lambda x: noise.poisson(np.exp(1 + x)).astype(float),
            lambda x: (x > 0).astype(int) + (x > 0.5).astype(int),
        )
    )
    for of, model in ((real, Ridge()), (count, PoissonRegressor()), (grade, LogisticRegression(max_iter=1000))):
        x, new = (of.train.inputs(rows.x).double().numpy() for rows in (of.train, of.test))  # type: ignore[misc]
        y, truth = (rows.y.numpy().astype(float).ravel() for rows in (of.train, of.test))
        model.fit(x, y)
        scores = beside([of])["scores"]
        ours, (forest,) = scores.pop(type(model).__name__), scores.values()
        f = model.predict(new)
        if of is grade:
            wanted, density = {"error_percent": 100 * np.mean(f != truth)}, -log_loss(truth, model.predict_proba(new))
        else:
            wanted = {"rmse": np.mean((f - truth) ** 2) ** 0.5}
            law = scipy.stats.poisson(f) if of is count else scipy.stats.norm(f, np.std(y - model.predict(x)))
            density = (law.logpmf if of is count else law.logpdf)(truth).mean()
        assert ours == pytest.approx({**wanted, "log_density": density})
        assert set(forest) == set(wanted)
    both = [beside([of])["scores"]["Ridge"]["rmse"] for of in (real, count)[:1]]
    assert beside([real, real])["scores"]["Ridge"]["rmse"] == pytest.approx(both[0])


def test_cards_have_the_scores_of_others_and_say_which() -> None:
    assert {"tables/bikes", "tables/airfoil"} <= set(WITH)
    for name in WITH:
        entry, content = zoo.entry(name), references.load(name)
        rows = card.scores(entry, content["result"])
        for model, theirs in content["result"]["beside"]["scores"].items():
            assert {score: row[model] for score, row in rows.items() if row[model] is not None} == theirs
        assert dict(card.facts(entry, content["recipe"], content))["beside"].startswith("scikit-learn 1.")
