"""Masks that a network makes from uniform random numbers, as the stochastic depth of many networks does.

    torch.floor(torch.rand(shape) + keep)      zeros and ones with P(1) = keep
    torch.rand_like(x) < keep                  booleans with P(True) = keep; the rarer value drops

`UniformNumbers` stands for the numbers until they are rounded or compared with a number. The result is a mask from outside,
see `DropoutCalls`. Any other use raises a ValueError, since the numbers have no values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pyrodrop.private_apis import without_values

Ask = Callable[[Tensor, float], Tensor]  # returns a mask, from a tensor of its shape and the probability of a one


class UniformNumbers(Tensor):
    """Uniform numbers plus a number, without values.

    Attributes:
        plain, ask, offset: a tensor of the same shape, dtype and device; the function for masks; the number added.
        mask: the mask, after an operation that rounds in place; None before.
    """

    plain: Tensor
    ask: Ask
    offset: float
    mask: Tensor | None

    @staticmethod
    def like(values: Tensor, ask: Ask, offset: float = 0.0) -> UniformNumbers:
        """Numbers of the shape, dtype and device of `values`."""
        numbers: UniformNumbers = without_values(UniformNumbers, values.shape, values)
        numbers.plain, numbers.ask, numbers.offset, numbers.mask = values, ask, offset, None
        return numbers

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", str(func)), kwargs or {}
        numbers = next((arg for arg in args if isinstance(arg, UniformNumbers)), None)
        if numbers is not None and (numbers.mask is not None or name in _SAME | _SEEN):
            plain = numbers.plain if numbers.mask is None else numbers.mask
            result = func(*(plain if arg is numbers else arg for arg in args), **kwargs)
            if numbers.mask is not None or not isinstance(result, Tensor):
                return result
            if name in _SAME:
                return cls.like(result, numbers.ask, numbers.offset)
        other = next((arg for arg in args if isinstance(arg, int | float)), None)
        if numbers is None or kwargs or len(args) != 1 + (other is not None):
            pass
        elif name in _SUMS and other is not None:
            if name in ("add_", "__iadd__"):
                numbers.offset += other
                return numbers
            return cls.like(numbers.plain, numbers.ask, numbers.offset + other)
        elif name in ("floor", "floor_") and 0 < numbers.offset < 1:
            mask = numbers.ask(numbers.plain, numbers.offset)
            if name == "floor":
                return mask
            numbers.mask = mask
            return numbers
        elif (
            name in _BELOW | _ABOVE
            and other is not None
            and numbers is args[0]
            and 0 < other < 1
            and not numbers.offset
        ):
            true = other if name in _BELOW else 1 - other
            return (
                numbers.ask(numbers.plain, true) >= 0.5 if true >= 0.5 else numbers.ask(numbers.plain, 1 - true) < 0.5
            )
        raise ValueError(
            f"the network draws uniform random numbers and calls {name} with them, which makes no dropout mask that can be "
            "read: masks are torch.floor(torch.rand(shape) + keep_rate) or torch.rand(shape) < keep_rate, with one rate"
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} got uniform random numbers that have no values")


_SUMS = {"add", "__add__", "__radd__", "add_", "__iadd__"}
_BELOW, _ABOVE = {"lt", "__lt__", "le", "__le__"}, {"gt", "__gt__", "ge", "__ge__"}
_SAME = {"to", "type", "float", "double", "view", "reshape", "unsqueeze", "type_as", "contiguous", "clone", "detach"}
_SEEN = {"__get__", "size", "dim", "numel", "__len__", "is_floating_point", "ndimension", "element_size"}
