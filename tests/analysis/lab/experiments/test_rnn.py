"""The recurrent entries: scores of labels of every step, forecasts of ridge regression, and the job of the solar series."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import RidgeCV
from torch import nn
from torch.func import functional_call

from pyrodrop import fit, guides, likelihoods, models, priors, zoo
from pyrodrop.analysis.lab.experiments import solar
from pyrodrop.analysis.zoo import train
from pyrodrop.data import Dataset, Split
from pyrodrop.zoo.networks import _Forecast, _LanguageModel


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.lstm, self.head = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(x))[0])  # type: ignore[no-any-return]


def labels_of_steps() -> tuple[Any, Split]:
    torch.manual_seed(0)
    ids = torch.randint(0, 5, (12, 8))
    data = Dataset(ids[:, :-1], ids[:, 1:])
    model = models.from_module(Small(), priors.Gaussian(), likelihoods.Categorical())
    guide = guides.BernoulliDropout(model, drop_rate=0.3, mask_input=True)
    run = fit(model, guide, data.first(9), steps=30, lr=0.05, engine="traced", estimator="local", progress=False)
    return run, Split("ids", data.first(9), data.rows(slice(9, None)), "", "", "")


@pytest.mark.more
def test_labels_of_every_step_have_bits_of_draws_and_of_the_mean_weights() -> None:
    """Against masks by hand in plain PyTorch, (1 - rate) M as mean weights, and sums over rows and steps in float64."""
    run, split = labels_of_steps()
    with torch.no_grad():
        for name in run.guide.sites:
            run.guide.loc[name].mul_(12)  # masks matter
    draws = 1000
    scores = train._scores(run, split, draws, 0)
    network, free = Small(), {name: run.model.free[name] for name in run.model.free}
    x, y, means = split.test.x, split.test.y, {n: run.guide.loc[n].detach() for n in run.guide.sites}
    units = {
        "embedding.weight": (5, 1),
        "lstm.weight_ih_l0": (1, 3),
        "lstm.weight_hh_l0": (1, 6),
        "head.weight": (1, 6),
    }

    def bits(weights: Any) -> float:
        total = 0.0
        for row, label in zip(weights.double(), y.flatten(), strict=True):
            total -= math.log2(float(row[label]))
        return total / y.numel()

    with torch.no_grad():
        averaged = functional_call(network, {**free, **{n: 0.7 * w for n, w in means.items()}}, (x,)).softmax(-1)
        masked = {n: w * torch.bernoulli(torch.full((draws, *units[n]), 0.7)) for n, w in means.items()}
        passes = (
            sum(
                functional_call(network, {**free, **{n: w[s] for n, w in masked.items()}}, (x,)).softmax(-1).double()
                for s in range(draws)
            )
            / draws
        )
    assert scores["bits_of_mean_weights"] == pytest.approx(bits(averaged.flatten(0, 1)), rel=1e-5)
    assert scores["bits"] == pytest.approx(bits(passes.flatten(0, 1)), abs=0.114)  # type: ignore[union-attr]  # 4 s.e.
    assert scores["bits"] == pytest.approx(-scores["log_density"] / math.log(2))
    assert abs(scores["bits"] - scores["bits_of_mean_weights"]) > 0.5  # the test can tell them apart


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.more) if name == "rnn/characters-none" else name
        for name in zoo.ENTRIES
        if name.startswith("rnn/")
    ],
)
def test_the_entries_train(name: str) -> None:
    """Their guides have the weights of every layer, recurrent ones included."""
    entry = zoo.entry(name)
    torch.manual_seed(0)
    if name == "rnn/solar":
        data = Dataset(torch.randn(70, 22, 1), torch.randn(70, 1)).standardized()
        network: Any = _Forecast
    else:
        ids = torch.randint(0, 68, (40, 6))
        data, network = Dataset(ids[:, :-1], ids[:, 1:]), _LanguageModel
    run = entry.fit(data, steps=2, device="cpu", progress=False)
    assert set(run.guide.sites) == {n for n, w in network().named_parameters() if w.dim() > 1}  # type: ignore[attr-defined]


# Forecasts


def test_ridge_is_that_of_scikit_learn_with_the_smallest_error_of_leave_one_out() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 8, 1)).astype("f4")
    y = (x[:, :3].sum(1) + rng.normal(size=(60, 1)) + 5).astype("f4")
    train_, test = Dataset(x[:40], y[:40]), Dataset(x[40:], y[40:])
    mean, sd = solar.ridge(train_, test)
    theirs = RidgeCV(alphas=solar.LAMBDAS).fit(x[:40, :, 0].astype(float), y[:40, 0].astype(float))
    np.testing.assert_allclose(mean[:, 0], theirs.predict(x[40:, :, 0]), rtol=1e-5)
    errors = []
    for left_out in range(40):  # one fit per row
        rest = np.delete(np.arange(40), left_out)
        centre, level = x[rest, :, 0].astype(float).mean(0), y[rest, 0].astype(float).mean()
        a = x[rest, :, 0] - centre
        w = np.linalg.solve(a.T @ a + theirs.alpha_ * np.eye(8), a.T @ (y[rest, 0] - level))
        errors.append(y[left_out, 0] - level - (x[left_out, :, 0] - centre) @ w)
    assert sd == pytest.approx(float(np.sqrt(np.mean(np.square(errors)))), rel=1e-5)
    scores = solar._scores(mean, sd, test)
    assert scores["log_density"] == pytest.approx(scipy.stats.norm.logpdf(y[40:], mean, sd).mean(), rel=1e-5)
    assert scores["rmse"] == pytest.approx(float(np.sqrt(np.mean((y[40:] - mean.numpy()) ** 2))), rel=1e-5)
