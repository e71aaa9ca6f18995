"""The factors of a step: divergence, power of the likelihood, learning rate; and what `fit` refuses to be asked for."""

from __future__ import annotations

import dataclasses
import inspect
import math
import pickle
from pathlib import Path
from typing import Any, get_type_hints

import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.training.elbo import elbo_terms
from pyrodrop.training.settings import Settings, TrainingOptions
from pyrodrop.zoo.networks import weight_by_epoch

X, Y = torch.linspace(-1, 1, 12)[:, None], torch.linspace(-1, 1, 12)[:, None] ** 2


def parts(prior: priors.Prior | None = None) -> tuple[models.MLP, guides.Guide]:
    torch.manual_seed(0)
    model = models.MLP([1, 4, 1], "tanh", prior=prior or priors.Gaussian(), likelihood=likelihoods.Gaussian(5.0))
    return model, guides.MeanField(model)


@pytest.mark.parametrize("weight", [1.0, 0.25, 0.0])
def test_one_step_is_the_gradient_of_the_weighted_loss(weight: float) -> None:
    """nll + weight kl(weights) + kl(hyperparameters), by plain SGD from the same noise."""
    prior = priors.ARD("input", dist.InverseGamma(2.0, 1.0))
    model, guide = parts(prior)
    seen: list[dict[str, torch.Tensor]] = []

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            seen.append([p.grad.clone() for g in self.param_groups for p in g["params"]])  # type: ignore[arg-type]

    with pytest.raises(RuntimeError, match="moved none"):
        pyrodrop.fit(model, guide, (X, Y), steps=1, lr=1.0, optimizer=Spy, kl_weight=weight, seed=9)
    with torch.random.fork_rng():
        torch.manual_seed(9)
        terms = elbo_terms(model, guide, X, Y)
    loss = terms.nll + weight * terms.kl_weights + terms.kl_hyper
    loss.backward()
    own = [p.grad for p in [*guide.parameters(), *model.parameters()]]
    assert len(seen[0]) == len(own)
    key = lambda g: (tuple(g.shape), float(g.abs().sum()))  # noqa: E731
    for got, want in zip(sorted(seen[0], key=key), sorted(own, key=key), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(got, want)


def test_weights_of_every_step_are_recorded() -> None:
    model, guide = parts()
    fit = pyrodrop.fit(model, guide, (X, Y), steps=12, batch_size=6, kl_weight=schedules.linear(4))
    torch.testing.assert_close(fit.history[:, 2], torch.arange(12).div(8).clamp_max(1))
    torch.testing.assert_close(fit.losses, fit.history[:, 0] + fit.history[:, 1])
    assert fit.settings["kl_weight"] == "scheduled"


def test_schedules() -> None:
    assert [schedules.linear(4)(e) for e in (0, 2, 4, 9)] == [0, 0.5, 1, 1]
    assert [schedules.linear(4, start=0.5)(e) for e in (0, 2)] == [0.5, 0.75]
    assert [schedules.linear(15, after=5)(e) for e in (0, 5, 12.5, 20, 30)] == [0, 0, 0.5, 1, 1]
    assert [weight_by_epoch(e) for e in (0, 0.9, 1, 200)] == [0.02, 0.02, 0.04, 1]
    with pytest.raises(ValueError, match="epochs"):
        schedules.linear(0)


@pytest.mark.parametrize(("batch_size", "steps", "looks"), [(5, 10, 3), (12, 3, 3)])
def test_every_epoch_is_looked_at_without_changing_the_training(
    batch_size: int, steps: int, looks: int, tmp_path: Path
) -> None:
    model, guide = parts()
    options: dict[str, Any] = {"batch_size": batch_size, "lr": 0.01}
    whole = pyrodrop.fit(model, guide, (X, Y), steps=steps, **options)
    seen: list[tuple[int, int, torch.Tensor]] = []

    def look(fit: pyrodrop.Fit, epochs: int) -> None:
        torch.randn(3)  # must not be the training's noise
        seen.append((epochs, len(fit.losses), fit.guide.mean()["layers.0.weight"]))  # type: ignore[attr-defined]

    watched = pyrodrop.fit(model, guide, (X, Y), steps=steps, after_epoch=look, **options)
    assert torch.equal(whole.history, watched.history)
    assert [(e, n) for e, n, _ in seen] == [(e, e * -(-12 // batch_size)) for e in range(1, looks + 1)]
    assert not torch.equal(seen[0][2], seen[1][2])
    file, seen[:] = tmp_path / "state.safetensors", []
    pyrodrop.fit(model, guide, (X, Y), steps=2 * -(-12 // batch_size), checkpoint=file, **options)
    pyrodrop.fit(model, guide, (X, Y), steps=steps, checkpoint=file, after_epoch=look, **options)
    assert [e for e, _, _ in seen] == list(range(2, looks + 1)), "going on, the epoch that was just done is seen again"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stpes": 3}, "unexpected keyword argument 'stpes'"),
        ({"xyz": 3}, "unexpected keyword argument 'xyz'"),
        ({"memory": 1e6}, "unexpected keyword argument 'memory'"),
    ],
)
def test_arguments_of_another_name(arguments: dict[str, Any], words: str) -> None:
    model, guide = parts()
    with pytest.raises(TypeError, match=words):
        pyrodrop.fit(model, guide, (X, Y), steps=1, **arguments)


@pytest.mark.parametrize("schedule", [schedules.linear(4, start=0.5, after=1), schedules.cosine(8)])
def test_a_schedule_can_be_sent_to_a_process(schedule: Any) -> None:
    sent = pickle.loads(pickle.dumps(schedule))
    assert sent == schedule
    assert [sent(n) for n in range(9)] == [schedule(n) for n in range(9)]
    assert eval(str(schedule), vars(schedules)) == schedule


def test_the_learning_rate_follows_its_schedule() -> None:
    """Plain torch, step by step, from the same noise."""
    model, guide = parts()
    rates: list[float] = []

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            rates.append(self.param_groups[0]["lr"])
            super().step(closure)

    pyrodrop.fit(model, guide, (X, Y), steps=4, lr=1e-3, optimizer=Spy, lr_schedule=schedules.cosine(4), engine="pyro")
    assert rates == pytest.approx([1e-3 * (1 + math.cos(math.pi * n / 4)) / 2 for n in range(4)])


def arguments(function: object) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_options_have_one_default() -> None:
    """`Settings` has every option, and signatures and types of the options are made of it."""
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert set(fields) == set(get_type_hints(TrainingOptions)) | {"steps", "starts"}
    names = get_type_hints(TrainingOptions)
    for function in (pyrodrop.fit, pyrodrop.fit_replicates, pyrodrop.Training):
        own = arguments(function)
        assert all(p.kind is not p.VAR_KEYWORD for p in own.values())
        assert {name: own[name].default for name in names} == {name: fields[name] for name in names}
