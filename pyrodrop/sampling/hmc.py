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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrodrop.devices import denormals_flushed
from pyrodrop.sampling.compiled_density import CompiledDensity
from pyrodrop.sampling.tuning import (
    Fisher,
    Mass,
    Metric,
    StepSize,
    TrajectoryLength,
    chees_gradient,
    reasonable_step_size,
    van_der_corput,
)

DIVERGENT = 1000.0  # nats of energy error, as in Stan
_WINDOWS = (0.02, 0.04, 0.08, 0.14, 0.22, 0.32, 0.44, 0.58, 0.72)  # their ends, as parts of the tuning
_LAST = 0.15  # part of the tuning
_DESCENT, _SHORT = 0.6, 64  # of networks: part of the tuning, and leapfrog steps at most
_DESCENT_OF_PROGRAMS, _SHORT_OF_PROGRAMS = 0.08, 32
_LONG = 10.0  # T of programs until it is learned, so that all chains arrive, and at most
_APPROACH, _RATE = 50, 0.05
_EVERY = 10  # transitions between updates of the mass matrix of a network


class State(NamedTuple):
    """Where C chains are: U ``[C]``, and dU/dq, q and momentum ``[C, D]``."""

    energy: Tensor
    gradient: Tensor
    q: Tensor
    momentum: Tensor

    def where(self, mask: Tensor, other: State) -> State:
        """This state for the chains in `mask` ``[C]``, and `other` for the rest."""
        pairs = zip(self, other, strict=True)
        return State(*(torch.where(mask[:, None] if new.dim() == 2 else mask, new, old) for new, old in pairs))


def approached(density: CompiledDensity, q: Tensor) -> Tensor:
    """Points of less energy near these: 50 steps of Adam, of at most about 0.05 in every coordinate.

    Energy that is thousands of nats too high would become kinetic, and carry a chain to where the density is flat.
    """
    start, q = q, q.clone()
    adam = torch.optim.Adam([q], _RATE, (0.9, 0.9))
    for _ in range(_APPROACH):
        q.grad = density.energies(q)[1].nan_to_num(0.0, 0.0, 0.0)
        adam.step()
    return torch.where(density.not_finite(q)[:, None], start, q)


