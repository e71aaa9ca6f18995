"""The loop over transitions: chains of either kernel are tuned together, then drawn from."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrodrop.sampling.kernel import Kernel

_OVER_THINNED: dict[str, Callable[[Tensor], Tensor]] = {
    "lp": lambda values: values[-1],
    "energy": lambda values: values[-1],
    "acceptance_rate": lambda values: values.mean(0).float(),
    "energy_error": lambda values: values.square().mean(0).sqrt(),
    "diverging": lambda values: values.any(0),
    "n_steps": lambda values: values.sum(0),
}
"""The statistic of a draw, from those of the transitions that led to it, ``[thin, C]``."""


class Chains:
    """Chains that a kernel moves.

    Attributes:
        q: unconstrained values of the draws, ``[C, S, D]``, on the CPU.
        stats: of the draws, ``[C, S]`` by name, on the CPU.
        done: number of draws made so far, of the S.
        transitions: number of transitions made so far, with those of tuning.
        cpu_seconds: processor time of all transitions after tuning.
        seconds: wall time in this process, by the names ``tuning`` and ``drawing``.
        rounding: standard deviation of the rounding error of energies, in nats.

    Args:
        kernel: moves the chains; its state is at their starts.
        draws: S, number of draws of each chain.
        thin: number of transitions for each draw.
        bar: advances with every transition.
    """

    def __init__(self, kernel: Kernel, draws: int, thin: int, bar: Any) -> None:
        self.kernel: Kernel = kernel
        self.draws: int = draws
        self.thin: int = thin
        self.bar: Any = bar
        self.q: Tensor = torch.empty(0)
        self.stats: dict[str, Tensor] = {}
        self.done: int = 0
        self.transitions: int = 0
        self.cpu_seconds: float = 0.0
        self.seconds: dict[str, float] = {"tuning": 0.0, "drawing": 0.0}
        self.rounding: float = 0.0

    def tune(self, until: int) -> None:
        """Make transitions of tuning up to number `until`."""
        begun = time.perf_counter()
        while self.transitions < until:
            self._transition()
            self.kernel.adapt(self.transitions)
        self.seconds["tuning"] += time.perf_counter() - begun

    def draw(self) -> None:
        """Make the draws."""
        q = self.kernel.state.q
        self.q = torch.empty(len(q), self.draws, q.shape[1], dtype=q.dtype)
        while self.done < self.draws:
            begun, wall = time.process_time(), time.perf_counter()
            self._keep([self._transition() for _ in range(self.thin)])
            self.cpu_seconds += time.process_time() - begun
            self.seconds["drawing"] += time.perf_counter() - wall

    def _transition(self) -> dict[str, Tensor]:
        self.transitions += 1
        stats = self.kernel.transition(self.transitions)
        self.bar.set_postfix_str(self.kernel.progress(), refresh=False)
        self.bar.update()
        return stats

    def _keep(self, transitions: list[dict[str, Tensor]]) -> None:
        """Store the present state as a draw of every chain, with the statistics of the transitions that led to it."""
        self.q[:, self.done] = self.kernel.state.q.cpu()
        for name in transitions[0]:
            values = _OVER_THINNED[name](torch.stack([stats[name] for stats in transitions])).cpu()
            if name not in self.stats:
                self.stats[name] = torch.zeros(self.q.shape[:2], dtype=values.dtype)
            self.stats[name][:, self.done] = values
        self.done += 1
