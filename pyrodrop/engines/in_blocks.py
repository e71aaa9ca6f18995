"""The compiled step on a CPU, called with as little work around it as there can be.

In a step of a small network the arithmetic takes less time than what Python does around it. Here

    the program       is one C++ function, where TorchInductor can make it, called without PyTorch's checks of every call
    rows and noise    of several consecutive steps are fetched and drawn at once, into memory that the program then reads

A block of steps lies within one order of the rows. After it, the random state and the place in the epoch are those of
as many single steps, so whatever looks at the training between two blocks sees no difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from pyrodrop.engines.compiled import Compiled, any_number
from pyrodrop.engines.graph import Batch, Shapes
from pyrodrop.engines.noise_ahead import NoiseAhead, spaced
from pyrodrop.engines.untraceable import Untraceable
from pyrodrop.private_apis import Program

_log = logging.getLogger("pyrodrop")

# Options of TorchInductor. For bfloat16 it may make a program that reads a buffer before there is one (2.13, a LeNet with
# noise on its activations): in Python that is an error, and another engine trains; in C++ the process crashes.
NATIVE = {"cpp_wrapper": True, "size_asserts": False}
_BYTES = 2**20  # of rows and noise of a block: what stays in a core's own cache
_STEPS = 100  # of a block

Call = Callable[[list[Tensor]], Sequence[Tensor]]


class Rows(Protocol):
    """Minibatches of which several can be taken at once."""

    order: Tensor
    position: int

    def next(self) -> Batch: ...

    def coming(self) -> tuple[int, int]:
        """The size of the next minibatch, and how many of that size follow before the order of the rows changes."""

    def fill(self, places: Sequence[Tensor], count: int) -> None:
        """Take the next `count` minibatches, of one size, into tensors ``[>= count, size, ...]``, of x and y each."""


class InBlocks(Compiled):
    """Makes the steps of one fit on a CPU, several per call of `block` or one per call of `step`, with the same bits."""

    def __init__(self, loss: Any, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(loss, optimizer)
        self._ahead: dict[int, _Ahead] = {}
        self._calls: dict[Shapes, Call] = {}
        self._strides: dict[Shapes, list[tuple[int, ...]]] = {}

    def prepare(self, batch: Batch) -> None:
        if batch.shapes in self._programs:
            return
        super().prepare(batch)
        graph, program = self._programs[batch.shapes]
        self._strides[batch.shapes] = [tensor.stride() for tensor in batch.tensors]
        noise = [torch.full_like(n, any_number(n)) for n in graph.shapes()]
        rest = [*batch.tensors, self._controls_like(), *graph.constants, *noise]
        call = self._calls[batch.shapes] = bare_call(program, self._held, rest)  # type: ignore[arg-type]
        if all(tensor.is_contiguous() for tensor in batch.tensors):
            self._ahead[len(batch.y)] = _Ahead(call, self._held, batch, graph, len(self._controls_like()))

    def step(self, batch: Batch, index: int) -> Tensor:
        self.prepare(batch)
        shapes, tensors = batch.shapes, batch.tensors
        strides = [tensor.stride() for tensor in tensors]
        if strides != self._strides[shapes]:
            raise RuntimeError(f"the program takes tensors with strides {self._strides[shapes]}; got {strides}")
        graph, _ = self._programs[shapes]
        inputs = [*self._held, *tensors, self._controls[index], *graph.constants, *graph.draw()]
        with torch.no_grad():
            terms = self._calls[shapes](inputs)[0]
        torch.autograd.graph.increment_version(self._held)
        return terms

    def block(self, batches: Rows, index: int, most: int, made: list[Tensor]) -> None:
        """Make the step of this index and as many after it as a block has, at most `most`.

        Args:
            batches: gives the minibatches.
            index: of the first step in the plan.
            most: the largest number of steps.
            made: gets nll and kl of every step, ``[2]``, also of those before an error.
        """
        size, follow = batches.coming()
        ahead = self._ahead.get(size)
        count = 1 if ahead is None else min(most, follow, ahead.steps)
        if ahead is None or count == 1:
            made.append(self.step(batches.next(), index))
            return
        before = batches.order, batches.position, torch.get_rng_state()
        first = len(made)
        try:
            with torch.no_grad():
                ahead.fill(batches, count, self._numbers[index : index + count])
                ahead.run(count, made)
        except BaseException:  # also an interruption: what follows must find the state after the steps that were made
            batches.order, batches.position = before[:2]
            torch.set_rng_state(before[2])
            if len(made) > first:
                ahead.fill(batches, len(made) - first, self._numbers[index : index + len(made) - first])
            raise
        finally:
            torch.autograd.graph.increment_version(self._held)

    def _program(self, batch: Batch) -> tuple[Any, Callable[..., Any]]:
        if self.loss.precision is None:  # under autocast, see `NATIVE`
            self.options = NATIVE  # type: ignore[misc]
            try:
                return super()._program(batch)
            except Untraceable as error:
                _log.info("the compiled step is called from Python, which is slower: as a C++ function, %s", error)
        self.options = {}  # type: ignore[misc]
        return super()._program(batch)

    def _controls_like(self) -> Tensor:
        return torch.ones(2 + sum(rule.numbers for rule in self.rules)).to(self._held[0])


def bare_call(program: Program, held: Sequence[Tensor], rest: Sequence[Tensor]) -> Call:
    """The bare program, if it moves copies as the whole program does, else the whole one.

    Args:
        program: of a step.
        held: what it updates.
        rest: its other inputs.
    """

    def whole(inputs: list[Tensor]) -> Sequence[Tensor]:
        return program.whole(*inputs)

    if program.bare is None:
        return whole
    with torch.no_grad():
        want, got = ([tensor.clone() for tensor in held] for _ in range(2))
        want += whole([*want, *rest])
        try:
            got += program.bare([*got, *rest])
        except Exception:
            return whole
    return program.bare if all(_same(a, b) for a, b in zip(want, got, strict=True)) else whole


class _Ahead:
    """The inputs of several consecutive steps with minibatches of one shape.

    Args:
        call: makes a step.
        held: what the steps update.
        batch: one minibatch.
        graph: of the gradient.
        numbers: of numbers that control a step.
    """

    def __init__(self, call: Call, held: list[Tensor], batch: Batch, graph: Any, numbers: int) -> None:
        self.call, whole = call, not batch.kwargs
        tensors = [] if whole else batch.tensors
        size = sum(tensor.nbytes for tensor in (*tensors, *graph.shapes()))
        self.steps = max(1, min(_STEPS, _BYTES // max(1, size)))
        steps = self.steps if self.steps > 1 else 0
        self.places = [spaced(tensor, steps) for tensor in tensors]
        self.controls = held[0].new_empty(steps, numbers)
        self.noise = NoiseAhead(graph.noise, steps)
        rows = zip(*(place.unbind(0) for place in self.places), strict=True) if tensors else [batch.tensors] * steps
        self.inputs = [
            [*held, *own, controls, *graph.constants, *noise]
            for own, controls, noise in zip(rows, self.controls.unbind(0), self.noise.inputs, strict=True)
        ]

    def fill(self, batches: Rows, count: int, controls: Tensor) -> None:
        """Take minibatches and draw noise for the next `count` steps."""
        batches.fill(self.places, count)
        self.controls[:count] = controls
        self.noise.draw(count)

    def run(self, count: int, made: list[Tensor]) -> None:
        """Make the steps."""
        for inputs in self.inputs[:count]:
            made.append(self.call(list(inputs))[0])


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())
