"""The compiled step on a CPU: one C++ function, called without PyTorch's checks of every call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrodrop.engines.compiled import Compiled, any_number
from pyrodrop.engines.engine import Plan
from pyrodrop.engines.graph import Batch, Shapes
from pyrodrop.engines.in_blocks import InBlocks
from pyrodrop.engines.untraceable import Untraceable
from pyrodrop.private_apis import Program

_log = logging.getLogger("pyrodrop")

# Options of TorchInductor. For bfloat16 it may make a program that reads a buffer before there is one (2.13, a LeNet with
# noise on its activations): in Python that is an error, and another engine trains; in C++ the process crashes.
# Compiling PyTorch's headers ahead takes as long as six programs that do without.
NATIVE = {"cpp_wrapper": True, "size_asserts": False, "cpp_cache_precompile_headers": False}

Call = Callable[[list[Tensor]], Sequence[Tensor]]


class Native(Compiled, InBlocks):
    """Makes the steps of one fit by a compiled program on a CPU.

    Args:
        loss: to minimise; its graphs are compiled.
        optimizer: of the loss's parameters.

    Raises:
        Untraceable: the optimiser has no rule (`pyrodrop.engines.optimizers`).
    """

    def __init__(self, loss: Any, optimizer: torch.optim.Optimizer) -> None:
        Compiled.__init__(self, loss, optimizer)
        InBlocks.__init__(self, loss)
        self._calls: dict[Shapes, tuple[Call, list[Tensor]]] = {}
        self._strides: dict[Shapes, list[tuple[int, ...]]] = {}

    def prepare(self, batch: Batch) -> None:
        if batch.shapes in self._programs:
            return
        super().prepare(batch)
        graph, program = self._programs[batch.shapes]
        self._strides[batch.shapes] = [tensor.stride() for tensor in batch.tensors]
        noise = [torch.full_like(n, any_number(n)) for n in graph.shapes()]
        controls = torch.ones(2 + sum(rule.numbers for rule in self.rules)).to(self._held[0])
        call = bare_call(program, self._held, [*batch.tensors, controls, *graph.constants, *noise])  # type: ignore[arg-type]
        self._calls[batch.shapes] = call, graph.constants
        self.look_ahead(batch)

    def begin(self, plan: Plan) -> None:
        InBlocks.begin(self, plan)
        Compiled.begin(self, plan)

    def step(self, batch: Batch, index: int) -> Tensor:
        self.prepare(batch)
        shapes, tensors = batch.shapes, batch.tensors
        strides = [tensor.stride() for tensor in tensors]
        if strides != self._strides[shapes]:
            raise RuntimeError(f"the program takes tensors with strides {self._strides[shapes]}; got {strides}")
        with torch.no_grad():
            terms = self.make(shapes, tensors, self._programs[shapes][0].draw(), index)
        torch.autograd.graph.increment_version(self._held)
        return terms

    def make(self, shapes: Shapes, rows: Sequence[Tensor], noise: Sequence[Tensor], index: int) -> Tensor:
        call, constants = self._calls[shapes]
        return call([*self._held, *rows, self._controls[index], *constants, *noise])[0]

    def changed(self) -> list[Tensor]:
        return self._held

    def _program(self, batch: Batch) -> tuple[Any, Callable[..., Any]]:
        if self.loss.precision is None:  # under autocast, see `NATIVE`
            self.options = NATIVE  # type: ignore[misc]
            try:
                return super()._program(batch)
            except Untraceable as error:
                _log.info("the compiled step is called from Python, which is slower: as a C++ function, %s", error)
        self.options = {}  # type: ignore[misc]
        return super()._program(batch)


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


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())
