"""The warning about fits that still learn at their end, or predict worse than the mean: where it is due and where not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch.distributions import Normal

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.training.worth import judge

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
    """From 400 to 1000 nats, the median of the last tenth 2.8 nats per row above the first. Of any likelihood."""
    judge(recorded(torch.linspace(400, 1000, 200)))
    assert [
        "has risen, by 2.8 nats per row from the first step to the last 20" in message for message in said(caplog)
    ] == [True]
    caplog.clear()
    torch.manual_seed(0)
    counts = torch.poisson(torch.exp(X))
    model = models.MLP([1, 20, 1], prior=priors.Gaussian(), likelihood=likelihoods.Poisson())
    for lr, words in ((1.0, ["training has diverged: the loss has risen"]), (0.01, [])):
        pyrodrop.fit(model, guides.MeanField(model), (X, counts), steps=400, lr=lr, engine="traced")
        assert [message.split(",")[0] for message in said(caplog)] == words
        caplog.clear()


@pytest.mark.parametrize("noise", [0.0, 30.0])
def test_a_loss_that_has_fallen_is_not(noise: float, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that rises, falls by little, or is too short to tell."""
    torch.manual_seed(0)
    step = torch.arange(1000.0)
    for nll in (1e4 * torch.exp(-step / 100), 400 + 0.1 * step, 400 - 0.05 * step, torch.linspace(1000, 400, 99)):
        judge(recorded(nll + noise * torch.randn(len(nll))))
    assert not said(caplog)


def test_a_fit_that_is_worse_than_the_mean_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """y far from 0, not standardised, and hardly a step made."""
    y = 300 + 5 * Y
    run = train(y, steps=100, lr=1e-3)
    [message] = said(caplog)
    assert message.startswith("the fit is no better than a constant: the log density of the training data is ")
    ours, of_constant = (float(text.split()[0]) for text in message.replace(" is ", " and ").split(" and ")[2:4])
    assert of_constant == pytest.approx(float(Normal(y.mean(), y.std(correction=0)).log_prob(y).mean()), rel=0.01)
    assert ours == pytest.approx(float(run.predict(X, 2000).log_density(y).mean()), rel=0.05)


def test_a_fit_that_is_no_better_than_the_mean_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A prior of weights that holds f at a constant, as y would that x does not explain."""
    train(prior=1e-3, steps=300)
    assert ["so x explains nothing yet" in message for message in said(caplog)] == [True]


@pytest.mark.parametrize(("scale", "learns"), [(1e-3, False), (0.5, True)])
def test_a_classifier_that_knows_the_frequencies_of_the_classes_alone_is_said(
    scale: float, learns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten classes of digits in 64 pixels, of which the prior lets through nothing or enough."""
    x, labels = load_digits(return_X_y=True)
    torch.manual_seed(0)
    model = models.MLP([64, 32, 10], prior=priors.Gaussian(scale), likelihood=likelihoods.Categorical())
    digits = torch.tensor(x[:400] / 16, dtype=torch.float32), torch.tensor(labels[:400])
    run = pyrodrop.fit(model, guides.BernoulliDropout(model, 0.1), digits, steps=300, lr=1e-2, engine="traced")
    [message] = said(caplog)
    if learns:  # with a log density .2 below what the other rows say
        assert "under a point estimate of this network with a refitted last layer" in message
        return
    ours, of_share = (float(text.split()[0]) for text in message.replace(" is ", " and ").split(" and ")[2:4])
    share = torch.bincount(digits[1]).double() / 400
    assert of_share == pytest.approx(-float(torch.special.entr(share).sum()), rel=0.01)
    assert ours == pytest.approx(float(run.predict(digits[0], 200).log_density(digits[1]).mean()), rel=0.01)


