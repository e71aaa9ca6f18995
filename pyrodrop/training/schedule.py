"""Replicates in turn: stacks of those that are made of the same, as many at a time as fit into memory.

Replicates are stacked if their tensors have the same shapes (`pyrodrop.training.stack.shapes_of`). Networks of different
widths are different groups, and each group is one stack or, where memory is short, several. Stacks train one after the
other, which does not change the result. A callback after every epoch sees all replicates after the same number of steps, so
with one the stacks take turns at every epoch.

A checkpoint has the states of all turns in one file. It says which replicates train together, since that decides how sums
are rounded: a run continues with the same turns, whatever memory is free.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrodrop.engines import Loss
from pyrodrop.engines.buffers import modules_of
from pyrodrop.files import check_writable, under
from pyrodrop.networks.flags import Flags
from pyrodrop.networks.modes import evaluating
from pyrodrop.training.after_epoch import AfterEpoch
from pyrodrop.training.checkpoint import Checkpoint, StateFile
from pyrodrop.training.fitted_replicates import Replicates, grouped, merged, of_all
from pyrodrop.training.loop import Loop
from pyrodrop.training.problem import Problem
from pyrodrop.training.record import PARTS, Identity, identity, record
from pyrodrop.training.settings import Settings
from pyrodrop.training.stack import Stack, StackedState, shapes_of, state_bytes

_log = logging.getLogger("pyrodrop")


class Turn:
    """Some of the replicates of a call, which train together.

    Attributes:
        loop: of the stack, from `begin` to `end`.
        error: the first error of a loss that is not finite in any of the replicates; None if there is none.
    """

    loop: Loop

    def __init__(self, stack: Stack, numbers: Sequence[int]) -> None:
        self.stack: Stack = stack
        self.numbers: list[int] = list(numbers)
        self.error: FloatingPointError | None = None
        self.seconds: float = 0.0
        self.begun: bool = False

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

    def replicates(self, seeds: Sequence[int]) -> Replicates:
        """These replicates with their present parameters, buffers and losses, given the seeds of all."""
        fits = self.stack.fits(self.loop, [seeds[number] for number in self.numbers], self.seconds)
        return Replicates(fits, self.stack.failed())


class Schedule:
    """Which replicates of a call train together, and when.

    Args:
        parts: the numbers of the replicates of every turn, by `turns_of`.
        kept: whether all stacks stay in memory until the end.
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
        self.problems: Sequence[Problem] = problems
        self.settings: Settings = settings
        self.seeds: Sequence[int] = seeds
        self.kept: bool = kept
        generators = [torch.Generator(settings.place).manual_seed(seed) for seed in seeds]
        self.turns: list[Turn] = [
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
        after_epoch: AfterEpoch | None = None,
    ) -> Replicates:
        """Make all remaining steps.

        Args:
            progress, save, save_every: as in `Loop.run`.
            after_epoch: called with all replicates and the number of epochs.

        Returns:
            All replicates. Where none has a finite loss, training ends early, and `error` says why.
        """
        steps = self.settings.steps
        assert steps is not None
        if after_epoch is not None:
            self._by_epochs(steps, progress, save, save_every, after_epoch)
            return self.replicates()
        done = []
        for turn in self.turns:
            turn.begin().advance(steps, progress, save, save_every)
            done.append((turn.numbers, turn.replicates(self.seeds)))
            if not self.kept:
                turn.end()
        return merged(done)

    def replicates(self) -> Replicates:
        """All replicates as they are now, in the order of the arguments."""
        return merged((turn.numbers, turn.replicates(self.seeds)) for turn in self.turns)

    def _by_epochs(
        self,
        steps: int,
        progress: bool | None,
        save: Callable[[], None] | None,
        save_every: int,
        after_epoch: AfterEpoch,
    ) -> None:
        per_epoch = self._per_epoch()
        done = [turn.loop.done for turn in self.turns if turn.error is None]
        if max(done, default=0) > after_epoch.next(min(done, default=steps), per_epoch):
            raise ValueError(
                "after_epoch is called with all replicates after the same number of steps; those in the checkpoint have "
                f"made from {min(done)} to {max(done)} steps, one after the other: continue without after_epoch"
            )
        while True:
            last = min(done, default=steps)
            together = last > 0 and all(n == last for n in done) and after_epoch.due(last, per_epoch, steps)
            ended = together and self._ends(after_epoch, last, per_epoch)
            if ended and save is not None:
                save()
            if ended or last == steps:
                return
            for turn in self.turns:
                turn.advance(min(steps, after_epoch.next(last, per_epoch)), progress, save, save_every)
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

    def _ends(self, after_epoch: AfterEpoch, done: int, per_epoch: int) -> bool:
        """Call `after_epoch` in evaluation mode. Returns whether training ends. Its random draws do not affect training.

        Meanwhile short calls of other threads are let in.

        Raises:
            RuntimeError: it changes a model or guide, which the stacked step would not take over.
        """
        place, replicates = self.settings.place, self.replicates()
        parts = [part for problem in self.problems for part in (problem.model, problem.guide)]
        modules = {
            f"{number}: {name}": module
            for number, problem in enumerate(self.problems)
            for name, module in modules_of(problem.model, problem.guide).items()
        }
        forked = torch.random.fork_rng([place] if place.type == "cuda" else [])
        with evaluating(*parts), forked:
            flags = Flags(modules)
            versions = {name: parameter._version for name, parameter in flags.parameters.items()}
            with self.settings.sharing():
                ends = after_epoch.ends(done, per_epoch, replicates)
            written = [name for name, parameter in flags.parameters.items() if parameter._version != versions[name]]
            name = flags.changed() or next(iter(written), "")
        if name:
            raise RuntimeError(
                f"after_epoch has changed {name}, by the number of a replicate, and the step of all replicates would go on "
                "without that: fit one by one"
            )
        return ends

    @property
    def error(self) -> FloatingPointError | None:
        """What ended the training of the first replicates, where no replicate has a finite loss; otherwise None."""
        return of_all([turn.error for turn in self.turns])


