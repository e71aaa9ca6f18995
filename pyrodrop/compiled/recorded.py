"""A loss with the programs of its gradient, and whether they compute what Pyro does.

    (parameters, buffers, tensors of the arguments, weight) -> ([nll, kl], gradients of the loss, buffers)

    loss = nll + weight kl(weights) + kl(hyperparameters)

Pyro runs its handlers at every step. Here they run once for each shape of minibatch, and the tensor operations are recorded.
Parameters are recognised wherever Pyro, a module or a guide finds them. Buffers that a call updates (running statistics) are
inputs and results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyrodrop.arrays import near
from pyrodrop.changes import Contents, has_hooks, put_back
from pyrodrop.checks import first_line
from pyrodrop.compiled.program import Program, pure
from pyrodrop.compiled.record import Untraceable
from pyrodrop.devices import seeded
from pyrodrop.private_apis import costs_weighted, without_nan_warnings
from pyrodrop.steps import Arguments, Loss, Shapes

UNSEEN = "its recording gives other numbers than Pyro does: something changes between calls that is no tensor"


class Results(NamedTuple):
    """The results of a step.

    Attributes:
        terms: nll and kl, ``[2]``.
        gradients: the gradient of every parameter.
        buffers: the buffers after the step.
    """

    terms: Tensor
    gradients: Sequence[Tensor]
    buffers: Sequence[Tensor] = ()


class Recorded:
    """A loss and the programs of its gradient, one for each shape of minibatch, which stay with the loss.

    Args:
        loss: the loss.
        programs: what model and guide are made of, if changes of all that their code reads are to be found.

    Attributes:
        compared: number of the last step that was compared with Pyro's.
    """

    def __init__(self, loss: Loss, programs: Sequence[Any] = ()) -> None:
        self.loss: Loss = loss
        self.compared: int = 0
        self._programs: dict[Shapes, Program | str] = loss.recordings  # or why there is none
        self._read = programs
        self.look()

    def look(self) -> None:
        """Note what the programs read, with which `changed` compares."""
        self._contents = Contents(*self._read) if self._read else None

    def changed(self) -> str:
        """What has changed since, for a message; empty if nothing has."""
        return "" if self._contents is None else self._contents.changed()

    def error(self, unlike: str) -> RuntimeError:
        """The error after recorded steps of which a result, as `differs` returns it, is not Pyro's."""
        return RuntimeError(
            f"{unlike} of the recorded steps is not Pyro's: model and guide must depend only on their arguments, "
            "parameters, and what their code names in attributes and variables; something else that they read has "
            f"changed since step {self.compared}, and the steps since then may be wrong. Pass it as a tensor among the "
            "arguments, or use engine='pyro'"
        )

    @property
    def leaves(self) -> list[Tensor]:
        """The unconstrained parameters that require a gradient now."""
        return self.loss.leaves

    @property
    def buffers(self) -> list[Tensor]:
        """The present values of the buffers that a step updates, by reference."""
        return self.loss.buffers

    def refresh(self) -> bool:
        """Update all programs to the present tensors of model and guide. Returns whether these have changed."""
        return any([each.refresh() for each in self._programs.values() if isinstance(each, Program)])  # noqa: C419  all

    def forget(self) -> None:
        """Drop all programs, so that the next are recorded anew."""
        self._programs.clear()

    def program(self, batch: Arguments) -> Program:
        """The gradient for minibatches of this shape, recorded at the first request. Model and guide do not change.

        Raises:
            Untraceable: model or guide does something that depends on the values of tensors, draws random numbers outside
                torch, changes Python attributes, or updates tensors that are not buffers of a module; the program gives
                other numbers than Pyro; a parameter has a hook; the loss is traced by `torch.jit`.
        """
        if self.loss.changes:
            raise Untraceable(f"{self.loss.changes}, which a trace would freeze")
        if any(map(has_hooks, self.leaves)):
            raise Untraceable("a parameter has a hook")
        if batch.shapes not in self._programs:
            try:
                self._programs[batch.shapes] = self._record(batch)
            except Untraceable as error:
                self._programs[batch.shapes] = str(error)
        program = self._programs[batch.shapes]
        if isinstance(program, str):
            raise Untraceable(program)
        return program

    def _record(self, batch: Arguments) -> Program:
        objective, moving, leaves = self.loss.objective, self.loss.moving, self.leaves
        if objective.jitted:
            raise Untraceable("torch.jit traces the loss object itself")
        first = len(leaves) + len(moving)

        def gradient(*tensors: Tensor) -> list[Tensor]:  # Pyro finds the parameters by itself
            buffers, (*rows, weight) = tensors[len(leaves) : first], tensors[first:]
            with (
                moving.replaced([buffer.clone() for buffer in buffers]) as moved,
                without_nan_warnings(),
                costs_weighted(),
            ):
                terms, gradients = objective.gradients(batch.filled(rows), weight, leaves)
                after = [buffer.detach() for buffer in moved()]
            return [terms, *gradients, *after]

        program = pure(gradient, [*leaves, *self.inputs(batch)[len(leaves) :]], moving.parts)
        with put_back():
            unlike = self._difference(program, batch)
        if unlike:
            raise Untraceable(UNSEEN)
        return program

    def differs(self, batch: Arguments) -> str:
        """The first result for such minibatches that differs from Pyro's, as `difference`; empty if none does."""
        program = self._programs.get(batch.shapes)
        return self._difference(program, batch) if isinstance(program, Program) else ""

    def _difference(self, program: Program, batch: Arguments) -> str:
        """Compare loss, all gradients and the buffers with Pyro's for the same random numbers, for up to three seeds.

        Rounding may carry a value over the kink of a ReLU or a tie of a maximum, but not at the same place for other noise,
        while a wrong program stays wrong.
        """
        names, unlike = list(self.loss.trained), ""
        for seed in (1, 2, 3):
            with pyro.validation_enabled(False), seeded(seed, batch.device), put_back(*self.loss.moving.parts):
                terms, gradients = self.loss.objective.gradients(batch, self.inputs(batch)[-1], self.leaves)
                wanted = Results(terms, gradients, [buffer.detach().clone() for buffer in self.buffers])
            with seeded(seed, batch.device):
                try:
                    ours = self.results(program, batch)
                except Exception as error:  # such as a gradient that needs something a trace does not have
                    raise Untraceable(f"its trace cannot be replayed: {first_line(error)}") from error
            unlike = difference(wanted, ours, names, program.entries)
            if not unlike:
                break
        return unlike

    def results(self, program: Program, batch: Arguments) -> Results:
        """The results of a program for minibatches of its shape."""
        terms, *results = program(*self.inputs(batch))
        count = len(self.leaves)
        return Results(terms, results[:count], results[count:])

    def inputs(self, batch: Arguments) -> list[Tensor]:
        """The inputs of a program: parameters, buffers, the tensors of the arguments, and the weight 1."""
        leaves = [leaf.detach() for leaf in self.leaves]
        return [*leaves, *self.buffers, *batch.tensors, leaves[0].new_ones(())]


