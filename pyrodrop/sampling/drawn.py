"""What a sampler returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Drawn:
    """Draws and statistics, on the CPU.

    Attributes:
        q: unconstrained values, ``[C, S, D]``.
        stats: of the transitions that led to each draw, ``[C, S]`` by name.
        learned: what tuning found, in plain numbers.
        cpu_seconds: processor time of all transitions after tuning.
    """

    q: Tensor
    stats: dict[str, Tensor]
    learned: dict[str, float]
    cpu_seconds: float
