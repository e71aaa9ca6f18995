"""Chains that move together: where they are, and the loop over transitions of tuning and of drawing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrodrop.sampling.density import CompiledDensity

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

    @classmethod
    def at(cls, density: CompiledDensity, q: Tensor) -> State:
        """At q, without momentum."""
        energy, gradient = density.energies(q)
        return cls(q, torch.zeros_like(q), gradient, energy)

    def where(self, mask: Tensor, other: State) -> State:
        """This state for the chains in `mask` ``[C]``, and `other` for the rest."""
        pairs = zip(self, other, strict=True)
        return State(*(torch.where(mask[:, None] if new.dim() == 2 else mask, new, old) for new, old in pairs))

    def normal(self, generator: torch.Generator, *more: int) -> Tensor:
        """Standard normal numbers, ``[*more, C, D]``."""
        q = self.q
        return torch.randn(*more, *q.shape, dtype=q.dtype, device=q.device, generator=generator)


def run(
    kernel: Any, draws: int, thin: int = 1, bar: Any = None, settle: Callable[[], None] | None = None
) -> tuple[Tensor, dict[str, Tensor], dict[str, float]]:
    """Tune, and make S draws, of `thin` transitions each.

    Args:
        kernel: an `HMC` or `MCLMC`. Its `transition` moves the chains from `state` with what is `tuned`, and returns
            statistics ``[C]`` by name; its `adapt` replaces `tuned` after each of the first `tune` transitions.
        bar: advances with every transition.
        settle: called once, after the first part of tuning, from the starts to where the chains stay.

    Returns:
        q ``[C, S, D]`` and the statistics ``[C, S]`` by name, on the CPU, and the wall time of ``tuning`` and ``drawing``
        and the processor time of ``drawing_cpu``, in seconds.
    """
    begun = tuned = time.perf_counter(), time.process_time()
    kept, each = [], []
    for number in range(1, kernel.tune + draws * thin + 1):
        stats = kernel.transition(number)
        if bar is not None:
            bar.set_postfix_str(kernel.progress(), refresh=False)
            bar.update()
        if number <= kernel.tune:
            kernel.adapt(number)
            if number == kernel.descent and settle is not None:
                settle()
            tuned = time.perf_counter(), time.process_time()
            continue
        each.append(stats)
        if len(each) == thin:
            of_draw = {name: _OVER_THINNED[name](torch.stack([one[name] for one in each])) for name in stats}
            kept.append({name: values.cpu() for name, values in {"q": kernel.state.q, **of_draw}.items()})
            each = []
    seconds = {"tuning": tuned[0] - begun[0], "drawing": time.perf_counter() - tuned[0]}
    of_draws = {name: torch.stack([draw[name] for draw in kept], 1) for name in kept[0]}
    return of_draws.pop("q"), of_draws, {**seconds, "drawing_cpu": time.process_time() - tuned[1]}
