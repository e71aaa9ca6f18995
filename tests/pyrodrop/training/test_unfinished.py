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
from pyrodrop.training.reasons import judge, odd_rows, reason, shape_of, still_falls
from pyrodrop.training.worth import Worth

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
    """From 400 to 1000 nats, the median of the last tenth 2.8 nats per row above the first, unless a KL falls by more."""
    judge(recorded(torch.linspace(400, 1000, 200)))
    traded = recorded(torch.linspace(400, 1000, 200))
    traded.history[:, 1] = torch.linspace(3000, 100, 200)
    judge(traded)
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
    assert message.startswith("the fit is no better than a constant: x or y are far from mean 0")
    ours = float(re.search("the training data is (.*?) per row", message)[1])
    constant = float(Normal(y.mean(), y.std(correction=0)).log_prob(y).mean())
    assert run.worth.constant == pytest.approx(constant, rel=0.01)
    assert ours == pytest.approx(float(run.predict(X, 2000).log_density(y).mean()), rel=0.05)


def test_a_posterior_that_is_too_wide_is_said_with_the_point_estimate_beside_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = train(guide=lambda m: guides.BernoulliDropout(m, 0.5, mask_input=False), steps=400)
    [message] = said(caplog)
    assert run.worth.point is not None
    assert run.worth.point > run.worth.fit + 0.2
    name, best = (
        ("a point estimate", run.worth.point)
        if run.worth.point > run.worth.gp
        else ("a Gaussian process", run.worth.gp)
    )
    assert message.startswith(
        f"the fit predicts worse than {name}: the largest rate or alpha is 0.5: take a lower drop rate"
    )
    assert f"{run.worth.fit:.3g} per row, and {best:.3g} under {name}" in message


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
    ("about", "said"),
    [
        (
            {"gp": -0.69},
            "^the fit predicts worse than a Gaussian process: .*without a guide.* -1 per row, and -0.69 under",
        ),
        ({"gp": -0.71}, "^$"),
        ({"gp": -0.8, "ridge": -0.69}, "worse than ridge regression"),
        ({"constant": -1.1, "gp": -0.8}, "^$"),
        ({"constant": -1.02, "gp": -0.75}, "^the fit predicts worse than a Gaussian process"),
        ({"constant": -0.5, "gp": 0.0}, "^the fit is no better than a constant"),
        ({"constant": -1.05, "gp": -1.05}, "^nothing beats a constant"),
        ({"constant": -2.0, "gp": -1.7}, "^the fit may follow single rows"),
        ({"constant": -1.5, "gp": -1.0, "varies": 0.1}, "^the noise varies with x"),
        ({"constant": -1.5, "gp": -1.0, "varies": 0.05}, "^$"),
        ({"gp": 5.0, "varies": 1.0, "extreme": 40.0}, "^a value of y is far out: by 40 standard deviations"),
        ({"gp": 0.0, "values": 4}, "^$"),
    ],
)
def test_the_first_cause_is_said(about: dict[str, Any], said: str) -> None:
    run = recorded(torch.zeros(3))
    run.settings["worth"] = asdict(Worth(-1.0, **about))
    assert re.search(said, reason(run)[0])


def test_few_rows_and_steps_that_move_nothing_are_said(caplog: pytest.LogCaptureFixture) -> None:
    run = recorded(torch.zeros(3))
    run.settings |= {"worth": asdict(Worth(0.0, constant=-1.0)), "num_data": 3}
    assert reason(run)[0].startswith("the rows are few: 3 rows")
    model = models.MLP([1, 20, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    data = Dataset(X, Y).standardized()
    pyrodrop.fit(model, guides.MeanField(model), data, steps=150, lr=1e-3, engine="traced", progress=False)
    assert "no weight moves by more than 0.15 in 150 steps" in said(caplog)[0]


def test_an_exact_last_layer_is_not_told_to_be_one() -> None:
    model = models.MLP([1, 2, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    about = {"worth": asdict(Worth(-1.0, gp=0.0))}
    run = pyrodrop.Fit(model, guides.ExactLastLayer(model), None, torch.ones(3, 3), about)
    assert ": try more units, or the process itself" in reason(run)[0]


def test_standardised_data_that_need_more_steps_are_told_so(caplog: pytest.LogCaptureFixture) -> None:
    model = models.MLP([1, 20, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(100.0))
    data = Dataset(X, 300 + 5 * Y).standardized()
    pyrodrop.fit(model, guides.Point(model), data, steps=100, lr=3e-4, engine="traced", progress=False)
    [message] = said(caplog)
    assert "the loss still falls" in message


def test_odd_rows_and_values_are_said() -> None:
    generator = torch.Generator().manual_seed(0)
    densities = (
        -torch.special.ndtri((torch.arange(500) + 0.5) / 500)[torch.randperm(500, generator=generator)].square() / 2
    )
    assert odd_rows(densities) == ""
    densities[[7, 300]] = torch.tensor([-9.0, -12.0])
    densities[8] = torch.nan
    assert odd_rows(densities).startswith("300, 7, up to 11.8 nats less probable")
    densities[:9] = -20
    assert odd_rows(densities).startswith("0, 1, 2, 3, 4 and 5 more, up to")
    normal = torch.randn(500, 1, generator=generator)
    assert shape_of(normal) == ""
    assert shape_of(torch.cat([normal, normal.exp()], 1)) == "a long tail of large values"
    assert shape_of(-normal.exp()) == "a long tail of small values"
    assert shape_of(normal.clamp(min=-0.5)).startswith("344 values, of which -0.5 in 31% of the rows")
    counts = torch.arange(100).float()
    assert shape_of(counts) == "whole numbers from 0 to 99, as counts are"
    assert shape_of(counts - 1) == ""
