"""Hamiltonian Monte Carlo with many chains that share one tuning (ChEES-HMC).

    p ~ N(0, M),   (q', p') = trajectory of time h T from (q, p)
    q <- q' with probability a = min(1, exp(H(q, p) - H(q', p')))

Tuning has three parts: a descent from the prior by short trajectories, in which momentum that is drawn anew takes energy
away; the learning of step size, length T and mass matrix; and the last step size for the mass matrix that then stays. See
`pyrodrop.sampling.tuning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrodrop.devices import denormals_flushed
from pyrodrop.sampling.chains import Chains as AnyChains
from pyrodrop.sampling.leapfrog import Leapfrog, State
from pyrodrop.sampling.tuning import FEW, Mass, StepSize, TrajectoryLength, chees_gradient, van_der_corput

DIVERGENT = 1000.0  # nats of energy error, as in Stan
_DESCENT, _LAST = 0.3, 0.15  # parts of the tuning
_SHORT = 64  # leapfrog steps at most, in the descent
_EVERY = 20  # transitions between updates of the mass matrix


@dataclass(frozen=True)
class Limits:
    """What the user chooses.

    Attributes:
        tune, draws: numbers of transitions.
        thin: number of transitions for each draw that is kept.
        target_acceptance: harmonic mean over chains of the acceptance probability.
        max_steps: leapfrog steps of a trajectory.
    """

    tune: int
    draws: int
    thin: int
    target_acceptance: float
    max_steps: int


class Chains(AnyChains):
    """Chains of this kernel.

    Args:
        q: where they start, ``[C, D]``.
    """

    def __init__(
        self, leapfrog: Leapfrog, q: Tensor, limits: Limits, generator: torch.Generator, tick: Callable[[str], None]
    ) -> None:
        super().__init__(limits.draws, limits.thin, generator, tick)
        self.limits = limits
        self.mass: Mass = Mass(q.shape[1], q)
        self.inverse_mass: Tensor = torch.ones_like(q[0])
        self.move_to(leapfrog, q)
        self.step_size: StepSize = StepSize(self._reasonable(), limits.target_acceptance)

    def move_to(self, leapfrog: Leapfrog, q: Tensor) -> None:
        """Continue at q, with another program for the trajectories."""
        self.leapfrog = leapfrog
        self.mass.like, self.inverse_mass = q, self.inverse_mass.to(q)
        self.state: State = leapfrog.at(q)

    def descend(self) -> None:
        """The first part of tuning."""
        for _ in range(int(_DESCENT * self.limits.tune)):
            self._transition(self.step_size.now, van_der_corput(self.transitions + 1) * _SHORT)
            self.step_size.learn(self._harmonic())
            self.mass.learn(self.state.q)

    def learn(self) -> None:
        """The other parts of tuning."""
        limits = self.limits
        count = limits.tune - self.transitions
        fixed = int(_LAST * limits.tune)  # transitions at the end with this mass matrix
        self.step_size.restart(self.step_size.averaged * self._renew_mass())
        self.length: TrajectoryLength = TrajectoryLength(2 * _SHORT * self.step_size.now)
        for number in range(count):
            if 0 < number <= count - fixed and number % _EVERY == 0:
                self.length.rescale(self._renew_mass())
            eps, share = self.step_size.now, van_der_corput(self.transitions + 1)
            before = self.state.q
            proposed = self._transition(eps, share * self.length.now / eps)
            self.step_size.learn(self._harmonic())
            self.mass.learn(self.state.q)
            if number < count - fixed:
                centre = self.mass.mean if len(before) < FEW else None
                gradient = chees_gradient(
                    before, proposed.q, proposed.p, self.inverse_mass, self.accepted, share * self.length.now, centre
                )
                self.length.learn(gradient, eps, limits.max_steps * eps)
        eps = self.step_size.averaged
        self.learned = {"step_size": eps, "trajectory": min(self.length.averaged, limits.max_steps * eps)}

    def draw(self) -> dict[str, Tensor]:
        """As `AnyChains.draw`."""
        eps, trajectory = self.learned["step_size"], self.learned["trajectory"]
        accepted = torch.zeros_like(self.state.energy, dtype=torch.float64)
        diverging, steps = torch.zeros_like(accepted, dtype=torch.bool), 0
        for _ in range(self.thin):
            self._transition(eps, van_der_corput(self.transitions + 1) * trajectory / eps)
            diverging, accepted, steps = diverging | self.diverged, accepted + self.accepted, steps + self.steps
        return {
            "lp": -self.state.energy.double(),
            "energy": self.hamiltonian.double(),
            "acceptance_rate": (accepted / self.thin).float(),
            "diverging": diverging,
            "n_steps": torch.full_like(diverging, steps, dtype=torch.int64),
        }

    def tuned(self) -> dict[str, Tensor]:
        """As `AnyChains.tuned`."""
        return {"inverse_mass": self.inverse_mass}

    def retune(self, tuned: dict[str, Tensor]) -> None:
        """As `AnyChains.retune`."""
        self.inverse_mass = tuned["inverse_mass"]

    def _transition(self, eps: float, steps: float) -> State:
        """Move all chains by one trajectory of about so many steps; returns where they ended, accepted or not."""
        q = self.state.q
        noise = torch.randn(q.shape, dtype=q.dtype, device=q.device, generator=self.generator)
        start = self.state._replace(p=noise * self.inverse_mass.rsqrt())
        self.steps: int = max(1, min(self.limits.max_steps, math.ceil(steps)))
        with denormals_flushed():
            end = self.leapfrog(start, eps, self.inverse_mass, self.steps)
        before, after = self._hamiltonian(start), self._hamiltonian(end)
        error = (after - before).nan_to_num(math.inf, math.inf, math.inf)
        self.diverged: Tensor = error > DIVERGENT
        self.accepted: Tensor = (-error).clamp_max(0).exp()
        uniform = torch.rand(len(q), dtype=torch.float64, device=q.device, generator=self.generator)
        taken = uniform < self.accepted
        self.hamiltonian: Tensor = torch.where(taken, after, before)
        kept = [
            torch.where(taken[:, None] if new.dim() == 2 else taken, new, old)
            for new, old in zip(end, self.state, strict=True)
        ]
        self.state = State(*kept)
        self.transitions += 1
        self.tick(f"acceptance {float(self.accepted.mean()):.2f}, {self.steps} steps of {eps:.2g}")
        return end

    def _hamiltonian(self, state: State) -> Tensor:
        """H, ``[C]`` in float64."""
        kinetic = (state.p.double() ** 2 * self.inverse_mass.double()).sum(1) / 2
        return state.energy.double() + kinetic

    def _harmonic(self) -> float:
        """Harmonic mean over chains of the acceptance probability, so that the worst chain counts most."""
        return 1 / float((1 / self.accepted.clamp_min(1e-3)).mean())

    def _renew_mass(self) -> float:
        """Take over the variances learned so far; returns the factor by which times change, in the geometric mean."""
        old = self.inverse_mass
        self.inverse_mass = self.mass.inverse()
        return math.exp(float((old / self.inverse_mass).log().mean()) / 2)

    def _reasonable(self) -> float:
        """A step size whose single step half of the chains would accept (Hoffman & Gelman 2014, algorithm 4)."""
        eps = 1e-3
        rises = self._accepts(eps)
        for _ in range(60):
            new = eps * 2 if rises else eps / 2
            if self._accepts(new) != rises:
                return eps if rises else new
            eps = new
        return eps

    def _accepts(self, eps: float) -> bool:
        """Whether one step of this size is accepted with probability 1/2 or more, in the median of the chains."""
        q = self.state.q
        noise = torch.randn(q.shape, dtype=q.dtype, device=q.device, generator=self.generator)
        start = self.state._replace(p=noise * self.inverse_mass.rsqrt())
        end = self.leapfrog(start, eps, self.inverse_mass, 1)
        error = (self._hamiltonian(end) - self._hamiltonian(start)).nan_to_num(math.inf, math.inf, math.inf)
        return float(error.median()) < math.log(2)
