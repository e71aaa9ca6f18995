"""The arguments of a step: the rows of a minibatch, or the arguments of a Pyro program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrodrop.inputs import Inputs, mapped, over_tensors, parts, rebuilt, tensors_in

Shapes = tuple[torch.Size, ...]


class Batch(NamedTuple):
    """Rows of a data set: x, y, and in `kwargs` its size ``num_data``, if the likelihood is to be scaled to it."""

    x: Inputs
    y: Tensor
    kwargs: dict[str, int]

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments of model and guide."""
        return self.x, self.y

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of x and y, in the order in which graphs take them."""
        return [*parts(self.x), self.y]

    @property
    def shapes(self) -> Shapes:
        """The shapes of `tensors`; engines have one graph for each value."""
        return tuple(tensor.shape for tensor in self.tensors)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.y)

    @property
    def whole(self) -> bool:
        """Whether every step has these arguments."""
        return not self.kwargs

    @property
    def device(self) -> torch.device:
        return self.y.device

    def filled(self, tensors: Sequence[Tensor]) -> Batch:
        """The same arguments with other tensors."""
        *xs, y = tensors
        return Batch(rebuilt(self.x, xs), y, self.kwargs)

    def at(self, index: int | slice) -> Batch:
        """Every tensor at an index of its first axis: the batch of a replicate, or a part of the rows."""
        return Batch(mapped(lambda tensor: tensor[index], self.x), self.y[index], self.kwargs)


class Call(NamedTuple):
    """The arguments of a Pyro program, the same at every step; tensors may be within tuples, lists and dictionaries."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def rows(self) -> int:
        """1, in place of a number of rows."""
        return 1

    @property
    def whole(self) -> bool:
        """True: every step has these arguments."""
        return True

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors, in the order in which graphs take them."""
        return tensors_in((self.args, self.kwargs))

    @property
    def shapes(self) -> Shapes:
        """The shapes of `tensors`."""
        return tuple(tensor.shape for tensor in self.tensors)

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self.tensors), torch.device("cpu"))

    def filled(self, tensors: Sequence[Tensor]) -> Call:
        """The same arguments with other tensors."""
        given = iter(tensors)
        return self._mapped(lambda _: next(given))

    def at(self, index: int | slice) -> Call:
        """Every tensor at an index of its first axis: the arguments of a replicate."""
        return self._mapped(lambda tensor: tensor[index])

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> Call:
        return Call(*over_tensors(function, (self.args, self.kwargs)))


Arguments = Batch | Call
