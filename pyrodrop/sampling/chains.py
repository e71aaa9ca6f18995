"""Markov chains that move together: their state, and the loop over transitions of tuning and of drawing."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyrodrop.sampling.compiled_density import CompiledDensity, Step

DIVERGENT = 1000.0  # nats of energy error, as in Stan
_OVER_THINNED: dict[str, Callable[[Tensor], Tensor]] = {
    "lp": lambda values: values[-1],
    "energy": lambda values: values[-1],
    "acceptance_rate": lambda values: values.mean(0).float(),
    "energy_error": lambda values: values.square().mean(0).sqrt(),
    "diverging": lambda values: values.any(0),
    "n_steps": lambda values: values.sum(0),
}
"""The statistic of a draw, from those of the transitions that led to it, ``[thin, C]``."""


class State(NamedTuple):
    """Where C chains are: q, momentum and dU/dq ``[C, D]``, and U ``[C]``."""

    q: Tensor
    momentum: Tensor
    gradient: Tensor
    energy: Tensor

    def where(self, mask: Tensor, other: State) -> State:
        """This state for the chains in `mask` ``[C]``, and `other` for the rest."""
        pairs = zip(self, other, strict=True)
        return State(*(torch.where(mask[:, None] if new.dim() == 2 else mask, new, old) for new, old in pairs))


class Chains(ABC):
    """Chains that are moved and adapted together.

    Implementing a kernel:

    - `step` is what is compiled together with the gradient.
    - `transition` follows the chains from `state` to a new `state` with what is `tuned`; it returns statistics, ``[C]`` by
      name, of those in `_OVER_THINNED`.
    - `adapt` replaces `tuned` after each transition of tuning.

    Attributes:
        state: where the chains are.
        tuned: what tuning learns, a named tuple of numbers and tensors; together with `state` it is all that transitions
            after tuning depend on.
        descent: the number of transitions of the first part of tuning, from the starts to where the chains stay.
        seconds: wall time by the names ``tuning`` and ``drawing``.
        cpu_seconds: processor time of drawing.

    Args:
        density: compiled with `step`.
        q: where the chains start, ``[C, D]``.
        generator: of all random numbers.
        tune: the number of transitions of tuning.
        tuned: the initial `tuned`.
    """

    step: ClassVar[Step]
    descent: int

    def __init__(self, density: CompiledDensity, q: Tensor, generator: torch.Generator, tune: int, tuned: Any) -> None:
        self.generator: torch.Generator = generator
        self.tune: int = tune
        self.tuned: Any = tuned
        self.move_to(density, q)

    def move_to(self, density: CompiledDensity, q: Tensor) -> None:
        """Continue at q, with momentum 0, with another compiled density, whose dtype is that of q."""
        energy, gradient = density.energies(q)
        self.density: CompiledDensity = density
        self.state: State = State(q, torch.zeros_like(q), gradient, energy)
        self.tuned = type(self.tuned)(*(v.to(q) if isinstance(v, Tensor) else v for v in self.tuned))

    @abstractmethod
    def transition(self, number: int) -> dict[str, Tensor]:
        """Make the transition of this number, from 1; returns its statistics, ``[C]`` by name."""

    @abstractmethod
    def adapt(self, number: int) -> None:
        """Adapt `tuned` to the latest transition, whose number is at most `tune`."""

    @abstractmethod
    def progress(self) -> str:
        """A few words about the latest transition."""

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        q = self.state.q
        return torch.randn(shape, dtype=q.dtype, device=q.device, generator=self.generator)

    def run(
        self, draws: int, thin: int = 1, bar: Any = None, settle: Callable[[], None] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Tune, and make S draws, of `thin` transitions each.

        Args:
            bar: advances with every transition.
            settle: called once, after the descent.

        Returns:
            q ``[C, S, D]`` and the statistics ``[C, S]`` by name, on the CPU.
        """
        begun = tuned = time.perf_counter(), time.process_time()
        kept, each = [], []
        for number in range(1, self.tune + draws * thin + 1):
            stats = self.transition(number)
            if bar is not None:
                bar.set_postfix_str(self.progress(), refresh=False)
                bar.update()
            if number <= self.tune:
                self.adapt(number)
                if number == self.descent and settle is not None:
                    settle()
                tuned = time.perf_counter(), time.process_time()
                continue
            each.append(stats)
            if len(each) == thin:
                of_draw = {name: _OVER_THINNED[name](torch.stack([one[name] for one in each])) for name in stats}
                kept.append({name: values.cpu() for name, values in {"q": self.state.q, **of_draw}.items()})
                each = []
        self.seconds: dict[str, float] = {"tuning": tuned[0] - begun[0], "drawing": time.perf_counter() - tuned[0]}
        self.cpu_seconds: float = time.process_time() - tuned[1]
        of_draws = {name: torch.stack([draw[name] for draw in kept], 1) for name in kept[0]}
        return of_draws.pop("q"), of_draws
