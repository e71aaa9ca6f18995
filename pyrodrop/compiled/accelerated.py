"""Steps of a fit that are recorded as graphs, and recorded again if the user's code or the program changes something.

Before every block of steps, everything that a program reads (`Contents`) and the addresses of the memory that steps write to
are compared with those at the recording; the loop reports changes of flags of modules and parameters. Other changes, such as
a factor of the gradient in an array, are found by comparing loss and gradients with Pyro's: for a program after steps 2, 4,
8, ..., every 1,000th and the last, and for all models after calls of the user's code. A comparison waits until training has
taken twenty times as long as the last one, so that comparisons take at most a twentieth of the time.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrodrop.changes import Contents
from pyrodrop.compiled.choice import choose
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.constraints import EngineName
from pyrodrop.steps import Arguments, Engine, Loss, Plan

_log = logging.getLogger("pyrodrop")

_EVERY = 1000  # steps between two comparisons of a program, at most
_SHARE = 20  # a comparison waits until training has taken this many times as long as the last comparison
_LATER = 100  # steps by which such a comparison is postponed


class Accelerated(Engine):
    """The recorded steps of a fit, which are faster than Pyro's.

    Args:
        loss: the loss to minimise.
        optimizer: the optimiser of the loss's parameters, after its first step.
        samples: function of a number of steps (None for any) that returns one minibatch of every shape that they use.
        wanted: ``traced``, ``compiled``, or ``auto`` for the one whose preparation pays off.
        total: the total number of steps; None if it is not known.
        program: whether model or guide are programs, so that changes of everything that their code reads are detected.
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        samples: Callable[[int | None], Sequence[Arguments]],
        wanted: EngineName,
        total: int | None,
        *,
        program: bool,
    ) -> None:
        self._loss, self._recorded, self._optimizer = loss, Recorded(loss), optimizer
        self._samples, self._wanted, self._total = samples, wanted, total
        self._program = program
        self._due: int = 2 if program else sys.maxsize
        self._since, self._compared, self._calls = 0, 0, 0
        self._open: int | None = None  # the step before which the user's code ran first since the last comparison
        self._clock, self._cost = time.perf_counter(), 0.0

    def record(self, done: int, steps: int) -> bool:
        """Record the steps after the first `done`, of which `steps` are expected, by which ``auto`` chooses.

        Returns:
            Whether there is an engine faster than Pyro; if not, one logged line says why.
        """
        self._watched = Contents(*self._loss.moving.parts) if self._program else None
        self._memory = self._memory_now()
        batches = self._samples(None if self._total is None else self._total - done)
        chosen = choose(self._wanted, self._recorded, self._optimizer, batches, steps)
        if chosen is not None:
            self._engine, self.name = chosen, chosen.name
        return chosen is not None

    def holds(self, done: int, changed: str) -> bool:
        name = changed or ("" if self._watched is None else self._watched.changed())
        if not name and self._memory_now() != self._memory:
            name = "the memory of a parameter or buffer"
        if not name:
            return True
        _log.info("after step %d, %s has changed: the steps are recorded again", done, name)
        self._engine.finish(done)
        self._recorded.forget()
        self._optimizer.zero_grad()  # of parameters that no longer get one
        expected, self._since = max(1, done - self._since), done
        return self.record(done, expected if self._total is None else min(expected, self._total - done))

    def _memory_now(self) -> list[tuple[Any, ...]]:
        """The addresses of the tensors that a step writes to; `Tensor.data` can change them, and compiled steps use them."""
        tensors = [*(parameter.unconstrained for parameter in self._loss.parameters.values()), *self._loss.buffers]
        return [(tensor.data_ptr(), tensor.stride(), tensor.dtype) for tensor in tensors]

    def until(self, done: int, end: int) -> int:
        return min(end, self._due) if self._due > done else end

    def called(self, done: int) -> None:
        self._calls += 1
        self._open = done if self._open is None else self._open
        if self._calls & (self._calls - 1) == 0 or self._has_waited():
            self._due = done

    def begin(self, plan: Plan) -> None:
        self._engine.begin(plan)
        self.plan, self.made = plan, self._engine.made
        self._compare(plan.first, last=False)

    def advance(self, batches: Any, count: int) -> None:
        self._engine.advance(batches, count)

    def step(self, batch: Any, index: int) -> Tensor:
        return self._engine.step(batch, index)

    def check(self, done: int) -> None:
        self._compare(done, last=self._program or (self._open is not None and self._open < done))

    def finish(self, steps: int) -> None:
        self._engine.finish(steps)

    def _compare(self, done: int, *, last: bool) -> None:
        """Compare the recorded steps with Pyro's, if that is due or this is the last time.

        Raises:
            RuntimeError: loss, gradients or buffers differ.
        """
        if done == self._compared or (done < self._due and not last):
            return
        if self._program and self._open is None and not last and not self._has_waited():
            self._due = done + _LATER
            return
        self._due = min(max(1, 2 * done), (done // _EVERY + 1) * _EVERY) if self._program else sys.maxsize
        start = time.perf_counter()
        for batch in self._samples(1):
            difference = self._recorded.differs(batch)
            if difference:
                raise RuntimeError(
                    f"{difference} of the recorded steps is not Pyro's: model and guide must depend only on data, "
                    "parameters, and what their code names in attributes and variables; something else that they read "
                    f"has changed since step {self._compared}, and the steps since then may be wrong. Make it a tensor "
                    "among the data, or use engine='pyro'"
                )
        self._compared, self._open = done, None
        self._clock = time.perf_counter()
        self._cost = self._clock - start

    def _has_waited(self) -> bool:
        return time.perf_counter() - self._clock > _SHARE * self._cost