def test_a_noise_that_hides_what_x_explains_is_said_with_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    """A damped sine under N(0, 1) priors: a flat band, below a constant, where the same network explains a part."""
    generator = torch.Generator().manual_seed(0)
    x = 20 * torch.rand(120, 1, generator=generator) - 10
    y = 10 * torch.exp(-(x + 10) / 10) * torch.sin(1.5 * x) + torch.randn(x.shape, generator=generator)
    model = models.MLP([1, 50, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
    settings: dict[str, Any] = {"steps": 1500, "lr": 1e-2, "engine": "traced", "progress": False}
    fits = [pyrodrop.fit(model, guides.MeanField(model), Dataset(x, y).standardized(), **settings)]
    fits.append(pyrodrop.fit(model, guides.VariationalDropout(model), Dataset(x, y).standardized(), **settings))
    messages = said(caplog)
    assert len(messages) == 2
    for fit, message in zip(fits, messages, strict=True):
        density, noise = (
            float(fit.predict(x, 2000).log_density(y).mean()),
            float(fit.model.likelihood.precision.detach().rsqrt()),
        )
        assert density < float(Normal(y.mean(), y.std()).log_prob(y).mean())
        assert f"{fit.worth.fit:.3g} per row, and {fit.worth.constant:.3g} under a constant" in message
        assert fit.worth.fit == pytest.approx(density, abs=0.05)
        assert (
            f"the noise has a standard deviation of {noise:.3g} and y one of {float(y.std(correction=0)):.3g}"
            in message
        )


def test_a_posterior_that_is_too_wide_is_said_with_the_point_estimate_beside_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = train(guide=lambda m: guides.BernoulliDropout(m, 0.5, mask_input=False), steps=400)
    [message] = said(caplog)
    assert run.worth.point is not None
    assert run.worth.point > run.worth.fit + 0.2
    assert message.startswith("the fit predicts worse than a point estimate: the log density of the training data is ")
    assert f"{run.worth.fit:.3g} per row, and {run.worth.point:.3g} under a point estimate of this network" in message


def test_a_given_noise_that_is_larger_than_y_is_said(caplog: pytest.LogCaptureFixture) -> None:
    train(learned=False, steps=300)
    [message] = said(caplog)
    sd = float(Y.std(correction=0))
    assert message.endswith(f"of 1 and y one of {sd:.3g}: let it be learned, likelihoods.Gaussian()")


def test_a_noise_that_hides_a_column_is_said_with_the_numbers_of_this_column(caplog: pytest.LogCaptureFixture) -> None:
    """The larger noise, of a column in larger units, hides nothing."""
    y = torch.cat([100 * X, Y], 1)
    likelihood = likelihoods.Gaussian([1e-2, 1.0])
    model = models.MLP([1, 20, 2], "tanh", prior=priors.Gaussian(), likelihood=likelihood)
    data = Dataset(X, y).standardized()
    pyrodrop.fit(model, guides.MeanField(model), data, steps=300, lr=0.02, engine="traced", progress=False)
    [message] = said(caplog)
    sd = float(Y.std(correction=0))
    assert f"the noise has a standard deviation of 1 and y one of {sd:.3g} in column 1: let it be learned" in message


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


@pytest.mark.more
def test_replicates_say_it_together(caplog: pytest.LogCaptureFixture) -> None:
    train(300 + 5 * Y, steps=100, lr=1e-3, count=3, starts="new", engine="auto")
    [message] = said(caplog)
    assert message.startswith(
        "the fit is no better than a constant: 3 of 3 replicates, of which number 0: the log density"
    )


def test_replicates_keep_their_numbers_beside_failed_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Of 0 to 3, number 0 failed and number 1 has learned."""
    fits = [recorded(torch.linspace(first, 400, 200)) for first in (1000.0, 400.0, 1000.0, 1000.0)]
    judge(*fits, failed=[0])
    assert ["2 of 4 replicates, of which number 2: " in message for message in said(caplog)] == [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"steps": 1500},
        {"steps": 1500, "batch_size": 20, "lr_schedule": schedules.cosine(1500)},
        {"steps": 1500, "kl_weight": schedules.linear(epochs=1000)},
        {
            "steps": 1500,
            "guide": lambda m: guides.BernoulliDropout(m, 0.02, mask_input=False),
            "y": Y + torch.randn(200, 1),
        },
        {"steps": 1500, "lr_schedule": schedules.cosine(1500)},
        {"steps": 99, "y": 300 + 5 * Y},
    ],
    ids=["whole", "minibatches", "annealed", "noisy", "cosine", "a trial"],
)
def test_ordinary_fits_are_not_suspected(options: Any, caplog: pytest.LogCaptureFixture) -> None:
    train(**options)
    assert not said(caplog)
