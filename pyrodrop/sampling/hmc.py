"""Hamiltonian Monte Carlo with many chains that share one tuning (ChEES-HMC).

    H(q, p) = U(q) + p^T M^-1 p / 2                       M diagonal
    p <- p - eps/2 dU/dq,   q <- q + eps M^-1 p,   p <- p - eps/2 dU/dq              one leapfrog step

    p ~ N(0, M),   (q', p') = trajectory of time h T from (q, p)
    q <- q' with probability a = min(1, exp(H(q, p) - H(q', p')))

Tuning has three parts: a descent from the starts by short trajectories, in which new momentum takes energy away; learning of
step size, length T and mass matrix; and learning of the step size alone, with length and mass matrix fixed. See
`pyrodrop.sampling.tuning`.

Neal (2011), MCMC using Hamiltonian dynamics, eq. 5.18-5.20, https://arxiv.org/abs/1206.1901.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyrodrop.sampling.chains import DIVERGENT, State
from pyrodrop.sampling.density import CompiledDensity, Energies, Step
from pyrodrop.sampling.tuning import (
    FEW,
    Mass,
    StepSize,
    TrajectoryLength,
    chees_gradient,
    reasonable_step_size,
    van_der_corput,
)

_DESCENT, _LAST = 0.6, 0.15  # parts of the tuning
_SHORT = 64  # leapfrog steps at most, in the descent
_EVERY = 10  # transitions between updates of the mass matrix


class Tuned(NamedTuple):
    """What tuning learns: eps, T and the diagonal of M^-1 ``[D]``."""

    step_size: float
    trajectory: float
    inverse_mass: Tensor


def leapfrog(
    energies: Energies, q: Tensor, p: Tensor, gradient: Tensor, eps: Tensor, inverse_mass: Tensor
) -> list[Tensor]:
    """U and dU/dq at the new q, the new q and the new p."""
    p = p - 0.5 * eps * gradient
    q = q + eps * inverse_mass * p
    energy, gradient = energies(q)
    return [energy, gradient, q, p - 0.5 * eps * gradient]


class HMC:
    """Chains of Hamiltonian Monte Carlo, which move and adapt together.

    Args:
        density: compiled with `step`.
        q: where the chains start, ``[C, D]``.
        generator: of all random numbers.
        tune: the number of transitions of tuning.
        target_acceptance: target for the harmonic mean over chains of the acceptance probability.
        max_steps: the largest number of leapfrog steps of a trajectory.
    """

    step = Step(leapfrog, chain_tensors=3, scalars=1, carried=(2, 3, 1))

    def __init__(
        self, density: CompiledDensity, q: Tensor, generator: torch.Generator, tune: int, *, target_acceptance: float,
        max_steps: int,
    ) -> None:  # fmt: skip
        self.density, self.generator, self.tune = density, generator, tune
        self.state: State = State.at(density, q)
        self.tuned: Tuned = Tuned(math.nan, math.nan, torch.ones_like(q[0]))
        self.descent: int = int(_DESCENT * tune)
        self.max_steps: int = max_steps
        self.mass: Mass = Mass(q[0])
        self.step_size: StepSize = StepSize(reasonable_step_size(self._accepts), target_acceptance)
        eps = self.step_size.now
        self.tuned = self.tuned._replace(step_size=eps, trajectory=_SHORT * eps)

    def move_to(self, density: CompiledDensity) -> None:
        """Continue with a density in float64."""
        self.density = density
        self.state = State.at(density, self.state.q.double())
        self.tuned = self.tuned._replace(inverse_mass=self.tuned.inverse_mass.double())

    def transition(self, number: int) -> dict[str, Tensor]:
        """One trajectory of each chain, which is accepted or rejected."""
        eps, trajectory, _ = self.tuned
        self.share: float = van_der_corput(number)
        self.steps: int = max(1, min(self.max_steps, math.ceil(self.share * (trajectory / eps))))
        self.start: State = self._with_momentum()
        self.end: State = self.follow(self.start, eps, self.steps)
        before, after = self._hamiltonian(self.start), self._hamiltonian(self.end)
        error = (after - before).nan_to_num(math.inf, math.inf, math.inf)
        self.accepted: Tensor = (-error).clamp_max(0).exp()
        uniform = torch.rand(len(error), dtype=torch.float64, device=error.device, generator=self.generator)
        taken = uniform < self.accepted
        self.state = self.end.where(taken, self.state)
        return {
            "lp": -self.state.energy.double(),
            "energy": torch.where(taken, after, before),
            "acceptance_rate": self.accepted,
            "diverging": error > DIVERGENT,
            "n_steps": torch.full_like(taken, self.steps, dtype=torch.int64),
        }

    def follow(self, state: State, eps: float, steps: int) -> State:
        """Follow the trajectories of all chains for `steps` leapfrog steps."""
        size, inverse_mass = state.q.new_tensor(eps), self.tuned.inverse_mass

        def block(chains: slice) -> State:
            q, p, gradient, _ = (value[chains] for value in state)
            energy, gradient, q, p = self.density(q, p, gradient, size, inverse_mass, times=steps)
            return State(q, p, gradient, energy)

        return State(*self.density.by_blocks(block))

    def adapt(self, number: int) -> None:
        """Learn the step size from every transition; after the descent also T, and every ten transitions the mass matrix."""
        used, inverse_mass = self.tuned.step_size, self.tuned.inverse_mass
        after, learning = number - self.descent, self.tune - self.descent - int(_LAST * self.tune)
        # the harmonic mean over chains, so that the worst chain counts most
        self.step_size.learn(1 / float((1 / self.accepted.clamp_min(1e-3)).mean()))
        self.mass.learn(self.state.q)
        if after == 0:
            inverse_mass, factor = self._renewed_mass()
            self.step_size = StepSize(self.step_size.averaged * factor, self.step_size.target)
            self.length: TrajectoryLength = TrajectoryLength(1.0)  # for a Gaussian of variances M^-1 it becomes 2.25
        if 0 < after <= learning:
            time = self.share * self.tuned.trajectory
            centre = self.mass.mean.to(inverse_mass) if len(self.accepted) < FEW else None
            gradient = chees_gradient(
                self.start.q, self.end.q, self.end.momentum, inverse_mass, self.accepted, time, centre
            )
            self.length.learn(gradient, used, self.max_steps * used)
            if after % _EVERY == 0:
                inverse_mass, factor = self._renewed_mass()
                self.length.rescale(factor)
        eps = self.step_size.now
        self.tuned = Tuned(eps, _SHORT * eps if after < 0 else self.length.now, inverse_mass)
        if number == self.tune:
            eps = self.step_size.averaged
            self.tuned = Tuned(eps, min(self.length.averaged, self.max_steps * eps), inverse_mass)

    def progress(self) -> str:
        """A few words about the latest transition."""
        return f"acceptance {float(self.accepted.mean()):.2f}, {self.steps} steps of {self.tuned.step_size:.2g}"

    def _with_momentum(self) -> State:
        """The state with new momentum."""
        momentum = self.state.normal(self.generator) * self.tuned.inverse_mass.rsqrt()
        return self.state._replace(momentum=momentum)

    def _hamiltonian(self, state: State) -> Tensor:
        """H, ``[C]`` in float64."""
        kinetic = (state.momentum.double() ** 2 * self.tuned.inverse_mass.double()).sum(1) / 2
        return state.energy.double() + kinetic

    def _renewed_mass(self) -> tuple[Tensor, float]:
        """M^-1 from the variances so far, and the factor by which it scales times (a geometric mean over coordinates)."""
        old, new = self.tuned.inverse_mass, self.mass.inverse().to(self.tuned.inverse_mass)
        return new, math.exp(float((old / new).log().mean()) / 2)

    def _accepts(self, eps: float) -> bool:
        """Whether one step of this size is accepted with probability 1/2 or more, in the median of the chains."""
        start = self._with_momentum()
        end = self.follow(start, eps, 1)
        error = (self._hamiltonian(end) - self._hamiltonian(start)).nan_to_num(math.inf, math.inf, math.inf)
        return float(error.median()) < math.log(2)
