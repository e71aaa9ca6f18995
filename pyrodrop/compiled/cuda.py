"""Steps of a sampler as CUDA graphs, whose kernels are recorded once and launched by one call.

A step of a small network runs dozens of kernels of a few microseconds each, and launching them one by one takes longer than
running them. A graph reads and writes the memory that it was recorded with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM_UP = 3  # calls before recording, in which libraries choose algorithms and allocate


class Replayed:
    """A step that is recorded once; some of its results are the first inputs of the next step, and stay in their memory.

    Args:
        step: a function of all inputs, which it does not change.
        inputs: one set of inputs.
        carried: for each of the first inputs, the position of the result that replaces it in the next step.
    """

    together = 16  # steps per launch, if there are as many

    def __init__(
        self,
        step: Callable[..., Sequence[Tensor]],
        inputs: Sequence[Tensor],
        carried: Sequence[int],
    ) -> None:
        self._places, self._carried, self._step = [value.clone() for value in inputs], carried, step
        self._record = KernelRecorder(inputs[0].device)
        self._recorded: dict[int, tuple[Callable[[], None], Sequence[Tensor]]] = {}
        self._copied: list[tuple[Tensor, int]] = []
        self._of(1)

    def __call__(self, *inputs: Tensor, times: int = 1) -> Sequence[Tensor]:
        """The results of the last of `times` steps; the next call overwrites the tensors of carried results."""
        many, few = divmod(times, self.together)
        replays = [(self._of(size), count) for size, count in ((self.together, many), (1, few)) if count]
        self._write(inputs)
        for (replay, _), count in replays:
            for _ in range(count):
                replay()
        carried = dict(zip(self._carried, self._places, strict=False))
        results = enumerate(replays[-1][0][1])
        return [carried[position] if position in carried else value.clone() for position, value in results]

    def _of(self, count: int) -> tuple[Callable[[], None], Sequence[Tensor]]:
        """The replay of `count` steps, and the results of the last."""
        if count not in self._recorded:
            before = [place.clone() for place in self._places]
            self._recorded[count] = self._record(lambda: self._steps(count))
            for place, old in zip(self._places, before, strict=True):  # recording may have made steps
                place.copy_(old)
        return self._recorded[count]

    def _steps(self, count: int) -> Sequence[Tensor]:
        given = list(self._places)
        results: Sequence[Tensor] = ()
        for _ in range(count):
            results = self._step(*given)
            given[: len(self._carried)] = [results[position] for position in self._carried]
        for place, value in zip(self._places, given, strict=True):
            if value is not place:
                place.copy_(value)
        return results

    def _write(self, inputs: Sequence[Tensor]) -> None:
        """Copy inputs to the memory from which the step reads them, except those that are there already, unchanged."""
        count = len(self._carried)
        copied = [(value, value._version) for value in inputs[count:]]
        for place, value in zip(self._places, inputs[:count], strict=False):
            if value is not place:
                place.copy_(value)
        for number, (place, (value, version)) in enumerate(zip(self._places[count:], copied, strict=True)):
            if not self._copied or self._copied[number][0] is not value or self._copied[number][1] != version:
                place.copy_(value)
        self._copied = copied


class KernelRecorder:
    """Records calls on a device as CUDA graphs with shared memory; the first call is made three times to warm up."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: Any = None

    def __call__(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """The replay of a call without arguments, and the tensors of its results."""
        with torch.cuda.device(self._device):
            if self._memory is None:
                self._memory = torch.cuda.graph_pool_handle()
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(_WARM_UP):
                        call()
                torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory):
                results = call()
            # A recording has kernels of its own, on another stream. While other processes used the device, first replays
            # drew other random numbers than Pyro does.
            torch.cuda.synchronize()
        return graph.replay, results
