"""The last linear map of a network, and the first and last uses of some weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyrodrop.checks import tensors_in
from pyrodrop.reparam.lazy import LazyWeight


class Use(NamedTuple):
    """A call of PyTorch."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    def linear(self) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Input, weight and bias if this is `torch.nn.functional.linear`."""
        return _of_linear(*self.args, **self.kwargs) if self.function is F.linear else None


class LastMap(TorchFunctionMode):
    """Records the first and the last call within the block that uses one of some weights, or a lazy weight.

    Args:
        weights: the weights; None for every call of `torch.nn.functional.linear`.
    """

    def __init__(self, weights: Iterable[Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights: set[int] | None = None if weights is None else {id(weight) for weight in weights}
        self.first: Use | None = None
        self.last: Use | None = None

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        arguments = tensors_in((args, kwargs))
        if self.weights is None:
            used = func is F.linear
        else:
            used = any(id(leaf) in self.weights or isinstance(leaf, LazyWeight) for leaf in arguments)
        if used and isinstance(result, Tensor | float | list | np.ndarray) and not isinstance(result, LazyWeight):
            self.last = Use(func, args, kwargs, result)
            self.first = self.first or self.last
        return result


def _of_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias
