"""The benchmark of steps: what does not train is refused, and NumPyro's is the same network."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.benchmarks.timing import moves_all
from pyrodrop.analysis.lab.peers import numpyro_training
from pyrodrop.analysis.lab.peers.networks import Network, Steps, dense, lenet


@pytest.fixture
def small() -> Network:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(256, d, generator=generator) for d in (3, 1))
    return Network("3-4-1", lambda d: dense(d, 3, 4, 1), x, y, nn.MSELoss(), likelihoods.Gaussian(1.0), 2)


@pytest.fixture
def digits() -> Network:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(256, 1, 28, 28, generator=generator), torch.randint(10, (256,), generator=generator)
    return Network("LeNet", lenet, x, y, nn.CrossEntropyLoss(), likelihoods.Categorical(), 1)


def test_parameters_that_a_step_makes_anew_are_read_again() -> None:
    state = {"moved": torch.zeros(2), "still": torch.zeros(3)}

    def step() -> None:
        state["moved"] = state["moved"] + 1

    moves_all(step, lambda: [state["moved"]], "new")
    with pytest.raises(RuntimeError, match=re.escape("new leaves 1 of 2 parameters as they are: shapes [(3,)]")):
        moves_all(step, lambda: list(state.values()), "new")


def test_parameters_that_are_none_or_not_finite_are_refused() -> None:
    state = torch.zeros(2)
    with pytest.raises(RuntimeError, match="broken makes 1 of 1 parameters infinite or NaN"):
        moves_all(lambda: state.fill_(float("nan")), [state], "broken")
    with pytest.raises(RuntimeError, match="none names no parameters"):
        moves_all(lambda: None, [], "none")


@pytest.mark.parametrize("kind", [numpyro_training.dropout, numpyro_training.mean_field])
@pytest.mark.parametrize("name", ["small", "digits"])
def test_numpyro_trains(kind: Callable[[Network], Steps], name: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("numpyro", exc_type=ImportError)
    moves_all(*kind(request.getfixturevalue(name)), name)


@pytest.mark.parametrize("name", ["small", "digits"])
def test_the_layers_in_jax_are_those_in_torch(name: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("numpyro", exc_type=ImportError)
    network: Network = request.getfixturevalue(name)
    torch.manual_seed(0)
    net = network.build(lambda: nn.Dropout(0.5)).eval()
    outputs = numpyro_training.forward(
        net, numpyro_training.weights_of(net), numpyro_training.to_jax(network.x), lambda h: h
    )
    torch.testing.assert_close(torch.from_numpy(outputs.__array__().copy()), net(network.x).detach())
