"""Replicates in stacks of equal shapes: sessions whose parameters, rows and losses have a leading axis ``[R, ...]``.

Networks of different widths, or data of different sizes, form different stacks, and so do replicates of equal shapes if
memory is short. Stacks train one after the other, each with torch's default generator, seeded by the seed of its first
replicate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pyro
import torch
from torch import Tensor

from pyrodrop.arrays import near
from pyrodrop.changes import Contents, put_back
from pyrodrop.checks import MOST, named_parts, parts
from pyrodrop.compiled import StackedLoss, Untraceable, accelerate, bytes_of_step
from pyrodrop.data import Dataset
from pyrodrop.devices import available, seeded
from pyrodrop.steps import Arguments, Engine, Loss
from pyrodrop.training.checkpoint import record
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.result import Fit
from pyrodrop.training.rows import rows_of
from pyrodrop.training.session import Session
from pyrodrop.training.settings import Settings

_log = logging.getLogger("pyrodrop")


def train_stacks(
    problems: Sequence[Problem], settings: Settings, seeds: Sequence[int], progress: bool | None
) -> tuple[list[Fit], dict[int, int]]:
    """Train replicates, one stack after the other; returns the fits, and the steps at which some failed, by number.

    Networks of equal shapes are looked at once, unless only a call shows the sites of a guide; all that is refused is
    refused before the first step.

    Raises:
        ValueError: replicates cannot be stacked.
    """
    first: dict[Any, tuple[Problem, Loss]] = {}
    equal: dict[Any, list[int]] = {}
    losses: list[Loss] = []
    for r, problem in enumerate(problems):
        key = _shapes(problem)
        losses.append(problem.loss_like(*first[key]) if key in first else loss_of(problem, settings))
        if not problem.program:
            first.setdefault(key, (problem, losses[r]))
        equal.setdefault(key, []).append(r)
    groups: list[list[int]] = []
    for group in equal.values():
        size = fitting(losses[group[0]], problems[group[0]].example, settings)
        if size < len(group):
            _log.info("training %d of %d replicates at a time, limited by memory", size, len(group))
        groups += [group[at : at + size] for at in range(0, len(group), size)]

    def stack_of(group: Sequence[int]) -> Stack:
        return Stack([problems[r] for r in group], [losses[r] for r in group], settings)

    for group in groups[1:]:
        stack_of(group)
    fits: dict[int, Fit] = {}
    failed: dict[int, int] = {}
    for group in groups:
        stack = stack_of(group)
        fits |= zip(group, stack.train([seeds[r] for r in group], progress), strict=True)
        failed |= {group[r]: step for r, step in stack.failed().items()}
    return [fits[r] for r in sorted(fits)], dict(sorted(failed.items()))


class Stack(Session):
    """Replicates that are trained together.

    Args:
        problems: one per replicate, equal but for their tensors. Several replicates may share one, and then differ in data,
            noise and initial parameters alone.
        losses: one per replicate, from `loss_of` for its problem.
        data: one data set per replicate, of equal shapes; those of the problems if None.
        starts: initial values of the parameters, ``[R, ...]`` by name; those of the problems if None.

    Raises:
        ValueError: the replicates cannot be stacked, or differ in more than their tensors.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        losses: Sequence[Loss],
        settings: Settings,
        data: Sequence[Any] | None = None,
        starts: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.problems, self.losses, self.replicates = problems, losses, (len(problems),)
        self.problem, self.loss = problems[0], losses[0]
        sets: Sequence[Any] = [problem.data for problem in problems] if data is None else data
        rows = rows_of(sets, settings.batch_size, settings.place)
        columns = zip(*(loss.leaves for loss in losses), strict=True)
        starts = starts or {n: torch.stack(c).detach() for n, c in zip(self.loss.parameters, columns, strict=True)}
        parameters = {name: starts[name].clone().requires_grad_() for name in self.loss.parameters}
        self._begin(settings, parameters, rows, f"{len(problems)} x {describe(self.problem.guide).split('(')[0]}")
        constants = {id(problem): problem.tensors() for problem in {id(p): p for p in problems}.values()}
        self.stacked = StackedLoss(losses, list(parameters.values()), [constants[id(problem)] for problem in problems])
        # At one shape of minibatch, one replicate of each model that the user made is compared with itself alone; at
        # others, and of copies of one model, the first two and the last.
        last = len(losses) - 1
        first_of = {tuple(map(id, problem.source)): r for r, problem in reversed(list(enumerate(problems)))}
        few = {0, min(1, last), last}
        samples = rows.samples(settings.steps)
        for number, batch in enumerate(samples):
            self._verify(batch, sorted(few if number else few.union(first_of.values())))
        self._first = accelerate("traced", self.stacked, self.optimizer, samples[:1], 1)
        self.engine = self._first

    def train(self, seeds: Sequence[int], progress: bool | None) -> list[Fit]:
        """Make all steps. Where no replicate has a finite loss, the losses of the steps that are not made are NaN."""
        start = time.perf_counter()
        with seeded(seeds[0], self.settings.place):
            try:
                self.run(progress)
            except FloatingPointError:
                finite = torch.isfinite(self.history[: self.done, :, :2]).all(-1).any(1)
                self.history[int(finite.long().cumprod(0).sum()) :] = torch.nan
                self.done = len(self.history)
        history, fits = self.history[: self.done].cpu(), []
        more = {"engine": self.engine.name, "replicates": len(seeds), "seconds": time.perf_counter() - start}
        for r, (problem, seed) in enumerate(zip(self.problems, seeds, strict=True)):
            self.put(r)
            about = {**record(self.settings, problem, seed), **more}
            fits.append(self.fit_of(problem, history[:, r].contiguous(), about))
        return fits

    def put(self, replicate: int) -> None:
        """Give the results of one replicate to its model and guide, which other replicates may share."""
        loss = self.losses[replicate]
        with torch.no_grad():
            for leaf, values in zip(loss.leaves, self.parameters.values(), strict=True):
                leaf.copy_(values[replicate])
        loss.moving.take([buffer[replicate] for buffer in self.stacked.buffers])

    def failed(self) -> dict[int, int]:
        """The number of the step, counted from 0, at which each failed replicate failed, by the replicate's number."""
        lived = self.stacked.lived.tolist()
        return {r: lived[r] for r in (~self.stacked.alive).nonzero().flatten().tolist()}

    def _faster(self, steps: int) -> Engine:
        batches = self.rows.samples(None if self.settings.steps is None else self.settings.steps - self.done)
        return accelerate(self.settings.engine, self.stacked, self.optimizer, batches, steps)

    def _changed(self) -> str:
        return ""  # no user code runs while replicates train

    def _broken(self) -> str:
        return ""  # replicates keep their last finite parameters

    def _verify(self, batch: Arguments, compared: Sequence[int]) -> None:
        """Raise a ValueError unless these replicates have the same losses and buffers alone and in the stack."""
        try:
            terms, moved = self.stacked.evaluated(batch, compared)
        except Exception as error:  # whatever an operation that cannot be mapped raises
            why = str(error) if isinstance(error, Untraceable) else f"it cannot be mapped over replicates: {error}"
            raise _refusal(why.splitlines()[0]) from error
        for r in compared:
            loss, problem = self.losses[r], self.problems[r]
            kept = put_back(problem.model, problem.guide) if problem.program else nullcontext()
            state = [*loss.leaves, *loss.buffers]
            before = [value.detach().clone() for value in state]
            self.put(r)
            with torch.no_grad(), pyro.validation_enabled(False), seeded(r, batch.device), kept:
                want = loss.objective.terms(batch.at(r))
                buffers = [buffer.detach().clone() for buffer in loss.buffers]
                for value, old in zip(state, before, strict=True):
                    value.copy_(old)
            if not torch.allclose(want.to(terms.dtype), terms[r], rtol=1e-3, atol=1e-4, equal_nan=True):
                raise ValueError(
                    f"replicate {r} differs from replicate 0 in more than replicates may: data, initial values, drop rates, "
                    f"alphas, precisions and scales of Gaussian priors; its loss alone is {want.tolist()}, stacked "
                    f"{terms[r].tolist()}"
                )
            if not all(near(value, stacked[r], 1e-3) for value, stacked in zip(buffers, moved, strict=True)):
                raise _refusal("many replicates update the buffers of the network differently from one")


