"""Peers in the benchmark of steps: who takes part, who is refused, and that theirs is the same network."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.benchmarks import steps
from pyrodrop.analysis.lab.benchmarks.timing import Bench, moves_all, ratios
from pyrodrop.analysis.lab.peers import numpyro_training
from pyrodrop.analysis.lab.peers.networks import Network, Steps, dense, lenet, plain
from pyrodrop.analysis.lab.peers.training import (
    REQUIREMENTS,
    TRAINERS,
    Trainer,
    converted,
    installed,
    kl_weight,
    releases,
    steps_of,
)

ROOT = Path(__file__).parents[4]


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


def test_without_peers_their_table_is_empty_and_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for peer in TRAINERS:
        monkeypatch.setitem(sys.modules, peer.module, None)  # which makes its import fail
    said: list[str] = []
    assert installed(say=said.append) == []
    packages = list(dict.fromkeys(peer.package for peer in TRAINERS))
    assert len(said) == len(packages) == 4
    for line, package in zip(said, packages, strict=True):
        assert line.startswith(f"without {package}, ")
        assert line.endswith(f"see {REQUIREMENTS}")


def test_the_requirements_name_every_peer() -> None:
    named = re.findall(r"^([\w-]+)==", (ROOT / REQUIREMENTS).read_text(), flags=re.MULTILINE)
    assert {peer.package for peer in TRAINERS} <= set(named)


def test_a_peer_that_imports_takes_part(small: Network) -> None:
    fake = Trainer("plain once more", "torch", "torch", plain)
    assert installed([fake], say=pytest.fail) == [fake]
    assert torch.__version__.startswith(releases([fake])["torch"])  # which adds what it was built for
    bench = Bench("steps", {"small": small}, lambda network, _: steps.makers(network, [fake], {}, {}))
    found = ratios(bench.measured("small", rounds=2))
    assert list(found) == ["plain PyTorch", "plain PyTorch, fused Adam", "plain once more"]
    assert all(value > 0 for value in found.values())


def test_a_peer_that_leaves_a_parameter_unmoved_is_refused(small: Network) -> None:
    def lazy(network: Network) -> Steps:
        call, parameters = plain(network)
        assert isinstance(parameters, list)
        parameters[1].requires_grad_(False)
        return call, parameters

    made = steps.makers(small, [Trainer("lazy", "torch", "torch", lazy)], {}, {})
    bench = Bench("steps", {"3-4-1": small}, lambda *_: made)
    with pytest.raises(
        RuntimeError, match=re.escape("3-4-1, lazy leaves 1 of 4 parameters as they are: shapes [(4,)]")
    ):
        bench.measured("3-4-1", 1)


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


@pytest.mark.more
def test_the_shared_step_minimises_the_negative_log_likelihood_and_the_divergence() -> None:
    """With y = 2 at x = 1 twice and a divergence of m²/2 the bound is (m - 2)² + m²/2, least at m = 4/3."""
    x = torch.ones(2, 1)
    network = Network("1-1", lambda d: dense(d, 1, 1), x, 2 * x, nn.MSELoss(), likelihoods.Gaussian(1.0), 3000)
    net = converted(network, {nn.Linear: lambda d: nn.Linear(d.in_features, d.out_features, bias=False)})
    (m,) = net.parameters()
    nn.init.constant_(m, 1.0)
    call, _ = steps_of(network, net, lambda: (m**2).sum() / 2)
    call()
    torch.testing.assert_close(m.detach(), torch.full((1, 1), 4 / 3), rtol=1e-4, atol=0)


def test_the_divergence_weighs_twice_beside_a_loss_that_is_twice_the_negative_log_likelihood(
    small: Network, digits: Network
) -> None:
    f = torch.zeros_like(small.y)
    distribution = torch.distributions.Normal(f, 1.0)
    likelihood = -(distribution.log_prob(small.y) - distribution.log_prob(f)).mean()
    torch.testing.assert_close(small.loss(f, small.y), kl_weight(small) * len(small.x) * likelihood)
    assert kl_weight(digits) == 1 / 256


@pytest.mark.parametrize("peer", TRAINERS, ids=lambda peer: peer.name)
@pytest.mark.parametrize("name", ["small", "digits"])
def test_an_installed_peer_trains(peer: Trainer, name: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip(peer.module, exc_type=ImportError)
    call, parameters = peer.steps(request.getfixturevalue(name))
    moves_all(call, parameters, peer.name)


@pytest.mark.parametrize("name", ["small", "digits"])
def test_the_layers_in_jax_are_those_in_torch(name: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("numpyro", exc_type=ImportError)
    network: Network = request.getfixturevalue(name)
    torch.manual_seed(0)
    net = network.layers(lambda: nn.Dropout(0.5)).eval()
    outputs = numpyro_training.forward(
        net, numpyro_training.weights_of(net), numpyro_training.to_jax(network.x), lambda h: h
    )
    torch.testing.assert_close(torch.from_numpy(outputs.__array__().copy()), net(network.x).detach())
