"""The compiled density, and trajectories against a leapfrog that is written out for a density that is written out."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop.sampling import compiled_density
from pyrodrop.sampling.compiled_density import CompiledDensity
from pyrodrop.sampling.density import Density, network_density
from pyrodrop.sampling.hmc import HMC, State
from pyrodrop.sampling.tuning import Metric

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
    return State(of(q), gradient(q), q, p)


def hmc(density: Density, q: Tensor, engine: str, inverse_mass: Tensor | None = None) -> HMC:
    """The kernel with chains at q."""
    compiled = CompiledDensity(density, len(q), engine)
    kernel = HMC(compiled, q, torch.Generator().manual_seed(0), 100, target_acceptance=0.651, max_steps=1000)
    if inverse_mass is not None:
        kernel.metric = Metric(inverse_mass.sqrt())
    return kernel


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["compiled", "traced"])
def test_chains_follow_the_trajectories_written_out(engine: str) -> None:
    torch.manual_seed(1)
    q, p = torch.randn(6, 10, dtype=torch.float64), torch.randn(6, 10, dtype=torch.float64)
    inverse_mass = torch.rand(10, dtype=torch.float64) + 0.5
    kernel = hmc(network_density(model(), (X, Y)), q, engine, inverse_mass)
    assert (kernel.density.engine, kernel.density.stacked) == (engine, True)
    end = kernel.follow(kernel.state._replace(momentum=p), 0.03, 5)
    for chain in range(6):
        want = by_hand(energy, q[chain], p[chain], 0.03, inverse_mass, 5)
        for got, right in zip((value[chain] for value in end), want, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-9)


def test_trajectories_can_be_reversed() -> None:
    torch.manual_seed(2)
    q, p = torch.randn(4, 10, dtype=torch.float64), torch.randn(4, 10, dtype=torch.float64)
    kernel = hmc(network_density(model(), (X, Y)), q, "traced")
    there = kernel.follow(kernel.state._replace(momentum=p), 0.05, 40)
    back = kernel.follow(there._replace(momentum=-there.momentum), 0.05, 40)
    assert (there.q - q).abs().max() > 0.1
    torch.testing.assert_close(back.q, q, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(back.momentum, -p, rtol=1e-9, atol=1e-9)


def test_chains_in_several_blocks_move_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    density = network_density(model(), (X, Y))
    torch.manual_seed(3)
    q, p = torch.randn(6, 10, dtype=torch.float64), torch.randn(6, 10, dtype=torch.float64)
    whole = hmc(density, q, "traced")
    monkeypatch.setattr("pyrodrop.sampling.compiled_density._BLOCK_BYTES", {"cpu": 4096 // torch.get_num_threads()})
    blocks = hmc(density, q, "traced")
    assert whole.density.block == 6
    assert 1 < blocks.density.block < 6
    ends = [kernel.follow(kernel.state._replace(momentum=p), 0.02, 3) for kernel in (whole, blocks)]
    for value, other in zip(*ends, strict=True):
        torch.testing.assert_close(value, other)


def test_a_trajectory_that_diverges_has_no_finite_energy_and_raises_nothing() -> None:
    kernel = hmc(network_density(model(), (X, Y)), torch.ones(1, 10, dtype=torch.float64), "traced")
    end = kernel.follow(kernel.state, 1e80, 5)
    assert not end.energy.isfinite().any()
    assert kernel.state.energy.isfinite().all()


@pytest.mark.parametrize("wrong", [lambda e, g: [1.1 * e, *g], lambda e, g: [e, *g[:-1], 1.1 * g[-1]]])
def test_an_energy_or_a_gradient_of_a_site_that_is_not_pyros_is_refused(
    wrong: Callable[..., list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = compiled_density._energy_and_gradients
    monkeypatch.setattr(
        compiled_density, "_energy_and_gradients", lambda *values: wrong(*(lambda e, *g: (e, g))(*right(*values)))
    )
    with pytest.raises(ValueError, match="numbers differ from Pyro's"):
        CompiledDensity(network_density(model(), (X, Y)), 2, "traced")


class Recurrent(nn.Module):
    """Cannot be mapped over weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.GRU(1, 2, batch_first=True), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)[0][:, -1])  # type: ignore[no-any-return]


def test_a_network_that_cannot_be_mapped_takes_its_chains_in_turn() -> None:
    x = torch.randn(5, 4, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    recurrent = model(Recurrent().double())
    compiled = CompiledDensity(network_density(recurrent, (x, x.sum(1))), 4, "traced")
    assert not compiled.stacked
    p = pyrodrop.potential(recurrent, (x, x.sum(1)), engine="traced")
    starts = [p.initial_params(seed) for seed in range(4)]
    energies, _ = compiled.energies(torch.stack([compiled.density.flat(start) for start in starts]))
    for energy, start in zip(energies, starts, strict=True):
        torch.testing.assert_close(energy, p(start), rtol=1e-9, atol=1e-9)
