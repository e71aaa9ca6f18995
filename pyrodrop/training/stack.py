"""Replicates in stacks of equal shapes; a stack is trained as one step of stacked parameters (`pyrodrop.compiled.steps`).

Networks of different widths, or data of different sizes, form different stacks, and so do replicates of equal shapes if
memory is short. Stacks train one after the other, each with torch's default generator, seeded by the seed of its first
replicate.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor

from pyrodrop.arguments import MOST
from pyrodrop.arrays import near
from pyrodrop.changes import put_back
from pyrodrop.compiled import StackedLoss, Untraceable, accelerate_stacked, bytes_of_step
from pyrodrop.data import Dataset, Keywords
from pyrodrop.devices import available, seeded
from pyrodrop.inputs import named_parts, parts
from pyrodrop.steps import Arguments, Engine, Loss
from pyrodrop.training.autoguides import autoguides
from pyrodrop.training.fitted_replicates import Replicates
from pyrodrop.training.loop import Loop
from pyrodrop.training.minibatches import batches_of
from pyrodrop.training.optimizer import optimizer_of
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.record import record
from pyrodrop.training.result import Fit
from pyrodrop.training.settings import LearningRate, Settings

_log = logging.getLogger("pyrodrop")

Trained = tuple[Replicates, FloatingPointError | None]  # the error if none of the replicates has a finite loss


def train_stacks(
    problems: Sequence[Problem],
    settings: Settings,
    seeds: Sequence[int],
    memory: float | None,
    progress: bool | None,
) -> Trained:
    """Train replicates, one stack after the other.

    Args:
        memory: bytes that a stack may take; half of the free memory if None.

    Raises:
        ValueError: before the first step: replicates cannot be stacked or share a parameter.
    """
    losses = [loss_of(problem, problem.in_memory, settings) for problem in problems]
    _check_apart(losses)
    groups = _groups(problems, losses, settings, memory)

    def stack_of(group: Sequence[int]) -> Stack:
        return Stack([problems[r] for r in group], [losses[r] for r in group], settings)

    for group in groups[1:]:  # all that is refused is refused before the first step
        stack_of(group)
    return merged((group, stack_of(group).train([seeds[r] for r in group], progress)) for group in groups)


def merged(trained: Iterable[tuple[Sequence[int], Trained]]) -> Trained:
    """Join the results of groups of replicates, each with the numbers of its replicates, in the order of the numbers."""
    fits: dict[int, Fit] = {}
    failed: dict[int, int] = {}
    errors: list[FloatingPointError | None] = []
    for numbers, (replicates, error) in trained:
        fits |= zip(numbers, replicates, strict=True)
        failed |= {numbers[r]: step for r, step in replicates.failed.items()}
        errors.append(error)
    return Replicates(
        [fits[r] for r in sorted(fits)], dict(sorted(failed.items()))
    ), None if None in errors else errors[0]


class Stack:
    """Replicates that are trained together, before their first step.

    Args:
        problems: one per replicate, equal but for their tensors. Several replicates may share one, and then differ in data,
            noise and initial parameters alone.
        losses: one per replicate, from `loss_of` for its problem.
        data: one data set per replicate, of equal shapes; those of the problems if None.
        starts: initial values of the parameters, ``[R, ...]`` by name; those of the problems if None.

    Raises:
        ValueError: the replicates cannot be stacked, or differ in more than their tensors.

    Attributes:
        parameters: the trained parameters, ``[R, ...]`` by name.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        losses: Sequence[Loss],
        settings: Settings,
        data: Sequence[Dataset | Keywords] | None = None,
        starts: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.problems: Sequence[Problem] = problems
        self.losses: Sequence[Loss] = losses
        self.settings: Settings = settings
        self.batches = batches_of([problem.in_memory for problem in problems] if data is None else data, settings)
        _check_rates(losses, settings.lr)
        starts = starts or {
            name: torch.stack([loss.leaves[number].detach() for loss in losses])
            for number, name in enumerate(losses[0].parameters)
        }
        self.parameters: dict[str, Tensor] = {
            name: starts[name].clone().requires_grad_() for name in losses[0].parameters
        }
        self.optimizer = optimizer_of(self.parameters, settings.optimizer, settings.lr, stacked=True)
        constants = {id(problem): problem.tensors() for problem in {id(p): p for p in problems}.values()}
        leaves = list(self.parameters.values())
        self.loss: StackedLoss = StackedLoss(losses, leaves, [constants[id(problem)] for problem in problems])
        # All problems are compared at one shape of minibatch. At others, and of replicates that share a problem, which can
        # differ in data alone, the first two and the last are.
        last = len(losses) - 1
        first_of = {id(problem): r for r, problem in reversed(list(enumerate(problems)))}
        few = {0, min(1, last), last}
        samples: Sequence[Arguments] = self.batches.samples(settings.steps)
        for number, batch in enumerate(samples):
            self._verify(batch, sorted(few if number else few.union(first_of.values())))

    def loop(self) -> Loop:
        """The training before its first step. It does not change models and guides; `load` does."""
        settings = self.settings
        loop = Loop(
            self.parameters,
            self.batches,
            self.optimizer,
            settings,
            first=accelerate_stacked(self.loss, self.optimizer, [self.batches.first()], 1, engine="traced"),
            accelerate=self._faster,
            title=f"{len(self.problems)} x {describe(self.problems[0].guide).split('(')[0]}",
            replicates=(len(self.problems),),
        )
        loop.hint = self._all_failed
        if self.losses[0].objective.guesses:
            loop.ahead = functools.partial(self._guess, self.batches.first())
        return loop

    def _faster(self, done: int, steps: int) -> Engine:
        batches = self.batches.samples(None if self.settings.steps is None else self.settings.steps - done)
        return accelerate_stacked(self.loss, self.optimizer, batches, steps, engine=self.settings.engine)

    def train(self, seeds: Sequence[int], progress: bool | None) -> Trained:
        """Make all steps. Where no replicate has a finite loss, the losses of the steps that are not made are NaN."""
        settings, error = self.settings, None
        start = time.perf_counter()
        with seeded(seeds[0], settings.place):
            loop = self.loop()
            try:
                loop.run(progress)
            except FloatingPointError as failure:
                error = failure
                finite = torch.isfinite(loop.history[: loop.done, :, :2]).all(-1).any(1)
                loop.history[int(finite.long().cumprod(0).sum()) :] = torch.nan
                loop.done = len(loop.history)
        return self._replicates(loop, seeds, start, ended=True), error

    def load(self, replicate: int) -> None:
        """Give the results of one replicate to its model and guide, which other replicates may share."""
        with torch.no_grad():
            for leaf, values in zip(self.losses[replicate].leaves, self.parameters.values(), strict=True):
                leaf.copy_(values[replicate])
        self.losses[replicate].moving.take([buffer[replicate] for buffer in self.loss.buffers])

    def failed(self) -> dict[int, int]:
        """The number of the step, counted from 0, at which each failed replicate failed, by the replicate's number."""
        lived = self.loss.lived.tolist()
        return {r: lived[r] for r in (~self.loss.alive).nonzero().flatten().tolist()}

    def _replicates(self, loop: Loop, seeds: Sequence[int], start: float, *, ended: bool = False) -> Replicates:
        """All replicates, whose models and guides get the present parameters and buffers."""
        history, fits = loop.history[: loop.done].cpu(), []
        more = {"engine": loop.engine.name, "replicates": len(seeds), "seconds": time.perf_counter() - start}
        for r, (problem, seed) in enumerate(zip(self.problems, seeds, strict=True)):
            self.load(r)
            fits.append(
                Fit(
                    problem.model,
                    problem.guide,
                    problem.in_memory,
                    history[:, r].contiguous(),
                    {**record(self.settings, problem, seed), **more},
                    self.settings.place,
                    self.settings.objective,
                    problem.kept() if ended else None,
                )
            )
        return Replicates(fits, self.failed())

    def _all_failed(self) -> str:
        """Which replicate failed first, where no replicate has a finite loss."""
        failed = self.failed()
        first = min(failed, key=lambda replicate: failed[replicate], default=0)
        return (
            f"All {len(self.problems)} replicates failed, replicate {first} first; they keep their last finite parameters. "
            f"Replicate {first} alone is a fit with seed + {first}."
        )

    @contextmanager
    def _loaded(self, replicate: int) -> Iterator[None]:
        """Load a replicate within the block; its model and guide have their previous values afterwards."""
        loss = self.losses[replicate]
        state = [*loss.leaves, *loss.buffers]
        before = [value.detach().clone() for value in state]
        try:
            self.load(replicate)
            yield
        finally:
            with torch.no_grad():
                for value, old in zip(state, before, strict=True):
                    value.copy_(old)

    def _guess(self, batch: Arguments) -> None:
        """Call `Objective.guess` for every replicate, with its own parameters and buffers."""
        for r, loss in enumerate(self.losses):
            with self._loaded(r), torch.no_grad():
                loss.objective.guess(batch.at(r))
                for stacked, buffer in zip(self.loss.buffers, loss.buffers, strict=True):
                    stacked[r] = buffer

    def _verify(self, batch: Arguments, compared: Sequence[int]) -> None:
        """Raise a ValueError unless these replicates have the same losses and buffers alone and in the stacked graph."""
        try:
            terms, moved = self.loss.evaluated(batch, compared)
        except Exception as error:  # whatever an operation that cannot be mapped raises
            why = str(error) if isinstance(error, Untraceable) else f"it cannot be mapped over replicates: {error}"
            raise _refusal(why.splitlines()[0]) from error
        for r in compared:
            loss_alone, problem = self.losses[r], self.problems[r]
            still = put_back(problem.model, problem.guide)
            with self._loaded(r), torch.no_grad(), pyro.validation_enabled(False), seeded(r, batch.device), still:
                want = loss_alone.objective.terms(batch.at(r))
                buffers = [buffer.detach().clone() for buffer in loss_alone.buffers]
            if not torch.allclose(want.to(terms.dtype), terms[r], rtol=1e-3, atol=1e-4, equal_nan=True):
                raise ValueError(
                    f"replicate {r} differs from replicate 0 in more than replicates may: data, initial values, drop rates, "
                    f"alphas, precisions and scales of Gaussian priors; its loss alone is {want.tolist()}, stacked "
                    f"{terms[r].tolist()}"
                )
            if not all(near(value, got[r], 1e-3) for value, got in zip(buffers, moved, strict=True)):
                raise _refusal("many replicates update the buffers of the network differently from one")


