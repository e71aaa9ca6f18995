"""What a recorded step may depend on (`compile_svi`), against `pyro.infer.SVI` from the same seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, TraceGraph_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

import pyrodrop
from tests.pyrodrop.compiled.as_svi import Case, assert_steps_as_svi, by

Make = Callable[..., SVI]
X = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3)
Y = X[:, :1].sin()


pytestmark = pytest.mark.usefixtures("float64")


class Program:
    """A regression by a network with parameters, whose noise is inferred.

    Args:
        factor: of the likelihood.
        between: from the network's first layer and its output to what goes into the second.
    """

    def __init__(
        self, factor: Callable[[], Any] = lambda: 1.0, between: Callable[[Tensor], Tensor] = torch.tanh
    ) -> None:
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.factor, self.between = factor, between
        self.parts = self.model, self.guide, {"x": X, "y": Y}

    def model(self, x: Tensor, y: Tensor) -> None:
        pyro.module("first", self.first)
        pyro.module("norm", self.norm)
        pyro.module("last", self.last)
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        with pyro.plate("rows", len(x)), poutine.scale(scale=self.factor()):
            pyro.sample("y", dist.Normal(self.last(self.between(self.norm(self.first(x)))), scale).to_event(1), obs=y)

    @staticmethod
    def guide(x: Tensor, y: Tensor) -> None:
        pyro.sample("scale", dist.LogNormal(pyro.param("loc", torch.zeros(())), 0.1))


recorded: Make = functools.partial(pyrodrop.compile_svi, engine="traced")


class Settings:
    beta: float = 1.0


class Slots:
    __slots__ = ("beta",)

    def __init__(self) -> None:
        self.beta = 1.0


def places() -> dict[str, tuple[Callable[[], float], Callable[[float], object]]]:
    """Where a program may read a number: a function that reads it, and one that changes it."""
    nested: dict[str, Any] = {"kl": {"beta": [1.0]}}
    slots = Slots()
    return {
        "class": (lambda: Settings.beta, lambda value: setattr(Settings, "beta", value)),
        "nested containers": (lambda: nested["kl"]["beta"][0], lambda value: nested["kl"].update(beta=[value])),
        "slots": (lambda: slots.beta, lambda value: setattr(slots, "beta", value)),
    }


@pytest.mark.parametrize("place", places())
def test_a_number_is_seen_wherever_code_names_it(place: str) -> None:
    write: Any = None

    def parts() -> Any:
        nonlocal write
        read, write = places()[place]
        write(1.0)
        return Program(read).parts

    engines = assert_steps_as_svi(Case(parts), 30, lambda svi, step: write(0.1) if step == 20 else None).engines
    assert engines[19] == engines[-1] == "traced"
    assert engines[20] == "pyro"


class Reversed(torch.autograd.Function):
    """Gradient reversal, as of Ganin et al. (2016)."""

    factor: ClassVar[Any] = np.ones(1)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return -float(Reversed.factor[0]) * gradient


def test_a_gradient_that_changes_without_the_loss_is_an_error() -> None:
    """An entry of an array is read once; the losses stay Pyro's at the step that finds it, and nothing moves there."""
    own = Program(between=Reversed.apply)

    def before(svi: SVI, step: int) -> None:
        Reversed.factor[0] = 1.0 if step < 13 else 0.5
        kept[:] = [own.first.weight.detach().clone()]

    kept: list[Tensor] = []
    with pytest.raises(RuntimeError, match=r"the gradient of first\S+ of the recorded steps .* since step 8"):
        by(recorded, Case(lambda: own.parts), 40, before)
    assert torch.equal(own.first.weight, kept[0])
    assert all(not parameter.grad.any() for parameter in own.first.parameters() if parameter.grad is not None)


def test_a_large_first_loss_hides_nothing() -> None:
    """A likelihood that becomes ten times smaller in an array, after a first loss of some 1e7."""
    factor = np.ones(1)
    own = Program(lambda: float(factor[0]))
    with torch.no_grad():
        own.last.bias.fill_(1000.0)

    def before(svi: SVI, step: int) -> None:
        if step == 4:
            own.last.bias.data.fill_(0.0)
        factor[0] = 1.0 if step < 13 else 0.1

    with pytest.raises(RuntimeError, match=r"the loss of the recorded steps .* since step 8"):
        by(recorded, Case(lambda: own.parts), 40, before)


def frozen(own: Program) -> None:
    own.first.requires_grad_(False)


def freed(own: Program) -> None:
    own.first.requires_grad_(True)


def hooked(own: Program) -> None:
    own.last.register_full_backward_pre_hook(lambda module, gradients: tuple(0 * one for one in gradients))


def reloaded(own: Program) -> None:
    own.last.load_state_dict({n: torch.zeros_like(p) for n, p in own.last.state_dict().items()}, assign=True)


def evaluated(own: Program) -> None:
    own.norm.eval()


def replaced(own: Program) -> None:
    own.norm.running_mean = torch.ones(4)


def filled(own: Program) -> None:
    own.norm.eval()
    own.norm.running_mean.data.fill_(0.3)


@pytest.mark.few(2)
@pytest.mark.parametrize("change", [frozen, freed, hooked, replaced, reloaded, evaluated, filled])
def test_flags_of_parameters_and_modules_are_compared_at_every_step(change: Callable[[Program], None]) -> None:
    made: list[Program] = []

    def parts() -> Any:
        made.append(Program())
        if change is freed:
            frozen(made[-1])
        return made[-1].parts

    run = assert_steps_as_svi(Case(parts), 40, lambda svi, step: change(made[-1]) if step == 13 else None, rtol=1e-9)
    tensors = [[*own.first.parameters(), *own.norm.buffers()] for own in made]
    torch.testing.assert_close(*tensors, rtol=1e-9, atol=1e-12)
    engines = run.engines
    assert engines[12] == "traced"
    assert engines[13] == "pyro"
    assert engines[-1] == ("pyro" if change is reloaded else "traced")  # Pyro's store keeps the parameter that it had


@pytest.mark.few(2)
@pytest.mark.parametrize("what", ["tensor", "argument", "baseline", "random", "numpy"])
def test_a_recording_that_is_refused_leaves_nothing_behind(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """What a call changes is what calls by Pyro alone make of it."""
    results = []
    for make in (SVI, recorded):
        random.seed(0)
        np.random.seed(0)
        pyro.clear_param_store()
        pyro.set_rng_seed(1)
        average, x = torch.ones(3), X.clone()

        def model(x: Tensor, average: Tensor = average) -> None:
            if what == "tensor":
                average.mul_(0.9)
            elif what == "argument":
                x.mul_(0.9)
            shift = random.random() if what == "random" else np.random.rand() if what == "numpy" else 0.0
            mean = pyro.sample("mean", dist.Bernoulli(0.5))
            with pyro.plate("rows", len(x)):
                pyro.sample("y", dist.Normal(mean + shift, 1.0), obs=(x * average).sum(-1))

        def guide(x: Tensor) -> None:
            rate = pyro.param("rate", torch.tensor(0.4), constraint=dist.constraints.unit_interval)
            pyro.sample(
                "mean", dist.Bernoulli(rate), infer={"baseline": {"use_decaying_avg_baseline": what == "baseline"}}
            )

        svi = make(model, guide, pyro.optim.Adam({"lr": 0.02}), TraceGraph_ELBO())
        losses = [svi.step(x) for _ in range(8)]
        stored = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}
        results.append((losses, stored, average, x, torch.rand(2), random.random(), np.random.rand()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)
    assert len(caplog.records) == 1


def lengths(x: Tensor, lengths: Tensor, most: int) -> None:
    """An autoregression of sequences of several lengths."""
    slope, scale = pyro.sample("slope", dist.Normal(0.0, 1.0)), pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("sequences", len(x)):
        before = torch.zeros(len(x))
        for step in range(most):
            with poutine.mask(mask=step < lengths):
                pyro.sample(f"y{step}", dist.Normal(slope * before, scale), obs=x[:, step])
            before = x[:, step]


def test_there_is_a_recording_for_each_whole_number_that_is_an_argument() -> None:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    calls = [{"x": x, "lengths": torch.full((6,), 3 + number % 2), "most": 3 + number % 2} for number in range(40)]
    assert_steps_as_svi(Case(lambda: (lengths, AutoNormal(lengths), calls.__getitem__)), 40, recorded=20)
