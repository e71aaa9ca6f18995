"""Scores of scikit-learn's models beside ours: what they are, and that cards have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import log_loss

from pyrodrop import zoo
from pyrodrop.analysis.lab.zoo.beside import _failure_times, beside
from pyrodrop.analysis.zoo import card, references
from pyrodrop.data import Dataset, Split
from pyrodrop.zoo import entries

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


def test_a_failure_time_model_is_least_squares_and_scipys_censored_fit() -> None:
    """Of exact times the least squares of their logarithm; without an effect of x SciPy's fit of censored data."""
    noise = np.random.default_rng(2)
    x = np.stack([noise.standard_normal(60), np.ones(60)], 1)
    log_t = 1 + x[:, 0] / 2 + 0.3 * noise.standard_normal(60)
    exact = np.exp(log_t)[:, None].repeat(2, 1)
    weights, *_ = np.linalg.lstsq(x, log_t, rcond=None)
    f, s = x @ weights, np.std(log_t - x @ weights)
    wanted = scipy.stats.lognorm(s, scale=np.exp(f)).logpdf(exact[:, 0]).mean()
    assert _failure_times(x[:, :1], exact, x[:, :1], exact) == pytest.approx(wanted, abs=1e-5)
    ends = exact.copy()
    ends[::3, 1] = np.inf
    known = scipy.stats.CensoredData(ends[np.isfinite(ends[:, 1]), 0], right=ends[~np.isfinite(ends[:, 1]), 0])
    fitted = scipy.stats.lognorm(*scipy.stats.lognorm.fit(known, floc=0))
    density = np.where(np.isfinite(ends[:, 1]), fitted.logpdf(ends[:, 0]), fitted.logsf(ends[:, 0]))
    nothing = np.zeros((60, 1))
    assert _failure_times(nothing, ends, nothing, ends) == pytest.approx(density.mean(), abs=1e-4)


def test_cards_have_the_scores_of_others_and_say_which() -> None:
    assert {"tables/bikes", "tables/airfoil", "tables/wine-ordinal", "tables/censored"} <= set(WITH)
    for name in WITH:
        entry, content = zoo.entry(name), references.load(name)
        rows = card.scores(entry, content["result"])
        for model, theirs in content["result"]["beside"]["scores"].items():
            assert {score: row[model] for score, row in rows.items() if row[model] is not None} == theirs
        package = "SciPy" if name == "tables/censored" else "scikit-learn"
        assert dict(card.facts(entry, content["recipe"], content))["beside"].startswith(f"{package} 1.")
    text = " ".join((entries.__doc__ or "").split())
    ours, theirs = (
        references.scores("tables/wine-ordinal"),
        references.load("tables/wine-ordinal")["result"]["beside"]["scores"],
    )
    told = f"it errs in {theirs['RandomForestClassifier']['error_percent']:.1f} % of all test rows, this network in "
    assert told + f"{ours['error_percent']:.1f} %" in text
    result = references.load("tables/censored")["result"]
    apart = result["scores"]["log_density"] - result["beside"]["scores"]["log-normal AFT"]["log_density"]
    assert abs(apart) < 2 * result["standard_errors"]["log_density"]
