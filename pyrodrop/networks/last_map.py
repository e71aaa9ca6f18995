"""The last linear map of a network: whether weights are used in it alone, and the network returns its output unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyrodrop.checks import tensors_in
from pyrodrop.reparam.lazy import LazyWeight

_TENSOR: Any = Tensor
_UNVERSIONED = {_TENSOR.data.__get__, _TENSOR.numpy, _TENSOR.data_ptr, _TENSOR.untyped_storage, _TENSOR.__array__}


class Use(NamedTuple):
    """A call of PyTorch, and the version of its result at its end; None under inference mode, which has no versions."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    version: int | None

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
        self._accessed = False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        arguments = tensors_in((args, kwargs))
        if self.weights is None:
            used = func is F.linear
        else:
            used = any(id(leaf) in self.weights or isinstance(leaf, LazyWeight) for leaf in arguments)
        if used and isinstance(result, Tensor | float | list | np.ndarray) and not isinstance(result, LazyWeight):
            version = result._version if isinstance(result, Tensor) and not result.is_inference() else None
            self.last = Use(func, args, kwargs, result, version)
            self.first, self._accessed = self.first or self.last, False
        elif func in _UNVERSIONED and self.last and any(leaf is self.last.result for leaf in arguments):
            self._accessed = True
        return result

    def changed(self) -> bool:
        """Whether the result of the last use was changed in place, or its memory accessed, afterwards."""
        use = self.last
        if use is None or self._accessed:
            return use is not None
        return isinstance(use.result, Tensor) and use.version is not None and use.result._version != use.version


def _of_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias
