"""What a program is made of, wherever it holds it: `fit` against `pyro.infer.SVI` from the same seed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroModule
from torch import Tensor, nn

import pyrodrop

pytestmark = pytest.mark.usefixtures("float64")
X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 + 3
OPTIONS: dict[str, Any] = {"lr": 0.01, "seed": 3, "objective": Trace_ELBO(), "progress": False}
Pair = tuple[Callable[..., Any], Callable[..., Any]]


def networks() -> tuple[nn.Module, nn.Module]:
    """An encoder that normalises and drops, and a decoder."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Dropout(0.3))
    return nn.Sequential(first, nn.Linear(4, 4)), nn.Linear(2, 3)


def model_of(decoder: nn.Module, x: Tensor) -> None:
    pyro.module("decoder", decoder)
    with pyro.plate("rows", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(decoder(z), 1.0).to_event(1), obs=x)


def guide_of(encoder: nn.Module, x: Tensor) -> None:
    pyro.module("encoder", encoder)
    with pyro.plate("rows", len(x)):
        h = encoder(x)
        pyro.sample("z", dist.Normal(h[:, :2], h[:, 2:].exp()).to_event(1))


class Holder:
    """A plain object that holds its networks somewhere; `get` finds one by its number."""

    def __init__(self, networks: Any, get: Callable[[Any, int], Any]) -> None:
        self.networks, self.get = networks, get

    def model(self, x: Tensor) -> None:
        model_of(self.get(self.networks, 1), x)

    def guide(self, x: Tensor) -> None:
        guide_of(self.get(self.networks, 0), x)


class Called:
    def __init__(self, program: Callable[..., Any], network: nn.Module) -> None:
        self.program, self.network = program, network

    def __call__(self, x: Tensor) -> None:
        self.program(self.network, x)


class Module(PyroModule):
    def __init__(self, program: Callable[..., Any], network: nn.Module) -> None:
        super().__init__()
        self.program, self.network = program, network

    def forward(self, x: Tensor) -> None:
        self.program(self.network, x)


def methods(networks: Any, get: Callable[[Any, int], Any]) -> Pair:
    holder = Holder(networks, get)
    return holder.model, holder.guide


def both(kind: Callable[..., Callable[..., Any]]) -> Callable[..., Pair]:
    return lambda encoder, decoder: (kind(model_of, decoder), kind(guide_of, encoder))


def function(program: Callable[..., Any], network: nn.Module) -> Callable[..., Any]:
    return lambda x: program(network, x)


KINDS: dict[str, Callable[[nn.Module, nn.Module], Pair]] = {
    "methods": lambda encoder, decoder: methods((encoder, decoder), lambda pair, n: pair[n]),
    "lists": lambda encoder, decoder: methods([[encoder], [decoder]], lambda lists, n: lists[n][0]),
    "dicts": lambda encoder, decoder: methods({"a": {0: [encoder], 1: [decoder]}}, lambda nested, n: nested["a"][n][0]),
    "functions": both(function),
    "partials": both(functools.partial),
    "handlers": both(lambda program, network: pyro.poutine.scale(functools.partial(program, network), scale=1.0)),
    "objects": both(Called),
    "modules": both(Module),
}


def by_svi(pair: Pair, steps: int) -> list[float]:
    pyro.clear_param_store()
    torch.manual_seed(OPTIONS["seed"])
    svi = SVI(*pair, pyro.optim.Adam({"lr": OPTIONS["lr"]}), Trace_ELBO())
    return [svi.step(x=X) for _ in range(steps)]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_networks_of_any_program_are_trained_in_place_and_evaluated(name: str, engine: Any, tmp_path: Path) -> None:
    """Losses, parameters and running statistics are SVI's; the fit keeps them, and predicts in evaluation mode."""
    kind, theirs = KINDS[name], networks()
    want = by_svi(kind(*theirs), 6)  # whose parameters stay in the store, under the same names
    encoder, decoder = networks()
    model, guide = kind(encoder, decoder)
    run = pyrodrop.fit(model, guide, {"x": X}, steps=6, engine=engine, **OPTIONS)
    torch.testing.assert_close(run.losses, torch.tensor(want), rtol=1e-6, atol=0)
    assert run.settings["engine"] == engine
    for ours, his in zip((encoder, decoder), theirs, strict=True):
        torch.testing.assert_close(ours.state_dict(), his.state_dict())
    statistics = copy.deepcopy(encoder[0][1].state_dict())
    assert int(statistics["num_batches_tracked"]) == 6

    few, elbo = run.predict({"x": X[:2]}, num_samples=500, sites=["z"])["z"][:, 0], run.elbo(20)
    assert encoder.training
    assert all(torch.equal(value, statistics[key]) for key, value in encoder[0][1].state_dict().items())
    evaluated = copy.deepcopy(encoder).eval()
    h = evaluated(X)[0]
    assert ((few.mean(0) - h[:2]).abs() < 5 * h[2:].exp() / 500**0.5).all()
    torch.manual_seed(0)
    SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x=X)
    assert not torch.equal(encoder[1].weight, evaluated[1].weight)
    assert torch.equal(run.predict({"x": X[:2]}, num_samples=500, sites=["z"])["z"][:, 0], few)
    assert run.elbo(20).value == elbo.value

    for steps in (2, 6):
        pyro.clear_param_store()
        encoder, decoder = networks()
        pyrodrop.fit(
            *kind(encoder, decoder), {"x": X}, steps=steps, engine=engine, checkpoint=tmp_path / "s", **OPTIONS
        )
    torch.testing.assert_close(encoder.state_dict(), theirs[0].state_dict())


