"""Short text of fits, replicates, data sets, predictions, draws and comparisons."""

from __future__ import annotations

import re
from typing import Any

import torch

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.data import Dataset

X = torch.linspace(-1, 1, 30)[:, None]
DATA = Dataset(X, 2 * X + 1).standardized()


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
