"""Chains of either kernel: tuned together, then drawn from, and saved while they draw."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SAVINGS = 10  # of the draws of a run


@dataclass
class Drawn:
    """Draws and statistics as they come, on the CPU.

    Attributes:
        q: unconstrained values, ``[C, S, D]``.
        stats: of the transitions that led to each draw, ``[C, S]`` by name.
        done: how many of the S draws there are.
        cpu_seconds: processor time of all transitions after tuning.
    """

    q: Tensor
    stats: dict[str, Tensor] = field(default_factory=dict)
    done: int = 0
    cpu_seconds: float = 0.0

    def add(self, q: Tensor, stats: dict[str, Tensor]) -> None:
        """One draw of every chain: positions ``[C, D]`` and statistics ``[C]``."""
        self.q[:, self.done] = q.cpu()
        for name, values in stats.items():
            if name not in self.stats:
                self.stats[name] = torch.zeros(self.q.shape[:2], dtype=values.dtype)
            self.stats[name][:, self.done] = values.cpu()
        self.done += 1


class Chains(ABC):
    """Chains that are tuned and run together.

    Attributes:
        state: where they are, a named tuple of tensors ``[C, ...]``.

    Args:
        draws: S, number of draws of each chain.
        thin: number of transitions for each draw.
        tick: called after every transition, with words about it.
    """

    state: Any

    def __init__(self, draws: int, thin: int, generator: torch.Generator, tick: Callable[[str], None]) -> None:
        self.draws: int = draws
        self.thin: int = thin
        self.generator: torch.Generator = generator
        self.tick: Callable[[str], None] = tick
        self.learned: dict[str, float] = {}
        self.transitions = 0
        self.drawn: Drawn = Drawn(torch.empty(0))

    @abstractmethod
    def descend(self) -> None:
        """The first part of tuning, from the starts to where the chains stay."""

    @abstractmethod
    def learn(self) -> None:
        """The other parts of tuning, after which `learned` is complete."""

    @abstractmethod
    def draw(self) -> dict[str, Tensor]:
        """Make the transitions of one draw, and return their statistics, ``[C]`` by name."""

    @abstractmethod
    def tuned(self) -> dict[str, Tensor]:
        """What the transitions after tuning need beside `state` and `learned`."""

    @abstractmethod
    def retune(self, tuned: dict[str, Tensor]) -> None:
        """Take over what `tuned` returned."""

    def run(self, save: Callable[[], None] | None = None) -> Drawn:
        """The draws after tuning; `save` is called before the first and after every tenth of them."""
        drawn = self.drawn
        if drawn.done == 0:
            count, size = self.state.q.shape
            drawn.q = torch.empty(count, self.draws, size, dtype=self.state.q.dtype)
            if save is not None:
                save()
        every = -(-self.draws // SAVINGS)
        while drawn.done < self.draws:
            begun = time.process_time()
            stats = self.draw()
            drawn.add(self.state.q, stats)
            drawn.cpu_seconds += time.process_time() - begun
            if save is not None and (drawn.done % every == 0 or drawn.done == self.draws):
                save()
        return drawn
