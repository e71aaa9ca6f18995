"""Microcanonical dynamics of many chains at once: unit momentum that turns towards lower energy, without any rejection.

    dq = s u dt,     du = -(1 - u u^T) s dU/dq dt / (D - 1)                          |u| = 1, s diagonal
    turn by t:   e = -g / |g|,  g = s dU/dq,  delta = t |g| / (D - 1),  zeta = exp(-delta)
                 u <- (e (1 - zeta) (1 + zeta + e.u (1 - zeta)) + 2 zeta u) / norm
                 kinetic energy <- it + (D - 1) (delta - ln 2 + ln(1 + e.u + (1 - e.u) zeta^2))
    renewal:     u <- (u + nu z) / |u + nu z|,   z ~ N(0, 1)^D,   nu^2 = (exp(2 eps / L) - 1) / D

q of a trajectory has the density exp(-U) exactly in continuous time; a step size eps gives it a bias. L is the length after
which momentum is forgotten. A step is: turn by lambda eps, move by eps/2, turn by (1 - 2 lambda) eps, move by eps/2, turn by
lambda eps, with lambda of McLachlan's integrator of minimal norm; then the renewal. Its two gradients are two calls of one
program, which finishes a step with its first turn before it begins the next.

Robnik, De Luca, Silverstein & Seljak (2023), Microcanonical Hamiltonian Monte Carlo, https://arxiv.org/abs/2212.08549;
Robnik & Seljak (2023), Microcanonical Langevin Monte Carlo, https://arxiv.org/abs/2303.18221; for the kinetic energy Steeg &
Galstyan (2021), Hamiltonian dynamics with non-Newtonian momentum, https://arxiv.org/abs/2111.02434.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyrodrop.sampling.density import unchecked
from pyrodrop.sampling.integrator import Energies, Integrator, Step

LAMBDA = 0.1931833275037836  # McLachlan (1995), https://doi.org/10.1137/0916010


class State(NamedTuple):
    """Where C chains are: q, u and dU/dq ``[C, D]``, U ``[C]``, and the energy's change in the step that is not finished."""

    q: Tensor
    u: Tensor
    gradient: Tensor
    energy: Tensor
    change: Tensor


class Isokinetic(Integrator):
    """Microcanonical trajectories of a fixed number of chains; `unfinished` is the time of the turn that ends a step."""

    unfinished: float = 0.0

    def __call__(
        self, state: State, step_size: float, length: float, scale: Tensor, noise: Tensor
    ) -> tuple[State, Tensor]:
        """Follow all chains.

        Args:
            state: of the chains.
            step_size: eps.
            length: L.
            scale: s, ``[D]``.
            noise: z of every step, ``[steps, C, D]``.

        Returns:
            The state, and the changes of energy of the steps that were finished, ``[steps, C]`` in float64.
        """
        turns = (self.unfinished, LAMBDA * step_size, 0.0, (1 - 2 * LAMBDA) * step_size)
        nu = math.sqrt(math.expm1(2 * step_size / length) / self.size)
        before, start, none, middle, half, renewal, finish = (
            torch.tensor(value, dtype=scale.dtype, device=scale.device)
            for value in (*turns, step_size / 2, nu, LAMBDA * step_size)
        )
        done = []
        with torch.no_grad(), unchecked():  # energies may be infinite
            for chains in self.blocks():
                q, u, gradient, energy, change = (value[chains] for value in state)
                changes = []
                for number, z in enumerate(noise[:, chains]):
                    last = finish if number else before
                    old = energy
                    q, u, gradient, _, finished, kinetic = self._step(
                        q, u, gradient, z, last, renewal, start, half, scale
                    )
                    changes.append(change + finished)
                    q, u, gradient, energy, _, more = self._step(q, u, gradient, z, none, none, middle, half, scale)
                    change = kinetic.double() + more + (energy.double() - old)
                done.append((q, u, gradient, energy, change, torch.stack(changes)))
        self.unfinished = LAMBDA * step_size
        *parts, all_changes = zip(*done, strict=True)
        return State(*(torch.cat(part) for part in parts)), torch.cat(all_changes, 1)

    def energies(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """As `Integrator.energies`."""
        rest, none, scale = torch.ones_like(q), self.like, torch.ones_like(q[0])
        with torch.no_grad(), unchecked():
            parts = [
                self._step(q[chains], rest[chains], rest[chains], rest[chains], none, none, none, none, scale)
                for chains in self.blocks()
            ]
        return torch.cat([part[3] for part in parts]), torch.cat([part[2] for part in parts])

    def inputs(self, block: int) -> list[Tensor]:
        """q, u, dU/dq and z of a block; the times of both turns around the renewal's nu, of the move, and s ``[D]``."""
        several = [self.like.expand(block, self.size).contiguous() for _ in range(4)]
        return [*several, *(self.like for _ in range(4)), self.like.expand(self.size).contiguous()]

    @staticmethod
    def step_with(energies: Energies) -> Step:
        """From `inputs` to the new q, u, dU/dq and U ``[B]``, and the kinetic energies of both turns ``[B]``."""

        def step(
            q: Tensor, u: Tensor, gradient: Tensor, z: Tensor, before: Tensor, nu: Tensor, after: Tensor, time: Tensor,
            scale: Tensor, *given: Tensor,
        ) -> list[Tensor]:  # fmt: skip
            u, finished = turned(u, gradient * scale, before)
            u = u + nu * z
            u = u / u.norm(dim=1, keepdim=True)
            u, kinetic = turned(u, gradient * scale, after)
            q = q + time * scale * u
            energy, gradient = energies(q, *given)
            return [q, u, gradient, energy, finished, kinetic]

        return step


def turned(u: Tensor, gradient: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """The momentum ``[B, D]`` after a turn, and the change of kinetic energy ``[B]``."""
    others = u.shape[1] - 1
    norm = gradient.norm(dim=1, keepdim=True).clamp_min(1e-30)
    e = -gradient / norm
    delta = time * norm / others
    zeta, along = (-delta).exp(), (e * u).sum(1, keepdim=True)
    new = e * (1 - zeta) * (1 + zeta + along * (1 - zeta)) + 2 * zeta * u
    kinetic = others * (delta - math.log(2) + (1 + along + (1 - along) * zeta**2).log())
    return new / new.norm(dim=1, keepdim=True), kinetic[:, 0]
