"""The warning about fits that still learn at their end, or predict worse than the mean: where it is due and where not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.training.unfinished import warn_of_unfinished

torch.manual_seed(0)
X = torch.rand(200, 1) * 4 - 2
Y = torch.sin(2 * X) + 0.1 * torch.randn(200, 1)


def train(y: torch.Tensor = Y, guide: Any = guides.MeanField, learned: bool = True, **options: Any) -> Any:
    torch.manual_seed(1)
    model = models.MLP(
        [1, 20, 1], activation="tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0, learned=learned)
    )
    return pyrodrop.fit(model, guide(model), (X, y), **{"lr": 0.02, "engine": "traced", "progress": False, **options})


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("training may not be done")]


def recorded(nll: torch.Tensor) -> pyrodrop.Fit:
    """A fit on 200 rows with these nll."""
    model = models.MLP([1, 2, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    history = torch.stack([nll, torch.zeros_like(nll), torch.ones_like(nll)], 1)
    return pyrodrop.Fit(model, guides.MeanField(model), None, history, {"num_data": 200})


def test_a_loss_that_still_falls_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """From 1000 to 400 nats in 200 steps: .3 nats per row in 20 steps."""
    warn_of_unfinished(recorded(torch.linspace(1000, 400, 200)))
    assert ["by 0.3 nats per row in the last 20 of 200 steps" in message for message in said(caplog)] == [True]


@pytest.mark.parametrize("noise", [0.0, 30.0])
def test_a_loss_that_has_fallen_is_not(noise: float, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that rises, falls by little, or is too short to tell."""
    torch.manual_seed(0)
    step = torch.arange(1000.0)
    for nll in (1e4 * torch.exp(-step / 100), 400 + 0.1 * step, 400 - 0.05 * step, torch.linspace(1000, 400, 99)):
        warn_of_unfinished(recorded(nll + noise * torch.randn(len(nll))))
    assert not said(caplog)


def test_a_fit_that_is_worse_than_the_mean_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """y far from 0, not standardised, and hardly a step made."""
    y = 300 + 5 * Y
    run = train(y, steps=100, lr=1e-3)
    [message] = said(caplog)
    predicted = run.predict(X, 2000).mean
    ratio = float((predicted - y).square().sum() / (y - y.mean()).square().sum())
    assert float(message.split("training data is ")[1].split(" times")[0]) == pytest.approx(ratio, rel=0.05)


def test_replicates_say_it_together(caplog: pytest.LogCaptureFixture) -> None:
    train(300 + 5 * Y, steps=100, lr=1e-3, replicates=3, starts="new", engine="auto")
    assert ["3 of 3 replicates, of which number 0: " in message for message in said(caplog)] == [True]


def test_replicates_keep_their_numbers_beside_failed_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Of 0 to 3, number 0 failed and number 1 has learned."""
    fits = [recorded(torch.linspace(first, 400, 200)) for first in (1000.0, 400.0, 1000.0, 1000.0)]
    warn_of_unfinished(*fits, failed=[0])
    assert ["2 of 4 replicates, of which number 2: " in message for message in said(caplog)] == [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"steps": 1500},
        {"steps": 1500, "batch_size": 20},
        {"steps": 1500, "kl_weight": schedules.linear(epochs=1000)},
        {"steps": 1500, "guide": lambda m: guides.BernoulliDropout(m, 0.5), "batch_size": 50},
        {"steps": 1500, "guide": lambda m: guides.BernoulliDropout(m, 0.1), "learned": False},
        {"steps": 1500, "lr_schedule": schedules.cosine(1500)},
        {"steps": 1500, "y": torch.randn(200, 1)},
        {"steps": 99, "y": 300 + 5 * Y},
    ],
    ids=["whole", "minibatches", "annealed", "noisy", "precision given", "cosine", "nothing to learn", "a trial"],
)
def test_ordinary_fits_are_not_suspected(options: Any, caplog: pytest.LogCaptureFixture) -> None:
    train(**options)
    assert not said(caplog)
