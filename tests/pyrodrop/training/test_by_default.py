"""`fit(model, data)` and `recipes.curve`: priors that fit the data, and a guide near the exact posterior."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors, recipes
from pyrodrop.analysis.gp import GaussianProcess


def wiggles(rows: int, seed: int) -> data.Dataset:
    """A curve far from the units of a network, with noise .3."""
    g = torch.Generator().manual_seed(seed)
    x = 20 + 6 * torch.rand(rows, 1, generator=g)
    return data.Dataset(x, 100 + 3 * torch.sin(2 * x) + 0.3 * torch.randn(rows, 1, generator=g))


def mlp(likelihood: Any = None, outputs: int = 1) -> models.MLP:
    return models.MLP(
        [1, 50, outputs], "tanh", prior=priors.Gaussian(), likelihood=likelihood or likelihoods.Gaussian()
    )


def test_a_curve_is_predicted_as_by_a_gaussian_process() -> None:
    """Within .15 nats of it, and both of its calls agree; the same priors and guide, made one by one, agree too."""
    train, test = wiggles(60, 0), wiggles(300, 1)
    run = recipes.curve((train.x, train.y), hidden=[50]).fit(steps=800)
    score = float(run.predict(test.x, 300).log_density(test.y).mean())
    process = GaussianProcess(train.standardized(), "matern-5/2", progress=False)
    assert score > float(process.predict(test.x, 300).log_density(test.y).mean()) - 0.15
    short = run.losses[:50]
    torch.testing.assert_close(pyrodrop.fit(mlp(), train, steps=50).losses, short)
    fitted = priors.from_gp(mlp(), train.standardized()).model
    by_hand = pyrodrop.fit(fitted, guides.ExactLastLayer(fitted), train.standardized(), steps=50, lr=1e-2)
    torch.testing.assert_close(by_hand.losses, short)


def test_other_networks_are_predicted_as_by_a_gaussian_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hidden layers of a plain module, within .15 nats; rows that the priors do not use are in the posterior."""
    monkeypatch.setattr("pyrodrop.priors.fitted.ROWS", 60)
    net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
    model = models.from_module(net, priors.Gaussian(), likelihoods.Gaussian())
    train, test = wiggles(60, 0), wiggles(300, 1)
    run = pyrodrop.fit(model, train, steps=500)
    process = GaussianProcess(train.standardized(), "matern-5/2", progress=False)
    score = float(run.predict(test.x, 300).log_density(test.y).mean())
    assert score > float(process.predict(test.x, 300).log_density(test.y).mean()) - 0.15
    large = pyrodrop.fit(mlp(), wiggles(100, 0), steps=2)
    assert len(large.guide.rows.x) == 100


def test_what_was_chosen_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pyrodrop"):
        pyrodrop.fit(mlp(), data=wiggles(20, 0), steps=3)
    (said,) = (record.message for record in caplog.records if "no guide was given" in record.message)
    assert "guides.ExactLastLayer(MeanField)" in said
    assert "guides.BernoulliDropout(model, 0.05)" in said


def test_many_classes_have_a_mean_field() -> None:
    """A step of Newton's method for all weights of the last layer would take too long."""
    x = torch.linspace(-2, 2, 60)[:, None]
    labels = (torch.arange(60) // 10).long()
    of_six = pyrodrop.fit(mlp(likelihoods.Categorical(), 8), (x, labels), steps=3)
    assert of_six.guide.describe() == "MeanField"
    assert of_six.settings["estimator"] == "local"
    of_two = pyrodrop.fit(mlp(likelihoods.Categorical(), 2), (x, labels % 2), steps=3)
    assert "ExactLastLayer" in of_two.guide.describe()


def test_class_labels_are_predicted_as_by_a_gaussian_process() -> None:
    """Within .03 nats of scikit-learn's process, on a boundary that is no line."""
    process = pytest.importorskip("sklearn.gaussian_process")
    g = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(500, 2, generator=g) - 2
    y = (x[:, 1] > torch.sin(3 * x[:, 0]) + 0.2 * torch.randn(500, generator=g)).long()
    run = recipes.curve((x[:100], y[:100]), hidden=[50]).fit(steps=30)
    assert run.guide.describe() == "ExactLastLayer(MeanField, Laplace)"
    prediction = run.predict(x[100:], 100)
    assert prediction.f.shape == (100, 400, 2)
    kernel = process.kernels.ConstantKernel(4.0) * process.kernels.RBF(1.0)
    fitted = process.GaussianProcessClassifier(kernel, random_state=0).fit(x[:100].numpy(), y[:100].numpy())
    theirs = torch.tensor(fitted.predict_proba(x[100:].numpy())).log().gather(1, y[100:, None]).mean()
    assert float(prediction.log_density(y[100:]).mean()) > float(theirs) - 0.03
    assert "Curve(MLP(" in repr(recipes.curve((x, x[:, 0])))


@pytest.mark.parametrize("outputs", [1, 3])
def test_settings_of_the_caller_count(outputs: int) -> None:
    train = wiggles(20, 0)
    y = torch.cat([train.y] * outputs, 1) + torch.arange(outputs)
    run, slower = (pyrodrop.fit(mlp(outputs=outputs), (train.x, y), steps=2, seed=4, **lr) for lr in ({}, {"lr": 1e-3}))
    assert (run.settings["seed"], len(run.losses)) == (4, 2)
    assert run.losses[0] == slower.losses[0]
    assert run.losses[1] != slower.losses[1]
    assert run.predict(train.x, 4).mean.shape == y.shape


ROWS = wiggles(10, 0)
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no data": (lambda: pyrodrop.fit(mlp(), guides.Point(mlp())), TypeError, "data must be .*got a Point"),
    "nothing": (lambda: pyrodrop.fit(mlp()), TypeError, "data must be .*got None"),
    "no steps": (lambda: pyrodrop.fit(mlp(), guides.Point(mlp()), ROWS), TypeError, "steps is the number .*got None"),
    "a program": (lambda: pyrodrop.fit(lambda x, y: None, ROWS), TypeError, "guide must be given.*got a function"),
    "counts": (lambda: pyrodrop.fit(mlp(likelihoods.Poisson()), ROWS), TypeError, "guide must be given"),
    "many rows": (
        lambda: recipes.curve((torch.rand(10001, 1), torch.rand(10001))).fit(),
        ValueError,
        "got 10,001 rows",
    ),
    "an image": (lambda: recipes.curve((torch.rand(20, 3, 4, 4), torch.rand(20))), TypeError, "table of real numbers"),
    "nan": (lambda: recipes.curve((ROWS.x, ROWS.y * math.nan)), ValueError, "got 10 NaN"),
    "counts as labels": (
        lambda: recipes.curve((torch.rand(40, 1), torch.arange(40) % 12)),
        ValueError,
        "up to 11: pass",
    ),
    "one label": (lambda: recipes.curve((ROWS.x, torch.zeros(10).long())), ValueError, "y must be labels"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        call()
