"""Microcanonical Langevin Monte Carlo with many chains that share one tuning.

A transition is 20 steps of `pyrodrop.sampling.isokinetic`. None is rejected, so the step size makes the draws biased: it is
tuned so that the change of energy in a step has a given mean square per dimension,

    E[(change of energy)^2] = v D,     mean square ~ eps^6        eps <- eps (v D / mean square)^(1/6)

(Robnik et al. 2023, sec. 5, https://arxiv.org/abs/2212.08549, and their code for the weights of old and extreme steps).
Tuning has three parts: the way from the starts to where the chains stay, with equal scales and 5 v; the scale s of every
coordinate, from its variance within chains; and the length L after which momentum is forgotten, 0.4 times that in which a
chain makes an independent draw. As the variances are those within chains, starts in different modes do not widen them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyrodrop.devices import denormals_flushed
from pyrodrop.sampling.chains import Chains as AnyChains
from pyrodrop.sampling.chains import Drawn
from pyrodrop.sampling.isokinetic import Isokinetic, State

STEPS = 20  # of a transition
_FIRST, _SCALES = 0.4, 0.4  # parts of the tuning
_WIDE = 5.0  # times v in the first part, so that steps are longer there
_DIVERGENT = 1000.0  # nats of energy's change in a step
_EFFECTIVE = 0.4  # lengths of an independent draw in L
_KEPT = 0.8  # weight of the transition before in what is learned of the step size
_CHAINS, _COORDINATES = 8, 100  # about so many at most, of which autocorrelation is taken


@dataclass(frozen=True)
class Limits:
    """What the user chooses.

    Attributes:
        tune, draws: numbers of transitions.
        thin: number of transitions for each draw that is kept.
        energy_variance: v, mean square of energy's change in a step, per dimension.
    """

    tune: int
    draws: int
    thin: int
    energy_variance: float


class StepSize:
    """eps by the mean square of energy's change: a weighted mean of (mean square) / (v D eps^6) with exponential forgetting.

    Args:
        initial: eps to start from.
        variance: v D; it may change.
    """

    def __init__(self, initial: float, variance: float) -> None:
        self.now: float = initial
        self.variance: float = variance
        self._total, self._weight = 0.0, 0.0

    def learn(self, changes: Tensor) -> None:
        """Account for changes of energy of steps of the present size."""
        ratio = float(changes.square().mean()) / self.variance + 1e-8
        weight = math.exp(-0.5 * (math.log(ratio) / 9) ** 2)  # steps far too large or small say little
        self._total = _KEPT * self._total + weight * ratio / self.now**6
        self._weight = _KEPT * self._weight + weight
        self.now = (self._total / self._weight) ** (-1 / 6)

    def rescale(self, factor: float) -> None:
        """Multiply eps by a factor, and forget what was learned."""
        self.now *= factor
        self._total, self._weight = 0.0, 0.0


class Chains(AnyChains):
    """Chains of this kernel.

    Args:
        q: where they start, ``[C, D]``.
    """

    def __init__(
        self, moves: Isokinetic, q: Tensor, limits: Limits, generator: torch.Generator, tick: Callable[[str], None]
    ) -> None:
        super().__init__(limits.draws, limits.thin, generator, tick)
        self.moves: Isokinetic = moves
        self.limits: Limits = limits
        self.scale: Tensor = torch.ones_like(q[0])
        self.length: float = math.sqrt(moves.size)
        self.step_size: StepSize = StepSize(0.01 * self.length, limits.energy_variance * moves.size)
        energy, gradient = moves.energies(q)
        self.state: State = State(q, self._directions(q), gradient, energy, torch.full_like(energy.double(), math.nan))

    def descend(self) -> None:
        """The first part of tuning."""
        count = int(_FIRST * self.limits.tune)
        within = Within(self.state.q)
        self.step_size.variance *= _WIDE
        for number in range(count):
            self._tuned()
            if number >= count // 2:
                within.learn(self.state.q)
        self._rescale(within)
        self.step_size.variance /= _WIDE

    def learn(self) -> None:
        """The other parts of tuning."""
        count, within = int(_SCALES * self.limits.tune), Within(self.state.q)
        for number in range(count):
            self._tuned()
            if number >= count // 4:
                within.learn(self.state.q)
        self._rescale(within)
        left = self.limits.tune - self.transitions
        for _ in range(left // 3):
            self._tuned()
        track, some = [], slice(None, None, max(1, self.moves.size // _COORDINATES))
        for _ in range(left - left // 3):
            self._transition()
            track.append(self.state.q[:_CHAINS, some].cpu())
        self.length = max(
            self.length, _EFFECTIVE * self.step_size.now * STEPS * transitions_per_draw(torch.stack(track, 1))
        )
        self.learned = {"step_size": self.step_size.now, "length": self.length}

    def draw(self) -> dict[str, Tensor]:
        """As `AnyChains.draw`."""
        error = torch.zeros_like(self.state.energy, dtype=torch.float64)
        diverging = torch.zeros_like(error, dtype=torch.bool)
        for _ in range(self.thin):
            self._transition()
            diverging, error = diverging | self.diverged, error + self.changes.square().nanmean(0)
        return {
            "lp": -self.state.energy.double(),
            "energy_error": (error / self.thin).sqrt(),
            "diverging": diverging,
            "n_steps": torch.full_like(diverging, 2 * STEPS * self.thin, dtype=torch.int64),
        }

    def run(self, save: Callable[[], None] | None = None) -> Drawn:
        """As `AnyChains.run`; what was learned has the energy variance that the draws reached."""
        drawn = super().run(save)
        reached = float(drawn.stats["energy_error"].square().nanmean()) / self.moves.size
        self.learned["energy_variance_reached"] = reached
        return drawn

    def tuned(self) -> dict[str, Tensor]:
        """As `AnyChains.tuned`."""
        return {"scale": self.scale, "unfinished": torch.tensor(self.moves.unfinished, dtype=torch.float64)}

    def retune(self, tuned: dict[str, Tensor]) -> None:
        """As `AnyChains.retune`."""
        self.scale, self.moves.unfinished = tuned["scale"], float(tuned["unfinished"])
        self.step_size.now = self.learned["step_size"]
        self.length = self.learned["length"]

    def _tuned(self) -> None:
        """A transition of tuning."""
        self._transition()
        if self.diverged.any():
            self.step_size.rescale(0.5)
        else:
            self.step_size.learn(self.changes[self.changes.isfinite()])

    def _transition(self) -> None:
        """Move all chains by 20 steps; those whose energy is lost stay where they are, with new momenta."""
        state, shape = self.state, (STEPS, *self.state.q.shape)
        noise = torch.randn(shape, dtype=state.q.dtype, device=state.q.device, generator=self.generator)
        eps = self.step_size.now
        with denormals_flushed():
            end, self.changes = self.moves(state, eps, self.length, self.scale, noise)
        unknown = torch.zeros_like(self.changes, dtype=torch.bool)
        unknown[0] = state.change.isnan()  # the first change of chains with new momenta
        wrong = ~(self.changes.abs() <= _DIVERGENT) & ~unknown
        self.diverged: Tensor = wrong.any(0) | ~(end.q.isfinite().all(1) & end.gradient.isfinite().all(1))
        self.changes[unknown | self.diverged] = math.nan
        if self.diverged.any():
            back = state._replace(u=self._directions(state.q), change=torch.full_like(state.change, math.nan))
            end = State(
                *(
                    torch.where(self.diverged[:, None] if new.dim() == 2 else self.diverged, old, new)
                    for new, old in zip(end, back, strict=True)
                )
            )
        self.state = end
        self.transitions += 1
        per = float(self.changes.square().nanmean()) / self.moves.size
        self.tick(f"energy variance {per:.1g}, steps of {eps:.2g}, length {self.length:.2g}")

    def _rescale(self, within: Within) -> None:
        """Take over the scales learned so far; times change by the factor of the geometric mean."""
        old = self.scale
        self.scale = within.scale()
        self.step_size.rescale(math.exp(float((old / self.scale).log().mean())))

    def _directions(self, q: Tensor) -> Tensor:
        """Directions that are uniform on the sphere, like q."""
        z = torch.randn(q.shape, dtype=q.dtype, device=q.device, generator=self.generator)
        return z / z.norm(dim=1, keepdim=True)


class Within:
    """The variance of every coordinate within chains, mean over chains."""

    def __init__(self, q: Tensor) -> None:
        self._like, self._count = q, 0
        self._mean = torch.zeros_like(q, dtype=torch.float64)
        self._squares = torch.zeros_like(self._mean)

    def learn(self, q: Tensor) -> None:
        """Account for the positions of all chains ``[C, D]``."""
        self._count += 1
        before = q.double() - self._mean
        self._mean += before / self._count
        self._squares += before * (q.double() - self._mean)

    def scale(self) -> Tensor:
        """Standard deviations ``[D]``, shrunk to their geometric mean where there are few positions."""
        logs = (self._squares.mean(0) / max(1, self._count - 1)).clamp_min(1e-30).log() / 2
        few = 5 / (self._squares.shape[0] * self._count + 5)
        return ((1 - few) * logs + few * logs.mean()).exp().to(self._like)


def transitions_per_draw(track: Tensor) -> float:
    """Transitions in which a chain makes an effective draw, for positions ``[C, T, D]``; the mean over coordinates."""
    from arviz_stats.base import array_stats  # slow to import

    values = track.double().numpy()
    sizes = [float(array_stats.ess(one[None, :, i], method="mean")) for one in values for i in range(values.shape[2])]
    return float(np.mean(track.shape[1] / np.maximum(sizes, 1.0)))
