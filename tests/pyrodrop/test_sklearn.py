"""The estimators of scikit-learn: its own checks, tables of other kinds, what is predicted, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from pyrodrop import Replicates, guides
from pyrodrop.sklearn import NetworkClassifier, NetworkRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3)) * [1.0, 50.0, 0.01] + 7
Y = 300 + 20 * (X[:, 0] - 7) + RNG.normal(size=80)
LABELS = np.where(X[:, 0] > 7, "up", "down")
SMALL: dict[str, Any] = {"hidden_layer_sizes": (8,), "members": 1, "random_state": 0}
CHECKS = [
    pytest.param(estimator, check, id=f"{type(estimator).__name__}-{getattr(check, 'func', check).__name__}-{number}")
    for made in (NetworkRegressor(**SMALL, max_steps=150), NetworkClassifier(**SMALL, max_steps=80))
    for number, (estimator, check) in enumerate(estimator_checks_generator(made))
]


@pytest.mark.more
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def regressor() -> NetworkRegressor:
    return NetworkRegressor((8, 8), members=2, max_steps=300, draws=40, random_state=0).fit(X, Y)


def test_what_is_predicted_is_the_mixture_of_the_draws(regressor: NetworkRegressor) -> None:
    """Against SciPy's normal distribution, draw by draw."""
    mean, sd, quantiles = regressor.predict(X[:6], return_std=True, quantiles=(0.05, 0.5))
    drawn = regressor.prediction(X[:6]).distribution
    loc, scale = drawn.mean[..., 0].numpy(), drawn.stddev[..., 0].numpy()
    assert loc.shape == (40, 6)
    np.testing.assert_allclose(mean, loc.mean(0))
    np.testing.assert_allclose(sd, np.sqrt((scale**2).mean(0) + loc.var(0)))
    for column, p in enumerate((0.05, 0.5)):
        np.testing.assert_allclose(norm.cdf(quantiles[:, column], loc, scale).mean(0), p, atol=1e-5)
    assert np.abs(mean - Y[:6]).max() < 20
    assert scale.std(0).min() > 0  # the members are two


def test_float64_predictions_are_those_of_the_fit(regressor: NetworkRegressor) -> None:
    """Bernoulli masks are the same in both precisions."""
    assert isinstance(regressor.run_, Replicates)
    prediction = regressor.run_.predict(torch.tensor(X, dtype=torch.float32), 40, seed=0)
    np.testing.assert_allclose(regressor.predict(X), prediction.mean[:, 0], rtol=1e-5)
    assert regressor.prediction(X).f.dtype == torch.float64
    assert next(regressor.run_[0].model.parameters()).dtype == torch.float32


@pytest.mark.more
def test_a_grid_over_a_pipeline_of_a_data_frame() -> None:
    df = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=["u", "v"] * 40)
    columns = make_column_transformer((StandardScaler(), ["a", "b", "c"]), (OneHotEncoder(), ["kind"]))
    pipeline = make_pipeline(columns, NetworkRegressor(**SMALL, max_steps=100))
    search = GridSearchCV(
        pipeline, {"networkregressor__posterior": [None, guides.Point, guides.ConcreteDropout]}, cv=2
    ).fit(df, Y)
    assert search.predict(df).shape == (80,)
    assert search.best_score_ > 0.3
    assert clone(search.best_estimator_)[-1].get_params()["max_steps"] == 100


def test_a_single_network_and_its_classes() -> None:
    model = NetworkClassifier(**SMALL, max_steps=200).fit(X, LABELS)
    assert len(model.run_) == 4  # of one part that is left out, a network of every prior and a line
    assert list(model.classes_) == ["down", "up"]
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probabilities.argmax(1)])
    assert model.score(X, LABELS) > 0.9
    np.testing.assert_array_equal(model.predict_proba(X[::-1])[::-1].round(12), probabilities.round(12))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"posterior": "laplace"}, "posterior must be a function .*'laplace'"),
        ({"hidden_layer_sizes": 50}, "hidden_layer_sizes are the numbers of units.*got the int 50"),
    ],
)
def test_arguments_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        NetworkRegressor(**{**SMALL, **changes}).fit(X, Y)


def test_several_columns_of_y_are_predicted_together() -> None:
    x = RNG.normal(size=(200, 2))
    both = np.column_stack([x[:, 0], 1000 * x[:, 1]])
    model = NetworkRegressor(**SMALL, max_steps=50).fit(x, both)
    mean, sd, ends = model.predict(x[:9], return_std=True, quantiles=(0.1, 0.9))
    assert mean.shape == sd.shape == (9, 2)
    assert ends.shape == (9, 2, 2)
    assert (ends[..., 0] < mean).all()
    assert (mean < ends[..., 1]).all()
    assert model.score(x, both) > 0.9
    with pytest.raises(ValueError, match="y should be a 1d array"):
        NetworkClassifier(**SMALL).fit(X, np.column_stack([LABELS, LABELS]))


def test_numbers_may_be_missing() -> None:
    """In the first column y is 400 where they are; in the second none were, and one that is counts as the median."""
    there = np.random.default_rng(1).random(80) < 0.6
    table = np.column_stack([np.where(there, X[:, 0], np.nan), X[:, 1]])
    model = NetworkRegressor((16,), members=2, max_steps=300, random_state=0).fit(table, np.where(there, Y, 400.0))
    assert np.abs(model.predict(table[~there]) - 400).max() < 10
    assert np.abs(model.predict(table[there]) - Y[there]).max() < 20
    rows = table[:4].copy()
    rows[:, 1] = np.nan
    filled = np.column_stack([rows[:, 0], np.full(4, np.median(table[:, 1]))])
    np.testing.assert_array_equal(model.predict(rows), model.predict(filled))


def test_rows_that_are_refused() -> None:
    for estimator, y in ((NetworkRegressor, Y), (NetworkClassifier, Y > 0)):
        with pytest.raises(ValueError, match="y must have a value everywhere; got a masked array of shape"):
            estimator(**SMALL).fit(X, np.ma.masked_array(y, np.arange(80) % 2))
        with pytest.raises(ValueError, match="X must have a value everywhere; got a masked array of shape"):
            estimator(**SMALL).fit(list(np.ma.masked_array(X)), y)
    with pytest.raises(ValueError, match="a column of x that varies.*got 2 constant columns"):
        NetworkRegressor(**SMALL).fit(np.ones((80, 2)), Y)
    with pytest.raises(ValueError, match="at least two classes; got one class, 'up'"):
        NetworkClassifier(**SMALL).fit(X, np.full(80, "up"))
    with pytest.raises(ValueError, match="at least 10 rows"):
        NetworkRegressor(**SMALL).fit(X[:6], Y[:6])
