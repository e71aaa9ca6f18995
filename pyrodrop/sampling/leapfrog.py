"""Hamiltonian trajectories of many chains at once, by the leapfrog integrator.

    H(q, p) = U(q) + p^T M^-1 p / 2                       M diagonal
    p <- p - eps/2 dU/dq,   q <- q + eps M^-1 p,   p <- p - eps/2 dU/dq

Neal (2011), MCMC using Hamiltonian dynamics, eq. 5.18-5.20, https://arxiv.org/abs/1206.1901.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyrodrop.sampling.density import unchecked
from pyrodrop.sampling.integrator import Energies, Integrator, Step


class State(NamedTuple):
    """Where C chains are: q, p and dU/dq ``[C, D]``, and U ``[C]``."""

    q: Tensor
    p: Tensor
    gradient: Tensor
    energy: Tensor


class Leapfrog(Integrator):
    """Trajectories of a fixed number of chains."""

    def __call__(self, state: State, step_size: float, inverse_mass: Tensor, steps: int) -> State:
        """Follow the trajectories of all chains for `steps` leapfrog steps."""
        eps = torch.tensor(step_size, dtype=state.q.dtype, device=state.q.device)
        done = []
        with torch.no_grad(), unchecked():  # a trajectory may diverge
            for chains in self.blocks():
                q, p, gradient, energy = (value[chains] for value in state)
                for _ in range(steps):
                    q, p, gradient, energy = self._step(q, p, gradient, eps, inverse_mass)
                done.append((q, p, gradient, energy))
        return State(*(torch.cat(parts) for parts in zip(*done, strict=True)))

    def at(self, q: Tensor) -> State:
        """The state at q ``[C, D]`` with p = 0."""
        rest = torch.zeros_like(q)
        start = State(q, rest, rest, q.new_zeros(len(q)))
        return self(start, 0.0, torch.ones_like(q[0]), 1)._replace(p=rest)

    def energies(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """As `Integrator.energies`."""
        state = self.at(q)
        return state.energy, state.gradient

    def inputs(self, block: int) -> list[Tensor]:
        """q, p and dU/dq of a block, eps, and the diagonal of M^-1 ``[D]``."""
        return [
            *(self.like.expand(block, self.size).contiguous() for _ in range(3)),
            self.like,
            self.like.expand(self.size).contiguous(),
        ]

    @staticmethod
    def step_with(energies: Energies) -> Step:
        """From `inputs` to the new q, p, dU/dq and U ``[B]``."""

        def step(
            q: Tensor, p: Tensor, gradient: Tensor, eps: Tensor, inverse_mass: Tensor, *given: Tensor
        ) -> list[Tensor]:
            p = p - 0.5 * eps * gradient
            q = q + eps * inverse_mass * p
            energy, gradient = energies(q, *given)
            return [q, p - 0.5 * eps * gradient, gradient, energy]

        return step