def is_due(step: int) -> bool:
    """Whether recorded steps are compared with Pyro's at this one: at 1, 2, 4, ... and every 1,000th."""
    return step & (step - 1) == 0 or step % 1000 == 0


def difference(wanted: Results, ours: Results, names: Sequence[str], entries: int) -> str:
    """The first result that differs by more than rounding, such as ``the gradient of NAME``; empty if all agree.

    Gradients are compared relative to their largest entry, or to a thousandth of the largest entry of all gradients if that
    is more, since a gradient may be 0 up to rounding, such as that of the key bias of attention.

    Args:
        names: names of the parameters.
        entries: the number of entries of the results of all operations. The loss is compared relative to a ten-thousandth of
            it if that is more, since a sum of log densities may be 0 up to rounding.
    """
    tolerance = 1e-7 if wanted.gradients[0].dtype == torch.float64 else 1e-3
    if not near(wanted.terms.to(ours.terms.dtype), ours.terms, tolerance, 1e-4 * entries):
        return "the loss"
    sizes = [float(gradient.abs().max()) for gradient in wanted.gradients if gradient.numel()]
    least = 1e-3 * max((size for size in sizes if math.isfinite(size)), default=0.0)
    for name, want, got in zip(names, wanted.gradients, ours.gradients, strict=True):
        if not near(want.to(got.dtype), got, tolerance, least):
            return f"the gradient of {name}"
    pairs = zip(wanted.buffers, ours.buffers, strict=True)
    return "" if all(near(want.to(got.dtype), got, tolerance) for want, got in pairs) else "a buffer"
