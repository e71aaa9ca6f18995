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
        fresh: positions of the inputs that are new at each call.
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
        held = [self._fresh.get(position, value) for position, value in enumerate(inputs)]
        self._replay, self._results = (record or cuda_graph)(lambda: program(*held))
        for value, old in zip(inputs, before, strict=True):  # recording has run steps
            value.copy_(old)

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The results, in tensors that the next call overwrites."""
        for position, place in self._fresh.items():
            place.copy_(inputs[position], non_blocking=True)
        self._replay()
        return self._results


class Replayed:
    """A step that is recorded once; some of its results are inputs of the next step, and are left where it reads them.

    Args:
        step: a function of all inputs, of which it changes none.
        inputs: one set of inputs.
        carried: of the first inputs, the positions of the results that they are in the next step.
        record: as of `Captured`.
    """

    def __init__(
        self,
        step: Callable[..., Sequence[Tensor]],
        inputs: Sequence[Tensor],
        carried: Sequence[int],
        record: Callable[[Call], tuple[Callable[[], None], Sequence[Tensor]]] | None = None,
    ) -> None:
        self._places, self._carried = [value.clone() for value in inputs], carried
        self._copied: list[tuple[Tensor, int]] = []

        def call() -> Sequence[Tensor]:
            results = step(*self._places)
            for place, position in zip(self._places, carried, strict=False):
                place.copy_(results[position])
            return results

        self._replay, self._results = (record or cuda_graph)(call)

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The results; those that are carried are in tensors that the next call overwrites."""
        count = len(self._carried)
        copied = [(value, value._version) for value in inputs[count:]]
        for place, value in zip(self._places, inputs[:count], strict=False):
            if value is not place:
                place.copy_(value)
        for number, (place, (value, version)) in enumerate(zip(self._places[count:], copied, strict=True)):
            if not self._copied or self._copied[number][0] is not value or self._copied[number][1] != version:
                place.copy_(value)
        self._copied = copied
        self._replay()
        results = [None if position in self._carried else value.clone() for position, value in enumerate(self._results)]
        carried = dict(zip(self._carried, self._places, strict=False))
        return [carried[position] if value is None else value for position, value in enumerate(results)]


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
