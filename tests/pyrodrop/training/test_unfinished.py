"""The warning about fits that still learn at their end, or predict worse than the mean: where it is due and where not."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch.distributions import Normal

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset
from pyrodrop.training.worth import Worth, judge, reason, still_falls

torch.manual_seed(0)
X = torch.rand(200, 1) * 4 - 2
Y = torch.sin(2 * X) + 0.1 * torch.randn(200, 1)


def train(
    y: torch.Tensor = Y, guide: Any = guides.MeanField, learned: bool = True, prior: float = 1.0, **options: Any
) -> Any:
    torch.manual_seed(1)
    model = models.MLP(
        [1, 20, 1],
        activation="tanh",
        prior=priors.Gaussian(prior),
        likelihood=likelihoods.Gaussian(1.0, learned=learned),
    )
    fit = pyrodrop.fit_replicates if "count" in options else pyrodrop.fit
    return fit(model, guide(model), (X, y), **{"lr": 0.02, "engine": "traced", "progress": False, **options})


BEGINNINGS = ("training may not be done: ", "training has diverged: ", "the fit ")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith(BEGINNINGS)]


def recorded(nll: torch.Tensor) -> pyrodrop.Fit:
    """A fit on 200 rows with these nll."""
    model = models.MLP([1, 2, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    history = torch.stack([nll, torch.zeros_like(nll), torch.ones_like(nll)], 1)
    return pyrodrop.Fit(model, guides.MeanField(model), None, history, {"num_data": 200})


def test_a_loss_that_still_falls_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """From 1000 to 400 nats in 200 steps: .3 nats per row in 20 steps."""
    judge(recorded(torch.linspace(1000, 400, 200)))
    [message] = said(caplog)
    assert message.startswith(
        "training may not be done: the loss still falls, by 0.3 nats per row in the last 20 of 200"
    )


def test_a_loss_that_has_risen_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """From 400 to 1000 nats, the median of the last tenth 2.8 nats per row above the first."""
    judge(recorded(torch.linspace(400, 1000, 200)))
    assert [
        "has risen, by 2.8 nats per row from the first step to the last 20" in message for message in said(caplog)
    ] == [True]


@pytest.mark.parametrize("noise", [0.0, 30.0])
def test_a_loss_that_has_fallen_is_not(noise: float, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that rises, falls by little, or is too short to tell."""
    torch.manual_seed(0)
    step = torch.arange(1000.0)
    for nll in (1e4 * torch.exp(-step / 100), 400 + 0.1 * step, 400 - 0.05 * step, torch.linspace(1000, 400, 99)):
        judge(recorded(nll + noise * torch.randn(len(nll))))
    assert not said(caplog)


def test_a_fall_within_its_standard_error_is_none() -> None:
    """0.06 nats per row in the last tenth, beside losses that alternate by 1, or by 0.1."""
    for size, fall in ((1.0, 0.0), (0.1, 0.06)):
        nll = 200 * (2 + size * torch.tensor([1.0, -1.0]).repeat(500))
        nll[-100:] -= 12
        assert still_falls(recorded(nll)) == pytest.approx(fall)


def test_a_fit_that_is_worse_than_the_mean_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """y far from 0, not standardised, and hardly a step made."""
    y = 300 + 5 * Y
    run = train(y, steps=100, lr=1e-3)
    [message] = said(caplog)
    assert message.startswith("the fit is no better than a constant: the log density of the training data is ")
    ours, of_constant = (float(text.split()[0]) for text in message.replace(" is ", " and ").split(" and ")[2:4])
    assert of_constant == pytest.approx(float(Normal(y.mean(), y.std(correction=0)).log_prob(y).mean()), rel=0.01)
    assert ours == pytest.approx(float(run.predict(X, 2000).log_density(y).mean()), rel=0.05)


