"""Microcanonical trajectories against the equations, integrated by SciPy and written out by hand."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from pyrodrop.sampling.density import CompiledDensity, density_of
from pyrodrop.sampling.mclmc import LAMBDA, MCLMC, Tuned, turned
from tests.pyrodrop.sampling.test_leapfrog import X, Y, energy, model

D = 10


def directions(chains: int) -> Tensor:
    z = torch.randn(chains, D, dtype=torch.float64)
    return z / z.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("time", [1e-3, 0.3, 20.0])
def test_a_turn_solves_the_equation_of_motion_at_a_constant_gradient(time: float) -> None:
    """du/dt = -(1 - u u^T) g / (D - 1), and the kinetic energy takes what the potential energy along u loses: -u.g."""
    torch.manual_seed(0)
    u, g = directions(1)[0].numpy(), 3 * torch.randn(D, dtype=torch.float64).numpy()

    def motion(_: float, state: np.ndarray) -> np.ndarray:
        own = state[:-1]
        return np.append(-(g - own * (own @ g)) / (D - 1), -own @ g)

    want = solve_ivp(motion, (0, time), np.append(u, 0.0), rtol=1e-11, atol=1e-12).y[:, -1]
    new, kinetic = turned(torch.tensor(u)[None], torch.tensor(g)[None], torch.tensor(time, dtype=torch.float64))
    np.testing.assert_allclose(new[0].numpy(), want[:-1], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(float(kinetic), want[-1], rtol=1e-7, atol=1e-9)


def by_hand(
    q: Tensor, u: Tensor, eps: float, length: float, scale: Tensor, noise: Tensor
) -> tuple[Tensor, list[float]]:
    """Whole steps of one chain, each with its renewal first, and the changes of energy."""

    def gradient(at: Tensor) -> Tensor:
        at = at.detach().requires_grad_()
        return torch.autograd.grad(energy(at), at)[0] * scale

    nu, changes = math.sqrt((math.exp(2 * eps / length) - 1) / D), []
    for z in noise:
        u = (u + nu * z) / (u + nu * z).norm()
        change = -energy(q)
        for turn, move in ((LAMBDA, 0.5), (1 - 2 * LAMBDA, 0.5), (LAMBDA, 0.0)):
            new, kinetic = turned(u[None], gradient(q)[None], torch.tensor(turn * eps, dtype=torch.float64))
            u, q, change = new[0], q + move * eps * scale * new[0], change + kinetic[0]
        changes.append(float(change + energy(q)))
    return q, changes


def mclmc(q: Tensor, engine: str, tuned: Tuned) -> MCLMC:
    """The kernel with chains at q."""
    compiled = CompiledDensity(density_of(model(), (X, Y)), len(q), engine, MCLMC.step)
    kernel = MCLMC(compiled, q, torch.Generator().manual_seed(0), 100, energy_variance=5e-4)
    kernel.tuned = tuned
    return kernel


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["traced", "pyro", pytest.param("compiled", marks=pytest.mark.more)])
def test_chains_follow_the_steps_written_out(engine: str) -> None:
    torch.manual_seed(1)
    q, u, scale = torch.randn(4, D, dtype=torch.float64), directions(4), torch.rand(D, dtype=torch.float64) + 0.5
    noise = torch.randn(3, 4, D, dtype=torch.float64)
    kernel = mclmc(q, engine, Tuned(0.2, 1.5, scale))
    middle, changes = kernel.follow(kernel.state._replace(momentum=u), noise[:2])
    end, more = kernel.follow(middle, noise[2:])
    for chain in range(4):
        want, energies = by_hand(q[chain], u[chain], 0.2, 1.5, scale, noise[:, chain])
        torch.testing.assert_close(end.q[chain], want, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose([*changes[chain], *more[chain]], energies, rtol=1e-7, atol=1e-8)


def test_the_change_of_energy_of_a_step_falls_with_the_third_power_of_its_size() -> None:
    torch.manual_seed(2)
    q, u, scale = 0.5 * torch.randn(50, D, dtype=torch.float64), directions(50), torch.ones(D, dtype=torch.float64)
    kernel = mclmc(q, "traced", Tuned(0.02, 1e9, scale))
    sizes = []
    for eps in (0.02, 0.01):
        kernel.tuned = Tuned(eps, 1e9, scale)
        _, changes = kernel.follow(kernel.state._replace(momentum=u), torch.zeros(1, 50, D, dtype=torch.float64))
        sizes.append(float(changes.square().mean().sqrt()))
    assert 6 < sizes[0] / sizes[1] < 10
