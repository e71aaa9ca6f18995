"""A compiled step as one CUDA graph, whose kernels are recorded once and launched by one call.

A step of a small network runs dozens of kernels of a few microseconds each, and launching them one by one takes longer than
running them. A graph reads and writes the memory that it was recorded with: the inputs of each step are copied there;
parameters, optimiser state and constants are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

Call = Callable[[], Sequence[Tensor]]
_WARM_UP = 3  # calls before recording, in which libraries choose algorithms and allocate


class Captured:
    """A program that is recorded once and replayed at every call.

    Args:
        program: a function of all inputs; may update some of them in place.
        inputs: one set of inputs. Those that are not new at every call are used in place.
        fresh: positions of the inputs that are new at each call, or may change elsewhere, as on the CPU. They are copied
            where they are another tensor than at the call before, or have changed.
        record: a function from a call without arguments to its replay and the tensors of its results.
    """

    def __init__(
        self,
        program: Callable[..., Sequence[Tensor]],
        inputs: Sequence[Tensor],
        fresh: Collection[int],
        record: Callable[[Call], tuple[Callable[[], None], Sequence[Tensor]]] | None = None,
    ) -> None:
        before = [value.clone() for value in inputs]
        self._fresh = {position: inputs[position].clone() for position in fresh}
        self._copied: dict[int, tuple[Tensor, int]] = {}  # by position, with its version
        held = [self._fresh.get(position, value) for position, value in enumerate(inputs)]
        self._replay, self._results = (record or cuda_graph)(lambda: program(*held))
        for value, old in zip(inputs, before, strict=True):  # recording has run steps
            value.copy_(old)

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The results, in tensors that the next call overwrites."""
        for position, place in self._fresh.items():
            given, (before, version) = inputs[position], self._copied.get(position, (place, 0))
            if given is not before or given.is_inference() or given._version != version:
                place.copy_(given, non_blocking=True)
                self._copied[position] = given, 0 if given.is_inference() else given._version
        self._replay()
        return self._results


def cuda_graph(call: Call) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """Record the kernels of a call on the current device."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph.replay, results