def turns_of(
    problems: Sequence[Problem], losses: Sequence[Loss], settings: Settings, memory: float | None, *, kept: bool
) -> list[list[int]]:
    """The numbers of the replicates that train together, by turn.

    Args:
        memory: bytes that all replicates together may take; half of the free memory if None.
        kept: whether parameters and optimisers of all are in memory until the end.
    """
    whole = float(sum(map(state_bytes, losses))) if kept else 0.0
    groups = []
    for group in grouped(map(shapes_of, problems, losses)):
        first = group[0]
        size = Stack([problems[first]], [], settings, losses=[losses[first]]).fitting(memory, whole)
        if size < len(group):
            _log.info("training %d of %d replicates at a time, limited by memory", size, len(group))
        groups += [group[at : at + size] for at in range(0, len(group), size)]
    return groups


class ScheduleFile(StateFile):
    """Reads the states of all replicates from a file, and writes them.

    Args:
        saving: where.

    Raises:
        ValueError: the file belongs to another run, or is no whole checkpoint of replicates.
        OSError: the file cannot be read or written.
    """

    def __init__(
        self, saving: Checkpoint, problems: Sequence[Problem], losses: Sequence[Loss], settings: Settings
    ) -> None:
        super().__init__(
            saving, record(settings, problems[0], settings.seed), identity_of_all(settings, problems, losses)
        )
        self._count, self._schedule = len(problems), list[Turn]()
        check_writable(saving.path)
        self._read = self._checked()

    def parts(self) -> list[list[int]] | None:
        """The numbers of the replicates of every turn, as the file says; None without a file."""
        if self._read is None:
            return None
        return [turn["replicates"] for turn in self._read[1]]

    def resume(self, schedule: Schedule) -> None:
        """Continue from the file, if there is one; the file is given up."""
        self._schedule = schedule.turns
        if self._read is None:
            return
        (tensors, about), self._read = self._read, None
        for number, (turn, of_turn) in enumerate(zip(self._schedule, about, strict=True)):
            state = under(f"turn {number}.", tensors)
            StackedState(turn.stack, turn.loop).load(state, self.name)
            if of_turn["failed"] is not None:
                turn.fail(FloatingPointError(of_turn["failed"]))
        self.saved = "the last finite state"

    def save(self) -> None:
        """Write the states of all turns to the file.

        Raises:
            FloatingPointError: no replicate of the turn that trains now has a finite loss; the file stays as it was.
            OSError: the file cannot be written; it stays as it was.
        """
        tensors: dict[str, Tensor] = {}
        about = []
        for number, turn in enumerate(self._schedule):
            if turn.error is None:
                turn.loop.check_finite(whole=True)
            state = StackedState(turn.stack, turn.loop).tensors()
            tensors |= {f"turn {number}.{name}": value for name, value in state.items()}
            failed = None if turn.error is None else str(turn.error)
            about.append({"replicates": turn.numbers, "failed": failed})
        self.write(tensors, turns=about)
        self.saved: str = "the last finite state"

    def _checked(self) -> tuple[dict[str, Tensor], list[dict[str, Any]]] | None:
        """The tensors of the file, and what it says of the turns; None if there is no file."""
        content = self.read()
        if content is None:
            return None
        tensors, about = content
        self.check_run(about)
        turns = about.get("turns")
        if not isinstance(turns, list) or not all(map(_is_turn, turns)):
            raise ValueError(f"{self.name} is not one of replicates: it does not say which of them train together")
        numbers = sorted(number for turn in turns for number in turn["replicates"])
        if numbers != list(range(self._count)):
            raise ValueError(
                f"{self.name} must be of as many replicates as this run, {self._count}; got {len(numbers)}"
            )
        return tensors, turns


def identity_of_all(settings: Settings, problems: Sequence[Problem], losses: Sequence[Loss]) -> Identity:
    """What a run of replicates is made of: the words of replicate 0, and of each other what differs from it."""
    first = identity(settings, problems[0], losses[0])
    words_of_all = {part: dict(words) for part, words in first.items()}
    for r, (problem, loss) in enumerate(zip(problems, losses, strict=True)):
        its_words = identity(settings, problem, loss)
        for part in PARTS:
            names = dict.fromkeys([*its_words[part], *first[part]])
            here = {name: its_words[part].get(name, "absent") for name in names}
            words_of_all[part] |= {
                f"replicate {r}: {n}": v for n, v in here.items() if v != first[part].get(n, "absent")
            }
    words_of_all["model"] = {"replicates": str(len(problems)), **words_of_all["model"]}
    return words_of_all


def _is_turn(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("replicates"), list)
        and bool(value["replicates"])
        and all(type(number) is int for number in value["replicates"])
        and isinstance(value.get("failed", ()), str | None)
    )
