"""Replicates that are trained together, as one step of stacked parameters (`pyrodrop.compiled.stacked`)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor

from pyrodrop.arguments import MOST
from pyrodrop.arrays import near
from pyrodrop.compiled import StackedLoss, Untraceable, accelerate_stacked, bytes_of_step
from pyrodrop.data import Dataset, Keywords
from pyrodrop.devices import available, seeded
from pyrodrop.inputs import named_parts, parts
from pyrodrop.module_states import undisturbed
from pyrodrop.steps import Arguments, Engine, Loss
from pyrodrop.training.autoguides import autoguides
from pyrodrop.training.fitted_replicates import Replicates
from pyrodrop.training.loop import Loop
from pyrodrop.training.minibatches import batches_of
from pyrodrop.training.optimizer import optimizer_of
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.record import record
from pyrodrop.training.result import Fit
from pyrodrop.training.settings import Settings
from pyrodrop.training.state import State

_log = logging.getLogger("pyrodrop")


class Stack:
    """Replicates that are trained together.

    Args:
        problems: one per replicate, equal but for their tensors. The same one may be given for several or all of them, which
            then differ in data, noise and the initial parameters that `loop` may be given.
        data: one data set per replicate, of equal shapes; those of the problems if None.
        losses: of the problems, by `loss_of`; computed if None.

    Raises:
        ValueError: the problems differ in more than their tensors, or cannot be traced.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        settings: Settings,
        data: Sequence[Dataset | Keywords] | None = None,
        losses: Sequence[Loss] | None = None,
    ) -> None:
        self.problems: Sequence[Problem] = problems
        self.settings: Settings = settings
        self.data: list[Dataset | Keywords] | Sequence[Dataset | Keywords] = (
            [problem.in_memory for problem in problems] if data is None else data
        )
        seen: dict[
            int, int
        ] = {}  # the first replicate with the same problem, for each: its own number where all differ
        self._first_of = [seen.setdefault(id(problem), r) for r, problem in enumerate(problems)]
        by_problem = {
            r: loss_of(problems[r], self.data[r], settings) if losses is None else losses[r]
            for r in sorted(set(self._first_of))
        }
        self.losses: list[Loss] = [by_problem[first] for first in self._first_of]
        held = {r: problems[r].tensors() for r in by_problem}
        self.held: list[dict[str, Tensor]] = [held[first] for first in self._first_of]

    def fitting(self, memory: float | None) -> int:
        """How many replicates like the first fit into memory, at least 1.

        Args:
            memory: bytes; half of the free memory if None.
        """
        data, loss = self.data[0], self.losses[0]
        batch = batches_of(data, self.settings).first()
        try:
            need = bytes_of_step(loss, batch)
        except Untraceable as error:
            raise _refusal(str(error)) from error
        need += sum(x.nbytes for x in (batch.tensors if isinstance(data, Keywords) else parts(data.x)))
        need += 5 * sum(leaf.nbytes for leaf in loss.leaves)  # parameters, their gradients and the optimiser's state
        return max(1, int(min(memory or 0.5 * available(self.settings.place), MOST) // need))

    def loop(self, starts: Mapping[str, Tensor] | None = None) -> Loop:
        """The training of all replicates before its first step.

        Args:
            starts: initial values of what is trained, ``[R, ...]`` by name; those of the problems if None.

        Raises:
            ValueError: the replicates cannot be stacked, or differ in more than their tensors.
        """
        settings, count = self.settings, len(self.problems)
        self.batches = batches_of(self.data, settings)
        starts = starts or {
            name: torch.stack([loss.leaves[number].detach() for loss in self.losses])
            for number, name in enumerate(self.losses[0].parameters)
        }
        self._check_rates()
        self.parameters: dict[str, Tensor] = {
            name: starts[name].clone().requires_grad_() for name in self.losses[0].parameters
        }
        optimizer = optimizer_of(self.parameters, settings.optimizer, settings.lr, stacked=True)
        self.loss: StackedLoss = StackedLoss(self.losses, list(self.parameters.values()), self.held)
        for batch in self.batches.samples(settings.steps):
            self._verify(self.loss, batch)
        loop = Loop(
            self.parameters,
            self.batches,
            optimizer,
            settings,
            first=accelerate_stacked(self.loss, optimizer, [self.batches.first()], 1, engine="traced"),
            accelerate=self._faster(optimizer),
            title=f"{count} x {describe(self.problems[0].guide).split('(')[0]}",
            replicates=(count,),
        )
        loop.hint = self._all_failed
        if self.losses[0].objective.guesses:
            loop.ahead = functools.partial(self._guess, self.batches.samples(settings.steps)[0])
        return loop

    def _faster(self, optimizer: torch.optim.Optimizer) -> Callable[[int, int], Engine]:
        def choose(done: int, steps: int) -> Engine:
            left = None if self.settings.steps is None else self.settings.steps - done
            batches = self.batches.samples(left)
            return accelerate_stacked(self.loss, optimizer, batches, steps, engine=self.settings.engine)

        return choose

    def replicates(self, loop: Loop, seeds: Sequence[int], seconds: float) -> Replicates:
        """All replicates, whose models and guides get the present parameters and buffers."""
        for r in range(len(self.losses)):
            self.load(r)
        history = loop.history[: loop.done].cpu()
        more = {"engine": loop.engine.name, "replicates": len(self.problems), "seconds": seconds}
        fits = [
            Fit(
                problem.model,
                problem.guide,
                problem.in_memory,
                history[:, r].contiguous(),
                {**self._records[r], "seed": seeds[r], **more},
                self.settings.place,
                self.settings.objective,
            )
            for r, problem in enumerate(self.problems)
        ]
        return Replicates(fits, self.failed())

    def forget(self) -> None:
        """Give the memory of `loop` back."""
        del self.loss, self.parameters, self.batches

    @functools.cached_property
    def _records(self) -> list[dict[str, Any]]:
        return [record(self.settings, problem, self.settings.seed) for problem in self.problems]

    def run(self, progress: bool | None, starts: Mapping[str, Tensor] | None = None) -> Loop:
        """Make all steps. `parameters` then has the results, stacked; models and guides do not change.

        Args:
            progress: whether to show a progress bar.
            starts: as in `loop`.
        """
        loop = self.loop(starts)
        loop.run(progress)
        return loop

    def failed(self) -> dict[int, int]:
        """The last step of every replicate that failed, by number."""
        lived = self.loss.lived.tolist()
        return {r: lived[r] for r in (~self.loss.alive).nonzero().flatten().tolist()}

    def _all_failed(self) -> str:
        """Which replicate failed first, where no replicate has a finite loss."""
        failed = self.failed()
        first = min(failed, key=lambda replicate: failed[replicate], default=0)
        return (
            f"All {len(self.problems)} replicates failed, replicate {first} first; they keep their last finite parameters. "
            f"Replicate {first} alone is a fit with seed + {first}."
        )

    def load(self, replicate: int) -> None:
        """Give the results of one replicate to its model and guide, which other replicates may share."""
        with torch.no_grad():
            for leaf, values in zip(self.losses[replicate].leaves, self.parameters.values(), strict=True):
                leaf.copy_(values[replicate])
        self.losses[replicate].moving.take([buffer[replicate] for buffer in self.loss.buffers])

    @contextmanager
    def _loaded(self, replicate: int) -> Iterator[None]:
        """Load a replicate for the time being."""
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
        """`Objective.guess` of every replicate, with its own buffers."""
        for r, loss in enumerate(self.losses):
            with self._loaded(r), torch.no_grad():
                loss.objective.guess(batch.at(r))
                for stacked, buffer in zip(self.loss.buffers, loss.buffers, strict=True):
                    stacked[r] = buffer

    def _check_rates(self) -> None:
        """Raise a ValueError if a function of a parameter's name gives replicates different learning rates."""
        lr = self.settings.lr
        if not callable(lr):
            return
        for r, loss in enumerate(self.losses):
            for name, other in zip(self.losses[0].parameters, loss.parameters, strict=True):
                if name != other and lr(name) != lr(other):  # autoguides have names of their own
                    raise ValueError(
                        f"replicates have the same learning rates; lr is {lr(name)} for {name} of replicate 0 and "
                        f"{lr(other)} for {other} of replicate {r}"
                    )

    def _verify(self, loss: StackedLoss, batch: Arguments) -> None:
        """Raise a ValueError unless every replicate has the same loss and buffers alone and in the stacked graph.

        Of replicates that share a problem, which can differ in data alone, the first two and the last are compared.
        """
        compared = sorted(set(self._first_of) | {min(1, len(self.losses) - 1), len(self.losses) - 1})
        try:
            graph = loss.graph(batch)
            noise = graph.shapes()
            for place in noise:
                place.zero_()
            for r in compared:
                with seeded(r, batch.device):
                    for place, drawn in zip(noise, graph.draw_alone(r), strict=True):
                        place[r] = drawn
            with torch.no_grad():
                controls = torch.ones(2).to(loss.leaves[0])
                inputs = (*loss.buffers, *batch.tensors, controls, *graph.constants, *noise)
                terms, *results = graph.module(*loss.leaves, *inputs)
        except Exception as error:  # whatever an operation that cannot be mapped raises
            words = str(error) if isinstance(error, Untraceable) else f"it cannot be mapped over replicates: {error}"
            raise _refusal(words.splitlines()[0]) from error
        moved = results[len(loss.leaves) :]
        for r in compared:
            loss_alone, problem = self.losses[r], self.problems[r]
            still = undisturbed(problem.model, problem.guide)
            with self._loaded(r), torch.no_grad(), pyro.validation_enabled(False), seeded(r, batch.device), still:
                want = loss_alone.objective.terms(batch.at(r))
                buffers = [buffer.detach().clone() for buffer in loss_alone.buffers]
            tolerance = 0.05 if self.settings.dtype is not None else 1e-3
            if not torch.allclose(want.to(terms.dtype), terms[r], rtol=tolerance, atol=1e-4, equal_nan=True):
                raise ValueError(
                    f"replicate {r} differs from replicate 0 in more than replicates may: data, initial values, drop rates, "
                    f"alphas, precisions and scales of Gaussian priors; its loss alone is {want.tolist()}, stacked "
                    f"{terms[r].tolist()}"
                )
            if not all(near(value, got[r], tolerance) for value, got in zip(buffers, moved, strict=True)):
                raise _refusal("many replicates update the buffers of the network differently from one")


class StackedState(State):
    """Reads and writes the state of a stack, with a leading axis ``[R, ...]`` on everything that replicates have.

    That is the state of a loop, and which replicates have not failed.
    """

    def __init__(self, stack: Stack, loop: Loop) -> None:
        super().__init__(loop, self._buffers)
        self._stack = stack

    def _buffers(self) -> Mapping[str, Tensor]:
        loss = self._stack.loss
        moving = dict(zip(self._stack.losses[0].moving.places, loss.buffers, strict=True))
        return moving | {"replicates.alive": loss.alive, "replicates.lived": loss.lived}


def loss_of(problem: Problem, data: Dataset | Keywords, settings: Settings) -> Loss:
    """The loss of one replicate.

    Raises:
        ValueError: it cannot be traced, or not be trained on minibatches of this size.
    """
    batches = batches_of(data, settings)
    loss = problem.loss(batches.first(), settings.dtype, settings.objective)
    if loss.changes:
        raise _refusal(f"{loss.changes}, which a trace would freeze")
    problem.check_batches(loss, batches.samples(settings.steps)[1:])
    return loss


def shapes_of(problem: Problem, loss: Loss) -> tuple[Any, ...]:
    """What must be equal in replicates that are stacked: classes of model and guide, shapes and dtypes of all tensors."""
    names = {auto._pyro_name: f"autoguide {n}" for n, auto in enumerate(autoguides(problem.guide))}
    tensors = problem.tensors()
    for name, parameter in loss.parameters.items():
        first, dot, rest = name.partition(".")
        tensors[f"parameter {names.get(first, first)}{dot}{rest}"] = parameter.unconstrained
    tensors |= {f"moving buffer {n}": buffer for n, buffer in loss.moving.named().items()}
    shapes = [(name, value.shape, str(value.dtype)) for name, value in sorted(tensors.items())]
    return type(problem.model), type(problem.guide), *shapes, form_of(problem.in_memory)


def form_of(data: Dataset | Keywords) -> str:
    """What must be equal in the data of replicates that are stacked: all but the values of tensors."""
    if isinstance(data, Keywords):
        return data.outline
    return str([(name, list(own.shape), own.dtype) for name, own in {**named_parts(data.x), "y": data.y}.items()])


def _refusal(why: str) -> ValueError:
    return ValueError(
        f"replicates are trained as one traced step, which is impossible for this model and guide: {why}. Fit one by one"
    )