def test_a_posterior_that_is_too_wide_is_said_with_the_point_estimate_beside_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = train(guide=lambda m: guides.BernoulliDropout(m, 0.5, mask_input=False), steps=400)
    [message] = said(caplog)
    assert run.worth.point is not None
    assert run.worth.point > run.worth.fit + 0.2
    assert message.startswith("the fit predicts worse than a point estimate: the log density of the training data is ")
    assert f"{run.worth.fit:.3g} per row, and {run.worth.point:.3g} under a point estimate" in message


def test_a_noise_that_hides_a_column_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """The larger noise, of a column in larger units, hides nothing."""
    y = torch.cat([100 * X, Y], 1)
    likelihood = likelihoods.Gaussian([1e-2, 1.0])
    model = models.MLP([1, 20, 2], "tanh", prior=priors.Gaussian(), likelihood=likelihood)
    data = Dataset(X, y).standardized()
    pyrodrop.fit(model, guides.MeanField(model), data, steps=300, lr=0.02, engine="traced", progress=False)
    [message] = said(caplog)
    assert "since the noise is as large as y: let it be learned" in message


def test_rates_that_vanish_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """Concrete dropout of a few units on an exact line, whose noise is no more than that of the masks."""
    run = train(Y, guide=lambda m: guides.ConcreteDropout(m, drop_rate=1e-5, mask_input=False), steps=300)
    rates = torch.stack(list(run.guide.rates().values()))
    assert float(rates.max()) < 1e-3
    [message] = said(caplog)
    assert message.startswith("the fit is a point estimate: every learned drop_rate is below 0.001")


def test_a_point_is_meant_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    train(guide=guides.Point, steps=600)
    train(guide=lambda m: guides.BernoulliDropout(m, 1e-5), steps=600)
    assert not said(caplog)


def test_replicates_keep_their_numbers_beside_failed_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Of 0 to 3, number 0 failed and number 1 has learned."""
    fits = [recorded(torch.linspace(first, 400, 200)) for first in (1000.0, 400.0, 1000.0, 1000.0)]
    judge(*fits, failed=[0])
    assert ["2 of 4 replicates, of which number 2: " in message for message in said(caplog)] == [True]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (
            {"gp": -0.69},
            "worse than a Gaussian process: .* -1 per row, and -0.69 under .*without a guide",
        ),
        ({"gp": -0.71}, "^$"),
        ({"gp": 0.0, "ridge": -0.79}, "worse than ridge regression"),
        ({"gp": 0.0, "ridge": -0.79, "point": -0.5}, "worse than a point estimate"),
        ({"gp": 0.0, "ridge": -0.81, "point": -0.81}, "worse than a Gaussian process"),
    ],
)
def test_what_is_ahead_is_said_the_simplest_first(beside: dict[str, float], said: str) -> None:
    """By 1/5 nat, and a process by 3/10: what a line or a refitted last layer explains is the first cause."""
    run = recorded(torch.zeros(3))
    run.settings["worth"] = asdict(Worth(-1.0, **beside))
    assert re.search(said, reason(run)[0])


def test_an_exact_last_layer_is_not_told_to_be_one() -> None:
    model = models.MLP([1, 2, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    about = {"worth": asdict(Worth(-1.0, gp=0.0))}
    run = pyrodrop.Fit(model, guides.ExactLastLayer(model), None, torch.ones(3, 3), about)
    assert ": try more units, or the process itself" in reason(run)[0]
    run.settings["worth"]["point"] = 0.0
    assert "take another scale of the prior" in reason(run)[0]


def test_standardised_data_that_need_more_steps_are_told_so(caplog: pytest.LogCaptureFixture) -> None:
    model = models.MLP([1, 20, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(100.0))
    data = Dataset(X, 300 + 5 * Y).standardized()
    pyrodrop.fit(model, guides.Point(model), data, steps=100, lr=3e-4, engine="traced", progress=False)
    [message] = said(caplog)
    assert message.startswith("training may not be done: the loss still falls")
