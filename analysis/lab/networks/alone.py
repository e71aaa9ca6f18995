"""Let stacked replicates draw the random numbers of separate fits, so that their results can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pkgutil import resolve_name
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from pyrodrop.training.rows import Minibatches


@contextmanager
def drawn_as_alone(*seeds: int) -> Iterator[None]:
    """Within the block, replicate r of a stack draws the row orders and noise of a fit with ``seeds[r]``; on a CPU only."""
    states = [torch.Generator().manual_seed(seed).get_state() for seed in seeds]

    @contextmanager
    def own(replicate: int) -> Iterator[None]:
        torch.set_rng_state(states[replicate])
        yield
        states[replicate] = torch.get_rng_state()

    def draw(self: Any) -> list[Tensor]:
        drawn = self.shapes()
        for replicate in range(len(seeds)):
            with own(replicate):
                for place, tensor in zip(drawn, self.draw_alone(replicate), strict=True):
                    place[replicate] = tensor
        return drawn

    def orders(self: Minibatches) -> Tensor:
        rows: list[Tensor] = []
        for replicate in range(len(seeds)):
            with own(replicate):
                rows.append(torch.randperm(self.num_rows))
        return torch.stack(rows)

    compare: Any = resolve_name("pyrodrop.compiled.inductor:WholeStep.compiled")

    def compared(*arguments: Any) -> Any:
        """A comparison of a compiled step, which leaves the random numbers of all replicates as they are."""
        before = list(states)
        try:
            return compare(*arguments)
        finally:
            states[:] = before

    with ExitStack() as patches, torch.random.fork_rng(devices=[]):
        for replaced, value in (
            ("compiled.program.MappedProgram.draw", draw),
            ("compiled.steps.Steps.most_steps", 1),
            ("compiled.inductor.WholeStep.compiled", compared),
            ("training.rows.Minibatches.orders", orders),
        ):
            patches.enter_context(mock.patch(f"pyrodrop.{replaced}", value))
        yield
