"""The base class of Markov chain Monte Carlo kernels: a transition of all chains at once, and its tuning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyrodrop.sampling.compiled_density import CompiledDensity, Step

DIVERGENT = 1000.0  # nats of energy error, as in Stan


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


class Kernel(ABC):
    """Moves and adapts all chains together.

    Implementing a kernel:

    - `step` is what is compiled together with the gradient.
    - `transition` follows the chains from `state` to a new `state` with what is `tuned`.
    - `adapt` replaces `tuned` after each transition of tuning.

    Attributes:
        state: where the chains are.
        tuned: what tuning learns, a named tuple of numbers and tensors; together with `state` it is all that transitions
            after tuning depend on.
        descent: the number of transitions of the first part of tuning, from the starts to where the chains stay.

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