def loss_of(problem: Problem, data: Dataset | Keywords, settings: Settings) -> Loss:
    """The loss of one replicate.

    Raises:
        ValueError: it cannot be traced, or not be trained on minibatches of this size.
    """
    first, *others = batches_of(data, settings).samples(settings.steps)
    loss = problem.loss(first, settings.objective)
    if loss.changes:
        raise _refusal(f"{loss.changes}, which a trace would freeze")
    problem.check_batches(loss, others)
    return loss


def fitting(loss: Loss, data: Dataset | Keywords, settings: Settings, memory: float | None) -> int:
    """How many replicates with this loss and data fit into memory, at least 1.

    Args:
        memory: bytes; half of the free memory if None.
    """
    batch = batches_of(data, settings).first()
    try:
        need = bytes_of_step(loss, batch)
    except Untraceable as error:
        raise _refusal(str(error)) from error
    inputs = batch.tensors if isinstance(data, Keywords) else parts(data.x)
    # of parameters also gradients and the optimiser's state
    need += sum(x.nbytes for x in inputs) + 5 * sum(leaf.nbytes for leaf in loss.leaves)
    return max(1, int(min(memory or 0.5 * available(settings.place), MOST) // need))


def _groups(
    problems: Sequence[Problem], losses: Sequence[Loss], settings: Settings, memory: float | None
) -> list[list[int]]:
    """The numbers of the replicates of every stack."""
    equal: dict[Any, list[int]] = {}
    for r, (problem, loss) in enumerate(zip(problems, losses, strict=True)):
        equal.setdefault(_shapes(problem, loss), []).append(r)
    groups = []
    for group in equal.values():
        first = group[0]
        size = fitting(losses[first], problems[first].in_memory, settings, memory)
        if size < len(group):
            _log.info("training %d of %d replicates at a time, limited by memory", size, len(group))
        groups += [group[at : at + size] for at in range(0, len(group), size)]
    return groups


def _shapes(problem: Problem, loss: Loss) -> tuple[Any, ...]:
    """What must be equal in replicates that are stacked: all but the values of tensors, as far as it is known."""
    names = {auto._pyro_name: f"autoguide {n}" for n, auto in enumerate(autoguides(problem.guide))}
    tensors = problem.tensors()
    for name, parameter in loss.parameters.items():
        first, dot, rest = name.partition(".")
        tensors[f"parameter {names.get(first, first)}{dot}{rest}"] = parameter.unconstrained
    tensors |= {f"moving buffer {n}": buffer for n, buffer in loss.moving.named().items()}
    shapes = [(name, value.shape, value.dtype) for name, value in sorted(tensors.items())]
    data = problem.in_memory
    columns = {} if isinstance(data, Keywords) else {**named_parts(data.x), "y": data.y}
    form = data.outline if isinstance(data, Keywords) else tuple((n, t.shape, t.dtype) for n, t in columns.items())
    return type(problem.model), type(problem.guide), *shapes, form


def _check_apart(losses: Sequence[Loss]) -> None:
    """Raise a ValueError for a parameter that several replicates would share."""
    seen: set[int] = set()
    for loss in losses:
        for name, parameter in loss.parameters.items():
            if id(parameter.unconstrained) in seen:
                raise ValueError(
                    f"every replicate needs parameters of its own, but {name} is in Pyro's global store, one for all: put "
                    "it into a PyroModule or take an autoguide, one for each replicate"
                )
        seen |= {id(leaf) for leaf in loss.leaves}


def _check_rates(losses: Sequence[Loss], lr: LearningRate) -> None:
    """Raise a ValueError if a function of a parameter's name gives replicates different learning rates."""
    if not callable(lr):
        return
    for r, loss in enumerate(losses):
        for name, other in zip(losses[0].parameters, loss.parameters, strict=True):
            if name != other and lr(name) != lr(other):  # autoguides have names of their own
                raise ValueError(
                    f"replicates have the same learning rates; lr is {lr(name)} for {name} of replicate 0 and "
                    f"{lr(other)} for {other} of replicate {r}"
                )


def _refusal(why: str) -> ValueError:
    return ValueError(
        f"replicates are trained as one traced step, which is impossible for this model and guide: {why}. Fit one by one"
    )
