"""Replicates in stacks of those that are made of the same, as many at a time as fit into memory.

Replicates are stacked if their tensors have the same shapes (`pyrodrop.training.stack.shapes_of`). Networks of different
widths are different groups, and each group is one stack or, where memory is short, several. Stacks train one after the
other, each with torch's default generator, seeded by the seed of its first replicate. A checkpoint or a callback is of one
stack.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from pyrodrop.devices import seeded
from pyrodrop.module_flags import Flags
from pyrodrop.module_states import evaluating
from pyrodrop.steps import Loss
from pyrodrop.steps.buffers import modules_of
from pyrodrop.training.after_epoch import AfterEpoch, is_true
from pyrodrop.training.checkpoint import Checkpoint, StateFile
from pyrodrop.training.fitted_replicates import Replicates, grouped, merged, of_all
from pyrodrop.training.loop import Loop
from pyrodrop.training.problem import Problem
from pyrodrop.training.ranks import alone
from pyrodrop.training.record import PARTS, Identity, identity, record
from pyrodrop.training.settings import Settings
from pyrodrop.training.stack import Stack, StackedState, shapes_of

_log = logging.getLogger("pyrodrop")

Trained = tuple[Replicates, FloatingPointError | None]


def train_in_turn(
    problems: Sequence[Problem],
    losses: Sequence[Loss],
    settings: Settings,
    seeds: Sequence[int],
    memory: float | None,
    progress: bool | None,
    saving: Checkpoint | None,
    after_epoch: AfterEpoch | None,
) -> Trained:
    """Train all replicates; with an error where none of them has a finite loss.

    Raises:
        ValueError: replicates cannot be stacked, or there is a checkpoint or a callback and they are several stacks.
    """
    groups = groups_of(problems, losses, settings, memory)
    _check_one_stack(len(groups), {"checkpoint": saving, "after_epoch": after_epoch})
    stacks = [Stack([problems[r] for r in rs], settings, losses=[losses[r] for r in rs]) for rs in groups]
    if len(stacks) > 1:  # all that is refused is refused before the first step
        for stack in stacks:
            stack.loop()
            stack.forget()
    trained, errors = list[tuple[list[int], Replicates]](), list[FloatingPointError | None]()
    for numbers, stack in zip(groups, stacks, strict=True):
        some, error = _trained(stack, [seeds[r] for r in numbers], progress, saving, after_epoch)
        trained.append((numbers, some))
        errors.append(error)
        stack.forget()
    return merged(trained), of_all(errors)


def groups_of(
    problems: Sequence[Problem], losses: Sequence[Loss], settings: Settings, memory: float | None
) -> list[list[int]]:
    """The numbers of the replicates of every stack.

    Args:
        memory: bytes that a stack may take; half of the free memory if None.
    """
    groups = []
    for group in grouped(map(shapes_of, problems, losses)):
        first = group[0]
        size = Stack([problems[first]], settings, losses=[losses[first]]).fitting(memory)
        if size < len(group):
            _log.info("training %d of %d replicates at a time, limited by memory", size, len(group))
        groups += [group[at : at + size] for at in range(0, len(group), size)]
    return groups


def _check_one_stack(stacks: int, arguments: dict[str, object]) -> None:
    """Raise a ValueError for arguments that several stacks cannot have."""
    for name, value in arguments.items():
        if stacks > 1 and value is not None:
            raise ValueError(
                f"{name} is for replicates that train together: networks of the same widths, data of the same size, and "
                f"enough memory for all (memory=); these train as {stacks} stacks, one after the other: make a call for "
                f"each, or pass {name}=None"
            )


def _trained(
    stack: Stack,
    seeds: Sequence[int],
    progress: bool | None,
    saving: Checkpoint | None,
    after_epoch: AfterEpoch | None,
) -> Trained:
    """Train one stack. Where no replicate has a finite loss, the losses of the steps that are not made are NaN."""
    start, settings, error = time.perf_counter(), stack.settings, None
    with seeded(seeds[0], settings.place):
        loop = stack.loop()
        file = None if saving is None else _resumed(stack, loop, saving, seeds)
        calls = None if after_epoch is None else _of_stack(after_epoch, stack, loop, seeds, start)
        try:
            loop.run(
                progress, None if file is None else file.save, 0 if saving is None else saving.every, after_epoch=calls
            )
        except FloatingPointError as failure:
            error = FloatingPointError(f"{failure}{'' if file is None else file.where()}")
            finite = torch.isfinite(loop.history[: loop.done, :, :2]).all(-1).any(1)
            loop.history[int(finite.long().cumprod(0).sum()) :] = torch.nan
            loop.done = len(loop.history)
    return stack.replicates(loop, seeds, time.perf_counter() - start), error


def _resumed(stack: Stack, loop: Loop, saving: Checkpoint, seeds: Sequence[int]) -> StateFile:
    """The checkpoint of a stack, which continues from the file if it exists."""
    settings = stack.settings
    about = record(settings, stack.problems[0], seeds[0])
    identity_of_stack = identity_of_all(settings, stack.problems, stack.losses)
    file = StateFile(saving, about, identity_of_stack, StackedState(stack, loop), alone(settings.place))
    file.resume()
    return file


def _of_stack(after_epoch: AfterEpoch, stack: Stack, loop: Loop, seeds: Sequence[int], start: float) -> AfterEpoch:
    """`after_epoch` as a function of the number of epochs alone, which calls it with the replicates in evaluation mode.

    It raises a RuntimeError where a model or guide was changed, which the stacked step would not take over.
    """

    def call(epochs: float) -> bool:
        replicates = stack.replicates(loop, seeds, time.perf_counter() - start)
        modules = {
            f"{number}: {name}": module
            for number, problem in enumerate(stack.problems)
            for name, module in modules_of(problem.model, problem.guide).items()
        }
        with evaluating(*(part for problem in stack.problems for part in (problem.model, problem.guide))):
            flags = Flags(modules)
            versions = {name: parameter._version for name, parameter in flags.parameters.items()}
            ends = is_true(after_epoch.function(replicates, epochs))
            written = [name for name, parameter in flags.parameters.items() if parameter._version != versions[name]]
            changed = flags.changed() or next(iter(written), "")
        if changed:
            raise RuntimeError(
                f"after_epoch has changed {changed}, by the number of a replicate, and the step of all replicates would go "
                "on without that: fit one by one"
            )
        return ends

    return replace(after_epoch, function=call)


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
