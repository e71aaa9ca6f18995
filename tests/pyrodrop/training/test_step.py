"""Training one step at a time: the bits of `fit`, whatever happens between two steps, and states to return to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin()
OPTIONS: dict[str, Any] = {"batch_size": 8, "lr": 0.01, "seed": 3, "kl_weight": schedules.linear(4)}


def parts() -> tuple[models.NetworkModel, guides.Guide]:
    """With batch norm, whose buffers move in training mode alone."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0, learned=True))
    return model, guides.BernoulliDropout(model, 0.2)


def same(one: pyrodrop.Fit, two: pyrodrop.Fit) -> bool:
    a, b = ({**f.model.state_dict(), **f.guide.state_dict()} for f in (one, two))  # type: ignore[attr-defined]
    return all(torch.equal(a[n], b[n]) for n in a) and torch.equal(one.history, two.history)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["pyro", "traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_n_steps_are_the_fit_of_n_steps(engine: Any) -> None:
    """With predictions, estimates and the caller's own draws between them; the last minibatch of an epoch is smaller."""
    whole = pyrodrop.fit(*parts(), (X, Y), steps=21, engine=engine, **OPTIONS)
    training = pyrodrop.Training(*parts(), (X, Y), engine=engine, **OPTIONS)
    torch.manual_seed(17)
    before = torch.get_rng_state()
    losses = []
    for number in range(21):
        losses.append(training.step())
        assert torch.equal(torch.get_rng_state(), before)
        if number % 6 == 0:
            torch.randn(number + 1)
            training.fit.predict(X, 3)
            training.fit.elbo(2)
            before = torch.get_rng_state()
    fit = training.fit
    assert same(whole, fit)
    assert torch.equal(torch.stack([torch.stack(one) for one in losses]), whole.history[:, :2])
    assert fit.settings.keys() == whole.settings.keys()
    assert {n for n in fit.settings if fit.settings[n] != whole.settings[n]} <= {"seconds"}
    assert (training.steps_done, training.engine) == (21, engine)
    assert not fit.model.training  # type: ignore[attr-defined]


def test_steps_in_blocks_are_the_same_steps() -> None:
    one, two = (pyrodrop.Training(*parts(), (X, Y), engine="traced", **OPTIONS) for _ in range(2))
    single = [one.step() for _ in range(12)]
    blocks = [two.advance(count) for count in (4, 1, 7)]
    assert [len(block.nll) for block in blocks] == [4, 1, 7]
    for term in ("nll", "kl"):
        want = torch.stack([getattr(step, term) for step in single])
        assert torch.equal(want, torch.cat([getattr(block, term) for block in blocks]))
    assert same(one.fit, two.fit)
    with pytest.raises(
        ValueError, match="count is the number of steps and must be a whole number of at least 1; got 0"
    ):
        two.advance(0)
