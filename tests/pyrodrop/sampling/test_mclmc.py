"""Microcanonical chains against the equations of motion, integrated by SciPy, and a posterior in closed form."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor, nn

import pyrodrop
from pyrodrop import likelihoods, priors
from pyrodrop.sampling.compiled_density import CompiledDensity
from pyrodrop.sampling.density import network_density
from pyrodrop.sampling.mclmc import MCLMC, STEPS, turned
from tests.pyrodrop.sampling.test_leapfrog import X, Y, model
from tests.pyrodrop.sampling.test_sample import X as INPUTS
from tests.pyrodrop.sampling.test_sample import Y as TARGETS
from tests.pyrodrop.sampling.test_sample import exact, linear, standard_errors

D = 10


def kernel(chains: int) -> MCLMC:
    torch.manual_seed(2)
    compiled = CompiledDensity(network_density(model(), (X, Y)), chains, "traced")
    q = 0.5 * torch.randn(chains, D, dtype=torch.float64)
    return MCLMC(compiled, q, torch.Generator().manual_seed(0), 100, energy_variance=5e-4)


@pytest.mark.parametrize("time", [1e-3, 0.3, 20.0])
def test_a_turn_solves_the_equation_of_motion_at_a_constant_gradient(time: float) -> None:
    """du/dt = -(1 - u u^T) g / (D - 1), and the kinetic energy takes what the potential energy along u loses: -u.g."""
    torch.manual_seed(0)
    z, g = torch.randn(2, D, dtype=torch.float64)
    u, slope = z / z.norm(), 3 * g.numpy()

    def motion(_: float, state: np.ndarray) -> np.ndarray:
        now = state[:-1]
        return np.append(-(slope - now * (now @ slope)) / (D - 1), -now @ slope)

    want = solve_ivp(motion, (0, time), np.append(u.numpy(), 0.0), rtol=1e-11, atol=1e-12).y[:, -1]
    new, kinetic = turned(u[None], torch.tensor(slope)[None], time)
    np.testing.assert_allclose(new[0].numpy(), want[:-1], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(float(kinetic), want[-1], rtol=1e-7, atol=1e-9)


def test_the_change_of_energy_of_a_step_falls_with_the_third_power_of_its_size() -> None:
    chains, sizes = kernel(50), []
    for eps in (0.005, 0.0025):
        chains.step_size = eps
        _, changes = chains.followed(torch.zeros(1, 50, D, dtype=torch.float64))
        sizes.append(float(changes.abs().median()))
    assert 6 < sizes[0] / sizes[1] < 10


def test_a_chain_that_loses_energy_stays_and_the_step_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = kernel(3)
    begin, before = chains.state.q, chains.step_size

    def followed(noise: Tensor) -> Any:
        changes = torch.zeros(3, STEPS, dtype=torch.float64)
        changes[1, 3] = 5000.0
        return chains.state._replace(q=chains.state.q + 1), changes

    monkeypatch.setattr(chains, "followed", followed)
    assert chains.transition(1)["diverging"].tolist() == [False, True, False]
    moved = torch.tensor([1.0, 0.0, 1.0]).double()[:, None].expand(3, D)
    torch.testing.assert_close(chains.state.q - begin, moved)
    chains.adapt(1)
    assert chains.step_size == pytest.approx(before / 2)


def test_a_conjugate_posterior() -> None:
    """Means without bias; variances within the bias of the step size, 2 %, and 4 standard errors."""
    options: dict[str, Any] = {"energy_variance": 5e-4, "engine": "traced", "progress": False}
    found = pyrodrop.sample(linear(), (INPUTS, TARGETS), chains=64, draws=40, tune=100, **options)
    mean, covariance = exact()
    w = torch.cat([found.samples["weight"][:, :, 0], found.samples["bias"]], 2)
    for i in range(3):
        assert standard_errors(w[..., i], float(mean[i])) < 4
        square = (w[..., i] - mean[i]) ** 2 / covariance[i, i]
        error = abs(float(square.mean()) - 1) / max(1e-9, standard_errors(square, 1.0))
        assert abs(float(square.mean()) - 1) < 0.02 + 4 * error
    assert found.diagnostics().mixed
    reached = float(found.stats["energy_error"].square().mean()) / 3
    assert 0.3 < reached / 5e-4 < 3
    one = pyrodrop.models.from_module(
        nn.Linear(1, 1, bias=False), priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)
    )
    with pytest.raises(ValueError, match="at least 2 latent numbers"):
        pyrodrop.sample(one, (INPUTS[:, :1].float(), TARGETS.float()), **options)
    assert math.isfinite(found.settings["step_size"])
