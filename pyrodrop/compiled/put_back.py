"""Undo the side effects of a program, since a recording calls it several times where a step calls it once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.compiled.writes import written
from pyrodrop.inputs import tensors_in
from pyrodrop.module_states import undisturbed
from pyrodrop.private_apis import StoreAsItIs, intercepted


@contextmanager
def put_back(*parts: Any) -> Iterator[Callable[[], list[str]]]:
    """Undo the side effects of the block, in which these models and guides are called.

    Restored are buffers and attributes of modules (`undisturbed`), all tensors that are written to in place, parameters of
    Pyro's store that are replaced, and the generators of Python and NumPy. Yields a function that returns the names of the
    parameters that have been replaced.
    """
    generators = random.getstate(), np.random.get_state()
    store, writes = StoreAsItIs(), _Writes()
    try:
        with undisturbed(*parts), intercepted(writes.call):
            yield store.replaced
    finally:
        writes.undo()
        store.restore()
        random.setstate(generators[0])
        np.random.set_state(generators[1])


class _Writes:
    """Copies every tensor from before the block when an operation first writes to it."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()  # memory that operations of the block have made

    def call(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Make an operation."""
        for tensor in written(operation, args, kwargs):
            memory = _memory(tensor) if isinstance(tensor, Tensor) else 0
            if memory and memory not in self._made and memory not in self._copies:
                self._copies[memory] = (whole := _whole(tensor), whole.clone())
        result = operation(*args, **kwargs)
        given = {_memory(tensor) for tensor in tensors_in((args, kwargs))}
        self._made |= {memory for tensor in tensors_in(result) if (memory := _memory(tensor)) not in given}
        return result

    def undo(self) -> None:
        """Restore the values of these tensors."""
        for tensor, copy in self._copies.values():
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                if not torch.equal(tensor, copy):
                    tensor.copy_(copy)


def _memory(tensor: Tensor) -> int:
    """The address of a tensor's memory; 0 for layouts other than strided."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _whole(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor is a view of."""
    detached = tensor.detach()
    return detached.as_strided((detached.untyped_storage().nbytes() // detached.itemsize,), (1,), 0)
