"""Replicates in turn: stacks of those that are made of the same, as many at a time as fit into memory.

Replicates are stacked if their tensors have the same shapes (`pyrodrop.training.stack.shapes_of`). Networks of different
widths are different groups, and each group is one stack or, where memory is short, several. Stacks train one after the
other, which does not change the result. A callback after every epoch sees all replicates after the same number of steps, so
with one the stacks take turns at every epoch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence

import torch

from pyrodrop.engines import Loss
from pyrodrop.networks.modes import evaluating
from pyrodrop.training.fitted import Fit
from pyrodrop.training.fitted_replicates import Replicates
from pyrodrop.training.loop import Loop
from pyrodrop.training.problem import Problem
from pyrodrop.training.settings import Settings
from pyrodrop.training.stack import Stack, shapes_of, state_bytes

_log = logging.getLogger("pyrodrop")


class Turn:
    """Some of the replicates of a call, which train together.

    Args:
        stack: of them.
        numbers: of the replicates in the call.

    Attributes:
        loop: of the stack, from `begin` to `end`.
        error: the first error of a loss that is not finite in any of the replicates; None if there is none.
        seconds: that the steps took.
    """

    loop: Loop

    def __init__(self, stack: Stack, numbers: Sequence[int]) -> None:
        self.stack, self.numbers = stack, list(numbers)
        self.error: FloatingPointError | None = None
        self.seconds = 0.0
        self.begun = False

    def begin(self) -> Turn:
        """Stack the replicates; a ValueError if that is impossible."""
        if not self.begun:
            self.loop, self.begun = self.stack.loop(), True
        return self

    def end(self) -> None:
        """Give the memory of the stack back."""
        if self.begun:
            del self.loop, self.stack.loss, self.stack.parameters, self.stack.batches
            self.begun = False

    def advance(
        self, end: int, progress: bool | None, save: Callable[[], None] | None = None, save_every: int = 0
    ) -> None:
        """Make the steps up to number `end`. Where no replicate has a finite loss they end there, with `error`."""
        start = time.perf_counter()
        if self.error is None and self.loop.done < end:
            try:
                self.loop.run(progress, save, save_every, until=end)
            except FloatingPointError as error:
                self.fail(error)
        self.seconds += time.perf_counter() - start

    def fail(self, error: FloatingPointError) -> None:
        """Keep the error; the losses of the steps that are not made are NaN."""
        self.error, loop = error, self.loop
        finite = torch.isfinite(loop.history[: loop.done, :, :2]).all(-1).any(1)
        loop.history[int(finite.long().cumprod(0).sum()) :] = torch.nan
        loop.done = loop.checked = len(loop.history)

    def fits(self, seeds: Sequence[int]) -> list[Fit]:
        """The fits with their present parameters, buffers and losses."""
        return self.stack.fits(self.loop, [seeds[number] for number in self.numbers], self.seconds)

    def failed(self) -> dict[int, int]:
        """The last step of every replicate that failed, by its number in the call."""
        return {self.numbers[own]: step for own, step in self.stack.failed().items()}


class Turns:
    """The turns of a call.

    Args:
        problems: one per replicate.
        losses: of the problems.
        settings: of all.
        seeds: of the replicates.
        parts: the numbers of the replicates of every turn, by `parts_of`.
        kept: whether all stacks stay in memory until the end.

    Raises:
        ValueError: replicates cannot be stacked.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        losses: Sequence[Loss],
        settings: Settings,
        seeds: Sequence[int],
        parts: Sequence[Sequence[int]],
        *,
        kept: bool,
    ) -> None:
        self.problems, self.settings, self.seeds, self.kept = problems, settings, seeds, kept
        generators = [torch.Generator(settings.place).manual_seed(seed) for seed in seeds]
        self.turns = [
            Turn(
                Stack(
                    [problems[r] for r in part],
                    [generators[r] for r in part],
                    settings,
                    losses=[losses[r] for r in part],
                ),
                part,
            )
            for part in parts
        ]
        for turn in self.turns:  # all that is refused is refused before the first step
            turn.begin()
            if not kept and len(parts) > 1:
                turn.end()

    def run(
        self,
        progress: bool | None,
        save: Callable[[], None] | None = None,
        save_every: int = 0,
        after_epoch: Callable[[Replicates, int], None] | None = None,
    ) -> Replicates:
        """Make all remaining steps.

        Args:
            progress, save, save_every: as in `Loop.run`.
            after_epoch: called with all replicates after every epoch, and with the number of epochs.

        Returns:
            All replicates. Where none has a finite loss, training ends early, and `error` says why.
        """
        steps = self.settings.steps
        assert steps is not None
        if after_epoch is not None:
            self._by_epochs(steps, progress, save, save_every, after_epoch)
            return self.replicates()
        found: dict[int, Fit] = {}
        failed: dict[int, int] = {}
        for turn in self.turns:
            turn.begin().advance(steps, progress, save, save_every)
            found |= zip(turn.numbers, turn.fits(self.seeds), strict=True)
            failed |= turn.failed()
            if not self.kept:
                turn.end()
        return Replicates([found[r] for r in sorted(found)], dict(sorted(failed.items())))

    def replicates(self) -> Replicates:
        """All replicates as they are now, in the order of the arguments."""
        found: dict[int, Fit] = {}
        for turn in self.turns:
            found |= zip(turn.numbers, turn.fits(self.seeds), strict=True)
        failed = {number: step for turn in self.turns for number, step in turn.failed().items()}
        return Replicates([found[r] for r in sorted(found)], dict(sorted(failed.items())))

    def _by_epochs(
        self,
        steps: int,
        progress: bool | None,
        save: Callable[[], None] | None,
        save_every: int,
        after_epoch: Callable[[Replicates, int], None],
    ) -> None:
        per_epoch = self._per_epoch()
        done = [turn.loop.done for turn in self.turns if turn.error is None]
        epoch = min(done, default=steps) // per_epoch
        if max(done, default=0) > (epoch + 1) * per_epoch:
            raise ValueError(
                "after_epoch is called with all replicates after the same number of steps; those in the checkpoint have "
                f"made from {min(done)} to {max(done)} steps, one after the other: continue without after_epoch"
            )
        while True:
            if all(n == epoch * per_epoch for n in done) and epoch > 0:
                self._call(after_epoch, epoch)
            if all(n == steps for n in done):
                return
            epoch += 1
            for turn in self.turns:
                turn.advance(min(steps, epoch * per_epoch), progress, save, save_every)
            if self.error is not None:
                return
            done = [turn.loop.done for turn in self.turns if turn.error is None]

    def _per_epoch(self) -> int:
        """The number of steps in an epoch; a ValueError where it is not the same for all replicates."""
        counts = [turn.loop.batches.per_epoch for turn in self.turns]
        if len(set(counts)) > 1:
            raise ValueError(
                "after_epoch is called with all replicates after the same number of epochs, which must have equally many "
                f"steps; got data with {', '.join(map(str, sorted(set(counts))))} minibatches"
            )
        return counts[0]

    def _call(self, after_epoch: Callable[[Replicates, int], None], epoch: int) -> None:
        """Call it in evaluation mode; its random numbers do not change those of the training."""
        place = self.settings.place
        parts = [part for problem in self.problems for part in (problem.model, problem.guide)]
        with evaluating(*parts), torch.random.fork_rng([place] if place.type == "cuda" else []):
            after_epoch(self.replicates(), epoch)

    @property
    def error(self) -> FloatingPointError | None:
        """What ended the training of the first replicates, where no replicate has a finite loss; otherwise None."""
        errors = [turn.error for turn in self.turns]
        return None if None in errors else errors[0]


def groups_of(problems: Sequence[Problem], losses: Sequence[Loss]) -> list[list[int]]:
    """The numbers of the replicates that can be stacked, by group, in the order of their first ones."""
    found: dict[Hashable, list[int]] = {}
    for r, (problem, loss) in enumerate(zip(problems, losses, strict=True)):
        found.setdefault(shapes_of(problem, loss), []).append(r)
    return list(found.values())


def parts_of(
    problems: Sequence[Problem], losses: Sequence[Loss], settings: Settings, memory: float | None, *, kept: bool
) -> list[list[int]]:
    """The numbers of the replicates that train together, by turn.

    Args:
        problems, losses: one per replicate.
        settings: of all.
        memory: bytes that all replicates together may take; half of the free memory if None.
        kept: whether parameters and optimisers of all are in memory until the end.

    Raises:
        ValueError: a replicate cannot be traced.
    """
    whole = float(sum(map(state_bytes, losses))) if kept else 0.0
    found = []
    for group in groups_of(problems, losses):
        first = group[0]
        size = Stack([problems[first]], [], settings, losses=[losses[first]]).fitting(memory, whole)
        if size < len(group):
            _log.info("training %d of %d replicates at a time, limited by memory", size, len(group))
        found += [group[at : at + size] for at in range(0, len(group), size)]
    return found
