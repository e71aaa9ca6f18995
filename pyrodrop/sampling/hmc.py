"""Hamiltonian Monte Carlo with many chains that share one tuning (ChEES-HMC).

    H(q, p) = U(q) + p^T M^-1 p / 2                       M diagonal, or diagonal plus low rank
    p <- p - eps/2 dU/dq,   q <- q + eps M^-1 p,   p <- p - eps/2 dU/dq              one leapfrog step

    p ~ N(0, M),   (q', p') = trajectory of time h T from (q, p)
    q <- q' with probability a = min(1, exp(H(q, p) - H(q', p')))

Tuning has three parts: a descent from the starts by short trajectories, in which new momentum takes energy away; learning of
step size, length T and mass matrix, which is renewed at the ends of windows; and learning of the step size alone, with
length and mass matrix fixed. For networks the first part is long and has the mass matrix 1. For programs it is short, and
the mass matrix is learned from its beginning, in growing windows. See `pyrodrop.sampling.tuning`.

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
    Fisher,
    Mass,
    Metric,
    StepSize,
    TrajectoryLength,
    chees_gradient,
    reasonable_step_size,
    van_der_corput,
)

_WINDOWS = (0.02, 0.04, 0.08, 0.14, 0.22, 0.32, 0.44, 0.58, 0.72)  # their ends, as parts of the tuning
_LAST = 0.15  # part of the tuning
_DESCENT, _SHORT = 0.6, 64  # of networks: part of the tuning, and leapfrog steps at most
_DESCENT_OF_PROGRAMS, _SHORT_OF_PROGRAMS = 0.08, 32
_LONG = 10.0  # T of programs until it is learned, so that all chains arrive, and at most
_APPROACH, _RATE = 50, 0.05
_EVERY = 10  # transitions between updates of the mass matrix of a network


class Tuned(NamedTuple):
    """What tuning learns: eps, T and M^-1."""

    step_size: float
    trajectory: float
    metric: Metric


def leapfrog(energies: Energies, q: Tensor, p: Tensor, gradient: Tensor, eps: Tensor, *metric: Tensor) -> list[Tensor]:
    """U and dU/dq at the new q, the new q and the new p."""
    p = p - 0.5 * eps * gradient
    q = q + eps * Metric(*metric).velocity(p)
    energy, gradient = energies(q)
    return [energy, gradient, q, p - 0.5 * eps * gradient]


def approached(density: CompiledDensity, q: Tensor) -> Tensor:
    """Points of less energy near these: 50 steps of Adam, of at most about 0.05 in every coordinate.

    Energy that is thousands of nats too high would become kinetic, and carry a chain to where the density is flat.
    """
    start, mean, square = q, torch.zeros_like(q), torch.zeros_like(q)
    for number in range(1, _APPROACH + 1):
        gradient = density.energies(q)[1].nan_to_num(0.0, 0.0, 0.0)
        mean, square = (0.9 * old + 0.1 * new for old, new in ((mean, gradient), (square, gradient**2)))
        known = 1 - 0.9**number
        q = q - _RATE * (mean / known) / ((square / known).sqrt() + 1e-8)
    return torch.where(density.not_finite(q)[:, None], start, q)


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

    @classmethod
    def step_of(cls, rank: int) -> Step:
        """The step for a mass matrix with K eigenvalues besides the diagonal."""
        return cls.step._replace(shared=lambda size: [(size,), (size, rank), (rank,)]) if rank else cls.step

    def __init__(
        self, density: CompiledDensity, q: Tensor, generator: torch.Generator, tune: int, *, target_acceptance: float,
        max_steps: int, rank: int = 0,
    ) -> None:  # fmt: skip
        self.density, self.generator, self.tune = density, generator, tune
        self.state: State = State.at(density, approached(density, q) if rank else q)
        self.mass: Fisher | Mass = Fisher(q, rank) if rank else Mass(q)
        zero = q.new_zeros(q.shape[1], rank), q.new_ones(rank)
        self.tuned: Tuned = Tuned(math.nan, math.nan, Metric(torch.ones_like(q[0]), *(zero if rank else ())))
        self.descent: int = int((_DESCENT_OF_PROGRAMS if rank else _DESCENT) * tune)
        self.learning: int = tune - int(_LAST * tune)
        every = range(self.descent, self.learning + 1, _EVERY)
        self.ends: set[int] = {round(share * tune) for share in _WINDOWS} if rank else set(every)
        self.lengthens: int = round(_WINDOWS[5] * tune) if rank else self.descent  # T is learned after it
        self.short: int = _SHORT_OF_PROGRAMS if rank else _SHORT
        self.max_steps: int = max_steps
        self.step_size: StepSize = StepSize(reasonable_step_size(self._accepts), target_acceptance)
        self.length: TrajectoryLength = TrajectoryLength(2.0 if rank else 1.0)  # for a Gaussian of variances M^-1, 2.25
        eps = self.step_size.now
        self.tuned = self.tuned._replace(step_size=eps, trajectory=self.short * eps)

    def move_to(self, density: CompiledDensity) -> None:
        """Continue with a density in float64."""
        self.density = density
        self.state = State.at(density, self.state.q.double())
        self.tuned = self.tuned._replace(metric=self.tuned.metric.to(self.state.q))

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
        size = state.q.new_tensor(eps)
        shared = [tensor for tensor in self.tuned.metric if tensor is not None]

        def block(chains: slice) -> State:
            q, p, gradient, _ = (value[chains] for value in state)
            energy, gradient, q, p = self.density(q, p, gradient, size, *shared, times=steps)
            return State(q, p, gradient, energy)

        return State(*self.density.by_blocks(block))

    def adapt(self, number: int) -> None:
        """Learn the step size from every transition, T after the descent, and the mass matrix at the ends of windows."""
        used, metric = self.tuned.step_size, self.tuned.metric
        # the harmonic mean over chains, so that the worst chain counts most
        self.step_size.learn(1 / float((1 / self.accepted.clamp_min(1e-3)).mean()))
        self.mass.learn(self.state.q, self.state.gradient, self.state.energy)
        if self.lengthens < number <= self.learning:
            time = self.share * self.tuned.trajectory
            centre = self.mass.mean().to(self.state.q) if len(self.accepted) < FEW else None
            accepted = self.accepted * self.mass.near if isinstance(self.mass, Fisher) else self.accepted
            gradient = chees_gradient(self.start.q, self.end.q, self.end.momentum, metric, accepted, time, centre)
            longest = self.max_steps * used
            self.length.learn(gradient, used, min(longest, _LONG) if isinstance(self.mass, Fisher) else longest)
        if number in self.ends:
            self._renew(number)
        eps = self.step_size.now
        trajectory = self.short * eps if number < self.descent else self.length.now
        if self.descent <= number < self.lengthens:
            trajectory = _LONG
        self.tuned = Tuned(eps, trajectory, self.tuned.metric)
        if number == self.tune:
            eps = self.step_size.averaged
            self.tuned = self.tuned._replace(step_size=eps, trajectory=min(self.length.averaged, self.max_steps * eps))

    def progress(self) -> str:
        """A few words about the latest transition."""
        return f"acceptance {float(self.accepted.mean()):.2f}, {self.steps} steps of {self.tuned.step_size:.2g}"

    def _with_momentum(self) -> State:
        """The state with new momentum."""
        metric = self.tuned.metric
        return self.state._replace(momentum=metric.root(self.state.normal(self.generator), -0.5) / metric.scale)

    def _hamiltonian(self, state: State) -> Tensor:
        """H, ``[C]`` in float64."""
        metric, momentum = self.tuned.metric.to(state.q.double()), state.momentum.double()
        return state.energy.double() + metric.root(metric.scale * momentum, 0.5).square().sum(1) / 2

    def _renew(self, number: int) -> None:
        """Take the mass matrix of the last windows, with a step size and a length that go with it."""
        old, new = self.tuned.metric, self.mass.metric(number > self.lengthens // 2)
        if not all(tensor is None or bool(tensor.isfinite().all()) for tensor in new):
            return
        factor = math.exp((old.log_size() - new.log_size()) / 2)  # by which times scale
        self.tuned = self.tuned._replace(metric=new.to(self.state.q))
        if isinstance(self.mass, Fisher):  # in whose coordinates T stays about what it is
            self.mass.turn()
            self.step_size = StepSize(reasonable_step_size(self._accepts, self.step_size.now), self.step_size.target)
        elif number == self.descent:
            self.step_size = StepSize(self.step_size.averaged * factor, self.step_size.target)
        else:
            self.length.rescale(factor)

    def _accepts(self, eps: float) -> bool:
        """Whether one step of this size is accepted with probability 1/2 or more, in the median of the chains."""
        start = self._with_momentum()
        end = self.follow(start, eps, 1)
        error = (self._hamiltonian(end) - self._hamiltonian(start)).nan_to_num(math.inf, math.inf, math.inf)
        return float(error.median()) < math.log(2)
