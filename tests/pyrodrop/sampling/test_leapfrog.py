"""Trajectories against a leapfrog that is written out for a density that is written out."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop.sampling.leapfrog import Leapfrog, State
from pyrodrop.sampling.posterior import density_of

X = torch.linspace(-1, 1, 7, dtype=torch.float64)[:, None]
Y = torch.sin(3 * X)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def model(net: nn.Module | None = None) -> pyrodrop.models.NetworkModel:
    return pyrodrop.models.from_module(
        net or network(),
        prior=pyrodrop.priors.Gaussian(2.0),
        bias_prior=pyrodrop.priors.Gaussian(0.5),
        likelihood=pyrodrop.likelihoods.Gaussian(9.0),
    )


def energy(q: Tensor) -> Tensor:
    """-ln p(y, w) of the network above, written out."""
    w0, b0, w1, b1 = q.split([3, 3, 3, 1])
    f = torch.tanh(X * w0 + b0) @ w1[:, None] + b1
    log_normal = -0.5 * 9 * (Y - f) ** 2 + 0.5 * math.log(9) - 0.5 * math.log(2 * math.pi)
    total = log_normal.sum()
    for value, sd in ((w0, 2.0), (b0, 0.5), (w1, 2.0), (b1, 0.5)):
        total = total + (-0.5 * (value / sd) ** 2 - math.log(sd) - 0.5 * math.log(2 * math.pi)).sum()
    return -total


def by_hand(
    of: Callable[[Tensor], Tensor], q: Tensor, p: Tensor, eps: float, inverse_mass: Tensor, steps: int
) -> State:
    """One chain by the equations of Neal (2011)."""

    def gradient(at: Tensor) -> Tensor:
        at = at.detach().requires_grad_()
        return torch.autograd.grad(of(at), at)[0]

    for _ in range(steps):
        p = p - eps / 2 * gradient(q)
        q = q + eps * inverse_mass * p
        p = p - eps / 2 * gradient(q)
    return State(q, p, gradient(q), of(q))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["compiled", "traced", "pyro"])
def test_chains_follow_the_trajectories_written_out(engine: str) -> None:
    chains = Leapfrog(density_of(model(), (X, Y)), 6, engine)
    assert (chains.engine, chains.stacked) == (engine, engine != "pyro")
    torch.manual_seed(1)
    q, p = torch.randn(6, 10, dtype=torch.float64), torch.randn(6, 10, dtype=torch.float64)
    inverse_mass = torch.rand(10, dtype=torch.float64) + 0.5
    end = chains(chains.at(q)._replace(p=p), 0.03, inverse_mass, 5)
    for chain in range(6):
        want = by_hand(energy, q[chain], p[chain], 0.03, inverse_mass, 5)
        for got, right in zip((value[chain] for value in end), want, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-9)


def test_trajectories_can_be_reversed() -> None:
    chains = Leapfrog(density_of(model(), (X, Y)), 4, "traced")
    torch.manual_seed(2)
    q, p = torch.randn(4, 10, dtype=torch.float64), torch.randn(4, 10, dtype=torch.float64)
    ones = torch.ones(10, dtype=torch.float64)
    there = chains(chains.at(q)._replace(p=p), 0.05, ones, 40)
    back = chains(there._replace(p=-there.p), 0.05, ones, 40)
    assert (there.q - q).abs().max() > 0.1
    torch.testing.assert_close(back.q, q, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(back.p, -p, rtol=1e-9, atol=1e-9)


def test_chains_in_several_blocks_move_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    density = density_of(model(), (X, Y))
    whole = Leapfrog(density, 6, "traced")
    monkeypatch.setattr("pyrodrop.sampling.integrator._BLOCK_BYTES", {"cpu": 4 * 1024})
    parts = Leapfrog(density, 6, "traced")
    assert whole.block == 6
    assert parts.block < 6
    torch.manual_seed(3)
    start = whole.at(torch.randn(6, 10, dtype=torch.float64))._replace(p=torch.randn(6, 10, dtype=torch.float64))
    ones = torch.ones(10, dtype=torch.float64)
    for one, other in zip(whole(start, 0.02, ones, 3), parts(start, 0.02, ones, 3), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("engine", ["traced", "pyro"])
def test_a_trajectory_that_diverges_has_no_finite_energy_and_raises_nothing(engine: str) -> None:
    one = Leapfrog(density_of(model(), (X, Y)), 1, engine)
    start = one.at(torch.ones(1, 10, dtype=torch.float64))
    end = one(start, 1e80, torch.ones(10, dtype=torch.float64), 5)
    assert not end.energy.isfinite().any()
    assert start.energy.isfinite().all()


class Counts(nn.Module):
    """Takes a number out of a weight, which cannot be mapped over weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.flatten(1)).tanh()) * float(self.last.weight.sum() < 1e6)  # type: ignore[no-any-return]


def test_a_network_that_cannot_be_mapped_takes_its_chains_in_turn() -> None:
    x = torch.randn(5, 4, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = model(Counts().double())
    density = density_of(own, (x, x.sum(1)))
    chains = Leapfrog(density, 4, "pyro")
    assert not chains.stacked
    assert all(not stacked for _, stacked, _ in Leapfrog._ways(chains, "auto"))
    p = pyrodrop.potential(own, (x, x.sum(1)), engine="pyro")
    starts = [p.initial_params(seed) for seed in range(4)]
    state = chains.at(torch.stack([chains.flat(start) for start in starts]))
    for chain, start in enumerate(starts):
        torch.testing.assert_close(state.energy[chain], p(start), rtol=1e-9, atol=1e-9)
