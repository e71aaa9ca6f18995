"""Steps as CUDA graphs, whose kernels are recorded once and launched by one call.

A step of a small network runs dozens of kernels of a few microseconds each, and launching them one by one takes longer than
running them. A graph reads and writes the memory that it was recorded with: rows and numbers of several steps are copied
there, random numbers are drawn there by the graph itself, the same as step by step, and parameters, optimiser state and
constants are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrodrop.compiled.untraceable import Untraceable, first_line
from pyrodrop.devices import random_states, set_random_states

Recorder = Callable[[Callable[[], Any]], tuple[Callable[[], None], Any]]
"""From a call without arguments to its replay and the tensors of its results."""
_WARM_UP = 3  # calls before recording, in which libraries choose algorithms and allocate


class Captured:
    """Several steps, recorded once for every number of them.

    Args:
        step: a function from the rows of a minibatch and the numbers of a step to nll and kl, ``[..., 2]``. It draws its
            random numbers, and updates tensors of `held` in place.
        held: these tensors.
        rows: memory for the rows of up to K steps, ``[K, ...]`` each; empty if every step has the same.
        numbers: memory for the numbers of as many, ``[K, n]``.
        record: returns the replay of a call without arguments, and the tensor of its results; it may make such calls.

    Raises:
        Untraceable: the kernels cannot be recorded, as of a step that waits for the device.
    """

    def __init__(
        self,
        step: Callable[[Sequence[Tensor], Tensor], Tensor],
        held: Sequence[Tensor],
        rows: Sequence[Tensor],
        numbers: Tensor,
        record: Recorder | None = None,
    ) -> None:
        self.rows, self.numbers = rows, numbers
        self._step, self._record = step, record or KernelRecorder()
        self._recorded: dict[int, tuple[Callable[[], None], Tensor]] = {}
        before, states = [value.clone() for value in held], random_states(numbers.device)
        try:
            self._recorded[1] = self._record(lambda: self._steps(1))
        except RuntimeError as error:
            raise Untraceable(f"its kernels cannot be recorded: {first_line(error)}") from error
        for value, old in zip(held, before, strict=True):  # recording has made steps
            value.copy_(old)
        set_random_states(states, numbers.device)

    def __call__(self, count: int) -> Tensor:
        """Make the first steps, so many, of those whose rows and numbers were written; nll and kl, ``[count, ..., 2]``."""
        if count not in self._recorded:
            self._recorded[count] = self._record(lambda: self._steps(count))
        replay, results = self._recorded[count]
        replay()
        return results.clone()  # the next replay writes over them

    def _steps(self, count: int) -> Tensor:
        return torch.stack([self._step([rows[i] for rows in self.rows], self.numbers[i]) for i in range(count)])


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
        record: Recorder | None = None,
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


class KernelRecorder:
    """Records calls on the current device, which share the memory of what they compute; the first one is made some times."""

    def __init__(self) -> None:
        self._memory: Any = None

    def __call__(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
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
        return graph.replay, results


def cuda_graph(call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Record a call on the current device."""
    return KernelRecorder()(call)
