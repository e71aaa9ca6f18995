"""Blocks around a call that would change what it computes are refused by name, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

X = torch.linspace(-1, 1, 24).reshape(12, 2)
Y = X[:, :1].sin()


def model() -> models.MLP:
    torch.manual_seed(0)
    return models.MLP([2, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))


MODEL = model()
GUIDE = guides.MeanField(MODEL)


def fit() -> pyrodrop.Fit:
    return pyrodrop.fit(MODEL, GUIDE, (X, Y), steps=2, engine="pyro")


def line(x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=y)


NET = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.1), nn.Linear(4, 1))
BLOCKS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]] = {
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), r"torch\.autocast"),
    "meta": (lambda: torch.device("meta"), "whose tensors have no values"),
    "fake": (FakeTensorMode, "whose tensors have no values"),
    "scale": (lambda: poutine.scale(scale=2.0), "a handler of Pyro"),
    "plate": (lambda: pyro.plate("replicates", 3), "a handler of Pyro"),
}
CALLS: dict[str, Callable[[], Any]] = {
    "fit": fit,
    "fit_replicates": lambda: pyrodrop.fit_replicates(MODEL, GUIDE, (X, Y), count=2, steps=2),
    "Training": lambda: pyrodrop.Training(MODEL, GUIDE, (X, Y)),
    "sample": lambda: pyrodrop.sample(MODEL, (X, Y), chains=4, draws=4, tune=100),
    "potential": lambda: pyrodrop.potential(MODEL, (X, Y), engine="traced"),
    "read": lambda: pyrodrop.read(NET, X, likelihood=likelihoods.Gaussian(10.0), weight_decay=1e-4, num_data=12),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_what_trains_or_samples_is_refused_inside(block: str) -> None:
    around, message = BLOCKS[block]
    for name, call in CALLS.items():
        with around(), pytest.raises(RuntimeError, match=rf"^{name} must be called outside .*{message}"):
            call()
    assert fit().losses.isfinite().all()


def test_transforms_are_refused() -> None:
    def loss(scale: torch.Tensor) -> torch.Tensor:
        return scale * fit().losses[-1]

    for call in (
        lambda: torch.func.grad(loss)(torch.ones(())),
        lambda: torch.vmap(loss)(torch.ones(2)),
        lambda: torch.jit.trace(loss, torch.ones(())),
    ):
        with pytest.raises(RuntimeError, match="fit must be called outside .* a transform of torch.func or torch.jit"):
            call()


def test_derivatives_by_data_are_refused() -> None:
    """They would be 0, since nothing here keeps a graph."""
    done, points = fit(), torch.zeros(2, 2)
    pyro.clear_param_store()
    program = pyrodrop.fit(line, AutoNormal(line), {"x": X, "y": Y[:, 0]}, steps=2)
    calls: tuple[Callable[[torch.Tensor], Any], ...] = (
        lambda x: done.predict(x, 3).mean,
        lambda x: done.predict((x, x), 3).mean,
        lambda x: done.elbo(2, (x, Y[:2])).value * x,
        lambda x: program.predict({"x": x, "y": None}, 3)["y"],
        lambda y: done.predict(points, 3).log_density(y[:, :1]),
    )
    ways: tuple[Callable[[Any], Any], ...] = (
        lambda f: torch.func.jacrev(f)(points),
        lambda f: torch.func.jacfwd(f)(points),
        lambda f: torch.vmap(f)(points[None]),
        lambda f: f(points.clone().requires_grad_()),
    )
    for call in calls:
        for way in ways:
            with pytest.raises(
                RuntimeError, match=r"^elbo must be .* torch\.func|must be data alone.*run\.module\(draws="
            ):
                way(call)
    with torch.no_grad():
        assert done.predict(points.clone().requires_grad_(), 3).f.isfinite().all()


@pytest.mark.parametrize("block", ["meta", "fake"])
def test_nothing_is_computed_where_tensors_have_no_values(block: str) -> None:
    done = fit()
    around, message = BLOCKS[block]
    for call in (
        lambda: done.elbo(2),
        lambda: pyrodrop.to_arviz(done, (X, Y)),
        lambda: pyrodrop.compare({"a": done, "b": done}, (X, Y)),
    ):
        with around(), pytest.raises(RuntimeError, match=f"outside .*{message}"):
            call()


def test_handlers_do_not_act_on_an_elbo_or_on_draws_of_a_program() -> None:
    """Inside `poutine.scale` an ELBO would be another number; draws of a program are those outside."""
    done, data = fit(), {"x": X, "y": Y[:, 0]}
    pyro.clear_param_store()
    program = pyrodrop.fit(line, AutoNormal(line), data, steps=2)
    for call in (lambda: done.elbo(2), lambda: program.elbo(2)):
        for around in (poutine.trace, lambda: poutine.scale(scale=2.0)):
            with around(), pytest.raises(RuntimeError, match="outside .* handler of Pyro"):
                call()
    want = program.predict(num_samples=2)["y"]
    with poutine.scale(scale=2.0):
        assert torch.equal(program.predict(num_samples=2)["y"], want)
    with poutine.trace() as trace:  # a prediction of a network within a program
        assert torch.equal(done.predict(X, 3).f, done.predict(X, 3).f)
    assert all(node["type"] == "param" for node in trace.trace.nodes.values())


def test_a_training_is_refused_inside_at_every_step() -> None:
    training = pyrodrop.Training(MODEL, GUIDE, (X, Y), engine="pyro")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="a step of Training must be called"):
        training.step()
    assert training.step().nll.isfinite()


def test_blocks_that_change_nothing_are_allowed() -> None:
    want = fit().losses
    for around in (lambda: torch.device("cpu"), torch.no_grad, torch.inference_mode, pyro.get_param_store().scope):
        with around():
            assert torch.equal(fit().losses, want)
    with torch.inference_mode():
        CALLS["read"]()