class Memory:
    """A program that reads a number that its own calls change."""

    mean = 0.0

    def __init__(self, kind: str) -> None:
        self.calls, self.tensor, self.array, self.nested = 0, torch.zeros(()), np.zeros(1), {"a": [{"calls": 0}]}
        self.kind, self.log = kind, []
        self.torch, self.numpy = torch.Generator().manual_seed(0), np.random.default_rng(0)

    def shift(self) -> float:
        if self.kind == "number":
            self.calls += 1
        elif self.kind == "tensor":
            self.tensor.add_(1.0)
        elif self.kind == "array":
            self.array += 1
        elif self.kind == "nested":
            self.nested["a"][0]["calls"] += 1
        elif self.kind == "log":
            self.log.append(1)
        elif self.kind == "class":
            type(self).mean = 0.9 * self.mean + 1
        drawn = {
            "torch": lambda: float(torch.rand((), generator=self.torch)),
            "numpy": self.numpy.random,
        }.get(self.kind, lambda: 0.0)()
        kept = self.calls + float(self.tensor) + float(self.array[0]) + self.nested["a"][0]["calls"] + len(self.log)
        return float(kept) + drawn + self.mean

    def model(self, y: Tensor) -> None:
        pyro.sample("y", dist.Normal(pyro.sample("z", dist.Normal(0.0, 1.0)) + 0.1 * self.shift(), 1.0), obs=y)


def guide(y: Tensor) -> None:
    pyro.sample("z", dist.Normal(pyro.param("loc", torch.zeros(())), 0.1))


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", ["tensor", "torch", "number", "array", "nested", "log", "class", "numpy"])
def test_a_program_is_called_as_often_as_it_steps(kind: str) -> None:
    results = []
    for how in ("svi", "pyro", "traced", "compile_svi"):
        Memory.mean = 0.0
        pyro.clear_param_store()
        program = Memory(kind)
        if how in ("pyro", "traced"):
            data: Any = {"y": torch.tensor(1.0)}
            losses = pyrodrop.fit(program.model, guide, data, steps=6, engine=how, **OPTIONS).losses.tolist()
        else:
            torch.manual_seed(OPTIONS["seed"])
            make: Any = SVI if how == "svi" else functools.partial(pyrodrop.compile_svi, engine="traced")
            svi = make(program.model, guide, pyro.optim.Adam({"lr": OPTIONS["lr"]}), Trace_ELBO())
            losses = [svi.step(torch.tensor(1.0)) for _ in range(6)]
        results.append([*losses, program.shift()])
    for ours in results[1:]:
        torch.testing.assert_close(ours, results[0], rtol=1e-6, atol=0)


def test_what_cannot_be_put_back_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """By `fit`; Pyro makes the steps of `compile_svi`."""
    items = (number for number in range(100))

    def model(y: Tensor) -> None:
        pyro.sample("y", dist.Normal(pyro.sample("z", dist.Normal(0.0, 1.0)) + next(items), 1.0), obs=y)

    data = {"y": torch.tensor(1.0)}
    with pytest.raises(ValueError, match="takes items from the iterator 'items', a generator"):
        pyrodrop.fit(model, guide, data, steps=2, **OPTIONS)
    assert next(items) == 0
    svi = pyrodrop.compile_svi(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO(), engine="traced")
    for _ in range(5):
        svi.step(torch.tensor(1.0))
    assert (svi.engine, next(items)) == ("pyro", 6)
    with pytest.raises(ValueError, match="a call changes tensor: register what must be saved as a buffer"):
        pyrodrop.fit(Memory("tensor").model, guide, data, steps=2, checkpoint=tmp_path / "state", **OPTIONS)