def loss_of(problem: Problem, settings: Settings) -> Loss:
    """The loss of one replicate.

    Raises:
        ValueError: it cannot be traced, or not be trained on minibatches of this size.
    """
    loss = problem.loss(rows_of(problem.data, settings.batch_size, settings.place).samples(settings.steps))
    if loss.changes or loss.in_store or problem.in_place:
        frozen = f"{loss.changes}, which a trace would freeze"
        raise _refusal(frozen if loss.changes else "Pyro's store has its parameters")
    return loss


def fitting(loss: Loss, data: Dataset, settings: Settings, memory: float | None = None) -> int:
    """How many replicates with this loss and data fit into memory, at least 1.

    Args:
        memory: bytes; half of the free memory if None.
    """
    batch = rows_of(data, settings.batch_size, settings.place).samples(1)[0]
    try:
        need = bytes_of_step(loss, batch)
    except Untraceable as error:
        raise _refusal(str(error)) from error
    # of parameters also gradients and the optimiser's state
    need += sum(x.nbytes for x in parts(data.x)) + 5 * sum(leaf.nbytes for leaf in loss.leaves)
    return max(1, int(min(memory or 0.5 * available(settings.place), MOST) // need))


def _shapes(problem: Problem) -> tuple[Any, ...]:
    """What must be equal in replicates that are stacked: all but the values of tensors, as far as it is known."""
    contents, data = Contents(problem.model, problem.guide), problem.example
    modules = tuple((name, type(module), module.training) for name, module in contents.modules.items())
    numbers = {site: prior.numbers() for site, prior in problem.model.priors.items()}
    tensors = contents.state() | {f"{site}.{n}": value for site, own in numbers.items() for n, value in own.items()}
    rows = {**named_parts(data.x), "y": data.y}
    return modules, tuple((n, t.shape, t.dtype, t.requires_grad) for n, t in (*tensors.items(), *rows.items()))


def _refusal(why: str) -> ValueError:
    return ValueError(
        f"replicates are trained as one traced step, which is impossible for this model and guide: {why}. Fit one by one"
    )
