"""Microcanonical Langevin Monte Carlo: momentum of length 1, and no rejection, so that the step size biases the draws.

    dq = u dt,     du = -(1 - u u^T) dU/dq dt / (D - 1)                              |u| = 1
    turn by t:   e = -g / |g|,  g = dU/dq,  delta = t |g| / (D - 1),  zeta = exp(-delta)
                 u <- (e (1 - zeta) (1 + zeta + e.u (1 - zeta)) + 2 zeta u) / norm
                 kinetic energy <- it + (D - 1) (delta - ln 2 + ln(1 + e.u + (1 - e.u) zeta^2))
    renewal:     u <- (u + nu z) / |u + nu z|,   z ~ N(0, 1)^D,   nu^2 = (exp(2 eps / L) - 1) / D,   L = sqrt(D)

A step is: renew, turn by lambda eps, move by eps/2, turn by (1 - 2 lambda) eps, move by eps/2, turn by lambda eps, with
lambda of McLachlan's integrator of minimal norm. A transition is 50 steps. eps is tuned so that the change of energy in a
step has the mean square v D: mean square ~ eps^6, so the n-th move of ln eps is ln(v D / mean square) / (6 sqrt(n)).

Robnik, De Luca, Silverstein & Seljak (2023), Microcanonical Hamiltonian Monte Carlo, https://arxiv.org/abs/2212.08549;
Robnik & Seljak (2023), Microcanonical Langevin Monte Carlo, https://arxiv.org/abs/2303.18221; for the kinetic energy Steeg &
Galstyan (2021), Hamiltonian dynamics with non-Newtonian momentum, https://arxiv.org/abs/2111.02434.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrodrop.sampling.compiled_density import CompiledDensity
from pyrodrop.sampling.hmc import DIVERGENT, HMC, State
from pyrodrop.sampling.tuning import StepSize

LAMBDA = 0.1931833275037836  # McLachlan (1995), https://doi.org/10.1137/0916010
STEPS = 50  # of a transition


def turned(u: Tensor, gradient: Tensor, time: float) -> tuple[Tensor, Tensor]:
    """The momentum ``[C, D]`` after a turn, and the change of kinetic energy ``[C]``."""
    others = u.shape[1] - 1
    norm = gradient.norm(dim=1, keepdim=True).clamp_min(1e-30)
    e = -gradient / norm
    delta = time * norm / others
    zeta, along = (-delta).exp(), (e * u).sum(1, keepdim=True)
    new = e * (1 - zeta) * (1 + zeta + along * (1 - zeta)) + 2 * zeta * u
    kinetic = others * (delta - math.log(2) + (1 + along + (1 - along) * zeta**2).log())
    return new / new.norm(dim=1, keepdim=True), kinetic[:, 0].double()


class MCLMC(HMC):
    """Chains of microcanonical Langevin Monte Carlo, which move and adapt together.

    Args:
        density, q, generator, tune: as of `HMC`.
        energy_variance: v, target for the mean square of the change of energy in a step, per dimension.
    """

    def __init__(
        self, density: CompiledDensity, q: Tensor, generator: torch.Generator, tune: int, *, energy_variance: float
    ) -> None:
        self.density, self.generator, self.tune, self.metric = density, generator, tune, density.metric
        self.wanted, self.trajectory = energy_variance * density.size, math.sqrt(density.size)
        self.step_size, self.steps = 0.01 * self.trajectory, 2 * STEPS
        self.adapting = StepSize(self.step_size, 0.0)
        self.state = State(*density.energies(q), q, torch.zeros_like(q))
        self.state = self._with_momentum()

    def transition(self, number: int) -> dict[str, Tensor]:
        """50 steps of all chains; a chain whose energy error is over 1000 nats or not finite stays, with new momentum."""
        end, self.changes = self.followed(self._normal(STEPS))
        stays = ~((self.changes.abs() <= DIVERGENT).all(1) & end.q.isfinite().all(1))
        self.accepted, self.state = (~stays).double(), self._with_momentum().where(stays, end)
        return {
            "lp": -self.state.energy.double(),
            "energy_error": self.changes.square().mean(1).sqrt(),
            "diverging": stays,
            "n_steps": torch.full_like(stays, self.steps, dtype=torch.int64),
        }

    def followed(self, noise: Tensor) -> tuple[State, Tensor]:
        """The state after as many steps as `noise` has z, ``[steps, C, D]``, and the changes of energy ``[C, steps]``."""
        energy, gradient, q, u = self.state
        eps, changes = self.step_size, []
        nu = math.sqrt(math.expm1(2 * eps / self.trajectory) / self.density.size)
        for z in noise:
            u = u + nu * z
            u, change = u / u.norm(dim=1, keepdim=True), -energy.double()
            for turn, move in ((LAMBDA, 0.5), (1 - 2 * LAMBDA, 0.5), (LAMBDA, 0.0)):
                u, kinetic = turned(u, gradient, turn * eps)
                change = change + kinetic
                if move:
                    q = q + move * eps * u
                    energy, gradient = self.density.energies(q)
            changes.append(change + energy.double())
        return State(energy, gradient, q, u), torch.stack(changes, 1)

    def adapt(self, number: int) -> None:
        """Learn the step size; on the way from the starts, in the first half, the mean square may be five times as large."""
        stays, half = bool(self.accepted.min() < 1), self.tune // 2
        if stays or number == half:
            self.adapting = StepSize(self.step_size / (1 + stays), 0.0)
        if not stays:
            ratio = float(self.changes.square().mean()) / (self.wanted * (5 if number < half else 1))
            self.adapting.learn(-math.log(ratio + 1e-8) / 6)
        self.step_size = self.adapting.averaged if number == self.tune else self.adapting.now

    def _normal(self, *steps: int) -> Tensor:
        q = self.state.q
        return torch.randn(*steps, *q.shape, dtype=q.dtype, device=q.device, generator=self.generator)

    def _with_momentum(self) -> State:
        """The state with momenta that are uniform on the sphere."""
        z = self._normal()
        return self.state._replace(momentum=z / z.norm(dim=1, keepdim=True))
