"""Hints for names that papers or other packages use, or that are nearly one of ours; and short text of what users make."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.cards import Card, carded
from pyrodrop.data import Dataset

X = torch.linspace(-1, 1, 20)[:, None]


@pytest.fixture(scope="module")
def run() -> Any:
    model = models.MLP([1, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    return pyrodrop.fit(model, guides.MeanField(model), (X, X**2), steps=2, engine="pyro", progress=False)


MEANT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "std": (lambda run: run.predict(X, 3).std, "'Prediction' object has no attribute 'std'; did you mean 'sd'?"),
    "guide": (lambda run: guides.MCDropout, "no attribute 'MCDropout'; did you mean 'BernoulliDropout'?"),
    "activation": (lambda run: models.MLP([1, 1], "ReLU", prior=None, likelihood=None), "did you mean 'relu'?"),
    "widths": (lambda run: models.MLP(3, 10, 1), "got 3 arguments without names; did you mean MLP([3, 10, 1], ...)?"),
    "too many": (
        lambda run: priors.Gaussian(0.0, 1.0),
        "Gaussian(scale, length_scale=..., drawn=...) takes the others by name",
    ),
    "argument": (lambda run: guides.BernoulliDropout(run.model, p=0.1), "has no argument 'p'; did you mean 'drop_rate'?"),
    "nothing near": (lambda run: guides.Flow, "module 'pyrodrop.guides' has no attribute 'Flow'"),
}  # fmt: skip


@pytest.mark.parametrize("what", MEANT)
def test_what_was_meant_is_said(what: str, run: Any) -> None:
    call, message = MEANT[what]
    with pytest.raises((AttributeError, TypeError, ValueError)) as raised:
        call(run)
    assert message in str(raised.value)
    assert ("did you mean" in str(raised.value)) == ("did you mean" in message)


def test_a_hint_hides_no_error_and_no_copy(run: Any) -> None:
    """A property that fails keeps its own error; copies and pickles ask for names that no object has."""

    @carded
    class Failing:
        def card(self) -> Card:
            return Card("failing", {})

        @property
        def broken(self) -> int:
            return [].length  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="'list' object has no attribute 'length'"):
        _ = Failing().broken
    for again in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert torch.equal(again.losses, run.losses)
        assert again.model.made_with() == run.model.made_with()
    assert not hasattr(run, "__wrapped__")


ROWS = torch.linspace(-1, 1, 30)[:, None]
DATA = Dataset(ROWS, 2 * ROWS + 1).standardized()


def fitted(**options: Any) -> Any:
    model = models.MLP([1, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    options = {"steps": 40, "lr": 0.01, "batch_size": 10, "engine": "pyro", **options}
    train = pyrodrop.fit_replicates if "count" in options else pyrodrop.fit
    return train(model, guides.BernoulliDropout(model, 0.1), DATA, **options)


def test_what_users_make_is_printed_in_a_line_that_describes_it() -> None:
    """`describe` is the repr, also of a subclass of the user's and within a module of torch."""
    model = models.MLP([1, 6, 1], prior=priors.Gaussian(0.5), likelihood=likelihoods.Gaussian(4.0))
    co2, recipe = data.mauna_loa(), pyrodrop.recipes.regressor(DATA)
    run = fitted()
    lines = {
        "Gaussian(scale=0.5)": priors.Gaussian(0.5),
        "Gaussian(precision=4)": model.likelihood,
        "MLP(12 weights at 2 sites, Gaussian(precision=4))": model,
        "BernoulliDropout(drop_rate=0.1/0.1, theta=0)": guides.BernoulliDropout(model, 0.1),
        "Ensemble(2 x Point)": guides.Ensemble(model, guides.Point, 2),
        "Split(mauna-loa, 272 training and 249 test rows)": co2,
        f"Recipe({recipe.model}, 2 priors, 30 rows, 1030 steps)": recipe,
    }
    for line, thing in lines.items():
        assert line == repr(thing) == str(thing) == thing.describe()  # type: ignore[attr-defined]
    assert re.match(r"-\d+\.\d+ \+- .* nats \(up_to_constant", repr(run.elbo(3)))
    assert "(0): MLP(12 weights" in repr(torch.nn.Sequential(model))