class HMC:
    """Chains of Hamiltonian Monte Carlo, which move and adapt together.

    Args:
        density: of the chains.
        q: where the chains start, ``[C, D]``.
        generator: of all random numbers.
        tune: the number of transitions of tuning.
        target_acceptance: target for the harmonic mean over chains of the acceptance probability.
        max_steps: the largest number of leapfrog steps of a trajectory.

    Attributes:
        step_size, trajectory, metric: eps, T and M^-1, which tuning learns.
    """

    def __init__(
        self,
        density: CompiledDensity,
        q: Tensor,
        generator: torch.Generator,
        tune: int,
        *,
        max_steps: int,
        target_acceptance: float = 0.8,
    ) -> None:
        self.density, self.generator, self.tune, self.max_steps = density, generator, tune, max_steps
        self.metric: Metric = density.metric
        rank = 0 if self.metric.values is None else len(self.metric.values)
        q = approached(density, q) if rank else q
        self.state: State = State(*density.energies(q), q, torch.zeros_like(q))
        self.mass: Fisher | Mass = Fisher(rank) if rank else Mass(q)
        self.descent: int = int((_DESCENT_OF_PROGRAMS if rank else _DESCENT) * tune)
        self.learning: int = tune - int(_LAST * tune)
        every = range(self.descent, self.learning + 1, _EVERY)
        self.ends: set[int] = {round(share * tune) for share in _WINDOWS} if rank else set(every)
        self.lengthens: int = round(_WINDOWS[5] * tune) if rank else self.descent  # T is learned after it
        self.short: int = _SHORT_OF_PROGRAMS if rank else _SHORT
        self.adapting: StepSize = StepSize(reasonable_step_size(self._accepts), target_acceptance)
        self.length: TrajectoryLength = TrajectoryLength(2.0 if rank else 1.0)  # for a Gaussian of variances M^-1, 2.25
        self.step_size: float = self.adapting.now
        self.trajectory: float = self.short * self.step_size

    def run(self, draws: int, bar: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Tune, and make S draws.

        Args:
            bar: advances with every transition.

        Returns:
            q ``[C, S, D]`` and the statistics ``[C, S]`` by name, on the CPU.
        """
        kept = []
        with denormals_flushed():
            for number in range(1, self.tune + draws + 1):
                stats = self.transition(number)
                if number <= self.tune:
                    self.adapt(number)
                else:
                    kept.append({name: values.cpu() for name, values in {"q": self.state.q, **stats}.items()})
                if bar is not None:
                    numbers = {"acceptance": float(self.accepted.mean()), "steps": self.steps, "of": self.step_size}
                    bar.set_postfix(numbers, refresh=False)
                    bar.update()
        of_draws = {name: torch.stack([draw[name] for draw in kept], 1) for name in kept[0]}
        return of_draws.pop("q"), of_draws

    def transition(self, number: int) -> dict[str, Tensor]:
        """One trajectory of each chain, which is accepted or rejected."""
        self.share: float = van_der_corput(number)
        self.steps: int = max(1, min(self.max_steps, math.ceil(self.share * (self.trajectory / self.step_size))))
        self.start: State = self._with_momentum()
        self.end: State = self.follow(self.start, self.step_size, self.steps)
        before, after = self._hamiltonian(self.start), self._hamiltonian(self.end)
        error = (after - before).nan_to_num(math.inf, math.inf, math.inf)
        self.accepted: Tensor = (-error).clamp_max(0).exp()
        uniform = torch.rand(len(error), dtype=torch.float64, device=error.device, generator=self.generator)
        taken = uniform < self.accepted
        self.state = self.end.where(taken, self.state)
        return {
            "lp": -self.state.energy.double(),
            "energy": torch.where(taken, after, before),
            "acceptance_rate": self.accepted.float(),
            "diverging": error > DIVERGENT,
            "n_steps": torch.full_like(taken, self.steps, dtype=torch.int64),
        }

    def follow(self, state: State, eps: float, steps: int) -> State:
        """Follow the trajectories of all chains for `steps` leapfrog steps."""
        _, gradient, q, momentum = state
        return State(*self.density.follow(q, momentum, gradient, eps, self.metric, steps))

    def adapt(self, number: int) -> None:
        """Learn the step size from every transition, T after the descent, and the mass matrix at the ends of windows."""
        # the harmonic mean over chains, so that the worst chain counts most
        self.adapting.learn(1 / float((1 / self.accepted.clamp_min(1e-3)).mean()))
        self.mass.learn(self.state.q, self.state.gradient, self.state.energy)
        if self.lengthens < number <= self.learning:
            accepted, longest = self.accepted, self.max_steps * self.step_size
            if isinstance(self.mass, Fisher):
                accepted, longest = accepted * self.mass.near, min(longest, _LONG)
            time = self.share * self.trajectory
            gradient = chees_gradient(self.start.q, self.end.q, self.end.momentum, self.metric, accepted, time)
            self.length.learn(gradient, self.step_size, longest)
        if number in self.ends:
            self._renew(number)
        self.step_size, self.trajectory = self.adapting.now, self.length.now
        if number < self.descent:
            self.trajectory = self.short * self.step_size
        elif number < self.lengthens:
            self.trajectory = _LONG
        if number == self.tune:
            self.step_size = self.adapting.averaged
            self.trajectory = min(self.length.averaged, self.max_steps * self.step_size)

    def _with_momentum(self) -> State:
        """The state with new momentum."""
        q = self.state.q
        z = torch.randn(q.shape, dtype=q.dtype, device=q.device, generator=self.generator)
        return self.state._replace(momentum=self.metric.root(z, -0.5) / self.metric.scale)

    def _hamiltonian(self, state: State) -> Tensor:
        """H, ``[C]`` in float64."""
        metric, momentum = self.metric.to(state.q.double()), state.momentum.double()
        return state.energy.double() + metric.root(metric.scale * momentum, 0.5).square().sum(1) / 2

    def _renew(self, number: int) -> None:
        """Take the mass matrix of the last windows, with a step size and a length that go with it."""
        old, new = self.metric, self.mass.metric(number > self.lengthens // 2)
        if not all(tensor is None or bool(tensor.isfinite().all()) for tensor in new):
            return
        factor = math.exp((old.log_size() - new.log_size()) / 2)  # by which times scale
        self.metric = new.to(self.state.q)
        if isinstance(self.mass, Fisher):  # in whose coordinates T stays about what it is
            self.mass.turn()
            self.adapting = StepSize(reasonable_step_size(self._accepts, self.adapting.now), self.adapting.target)
        elif number == self.descent:
            self.adapting = StepSize(self.adapting.averaged * factor, self.adapting.target)
        else:
            self.length.rescale(factor)

    def _accepts(self, eps: float) -> bool:
        """Whether one step of this size is accepted with probability 1/2 or more, in the median of the chains."""
        start = self._with_momentum()
        end = self.follow(start, eps, 1)
        error = (self._hamiltonian(end) - self._hamiltonian(start)).nan_to_num(math.inf, math.inf, math.inf)
        return float(error.median()) < math.log(2)
