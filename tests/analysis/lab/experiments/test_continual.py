"""Digits in five lots: the lots, the Fisher information, and what the page says of the stored run."""

from __future__ import annotations

import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.experiments import continual
from pyrodrop.data import Dataset


def test_fisher_information_is_that_of_softmax_regression() -> None:
    """Of the logits: E (y - p)(y - p)' = diag(p) - pp', so that of a weight is the sum of x^2 p (1 - p)."""
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 3, bias=False)
    model = models.from_module(net, priors.Gaussian(1.0), likelihoods.Categorical())
    x = torch.randn(4000, 2)
    data = Dataset(x, torch.zeros(4000, dtype=torch.long))
    run = pyrodrop.fit(model, guides.Point(model), data.first(20), steps=1, progress=False)
    weight = run.guide.mean()["weight"]  # type: ignore[attr-defined]
    p = (x @ weight.T).softmax(1)
    exact = (p * (1 - p)).T @ x**2
    assert torch.allclose(continual.fisher(run, data, 0)["weight"], exact, rtol=0.35)  # of 400 rows and labels


@pytest.mark.usefixtures("data_folder")
def test_split_lots_ask_whether_a_digit_is_odd() -> None:
    lots = continual.lots("split", 300, 0)
    assert all(set(train.y.tolist()) == {0, 1} for train, _ in lots)
    assert sum(len(train) for train, _ in lots) == 300
