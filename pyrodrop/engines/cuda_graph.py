"""A compiled step as one CUDA graph: its kernels are recorded once and launched by one call.

A small net's step is dozens of kernels of microseconds each, and launching them one by one takes longer than running them.
What a graph reads and writes stays where it was recorded: a step's own inputs are copied there; parameters, optimiser state
and constants are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

Call = Callable[[], Sequence[Tensor]]
_WARM_UP = 3  # calls before recording, in which libraries make their choices and allocate


class Captured:
    """A program that replays what it did at first.

    Args:
        program: of all inputs; may move some of them in place.
        inputs: one set of inputs. Those that are not fresh at every call are used where they are.
        fresh: positions of inputs that each call brings anew.
        record: from a call without arguments to its replay and the tensors in which its results lie.
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
        for value, old in zip(inputs, before, strict=True):  # recording has made steps
            value.copy_(old)

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """The results, in tensors that the next call writes over."""
        for position, place in self._fresh.items():
            place.copy_(inputs[position], non_blocking=True)
        self._replay()
        return self._results


def cuda_graph(call: Call) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """Record a call's kernels on the current device."""
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
