"""Recorded steps of a training stay true where the user's code, or the program itself, changes something between them.

Before every block of steps, flags of modules and parameters (`Flags`) and what a program reads (`Watched`) are compared
with what they were at the recording; where one has changed, the steps are recorded again. What cannot be seen so, such as a
factor of the gradient in an array, is found by comparing loss and gradients with Pyro's: for a program after steps 2, 4, 8,
... and every 1,000th and at the end, and for all models after calls of ``after_epoch``. A comparison waits until training
has taken twenty times as long as the last one, so that all of them take at most a twentieth of the time.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, Protocol

from pyrodrop.agreement import knows_sites
from pyrodrop.compiled import Joint, Loss
from pyrodrop.compiled.buffers import modules_of
from pyrodrop.module_flags import Flags
from pyrodrop.private_apis import StoreAsItIs
from pyrodrop.training.watched import Watched

_log = logging.getLogger("pyrodrop")

_EVERY = 1000  # steps between two comparisons of a program, at most
_SHARE = 20  # a comparison waits until training has taken so many times as long as the last one
_LATER = 100  # steps that it waits


class Steps(Protocol):
    """The loop over steps, as far as a guard needs it."""

    done: int
    engine: Any
    batches: Any

    def record_again(self, steps: int) -> None:
        """Choose the engine of the next steps anew, so many of which are expected before the next change."""


class Guard:
    """Watches over the recorded steps of a fit.

    Args:
        model, guide: of the fit, in training mode.
        loss: whose graphs are replayed.
    """

    def __init__(self, model: Any, guide: Any, loss: Loss) -> None:
        self._parts, self._loss = (model, guide), loss
        self._program = not knows_sites(model, guide)
        self.due: int = 2 if self._program else sys.maxsize
        self._compared, self._recorded, self._calls = 0, 0, 0
        self._open: int | None = None  # the step before which the user's code ran first since the last comparison
        self._clock, self._cost = time.perf_counter(), 0.0
        self._note()

    def _note(self) -> None:
        trained = {name: parameter.unconstrained for name, parameter in self._loss.parameters.items()}
        self._flags = Flags(modules_of(*self._parts), trained)
        self._learned = {id(p) for p in (*self._flags.parameters.values(), *trained.values()) if p.requires_grad}
        self._known = self._learned | set(map(id, trained.values()))
        self._memory = self._memory_now()
        self._store = StoreAsItIs()
        self._watched = Watched(*self._parts) if self._program else None

    def _memory_now(self) -> list[tuple[Any, ...]]:
        """Where the tensors are that a step writes to, which compiled steps do by address; `Tensor.data` can move them."""
        tensors = [*(parameter.unconstrained for parameter in self._loss.parameters.values()), *self._loss.buffers]
        return [(tensor.data_ptr(), tensor.stride(), tensor.dtype) for tensor in tensors]

    def called(self, done: int) -> None:
        """The user's code has run before step `done`."""
        self._calls += 1
        self._open = done if self._open is None else self._open
        if self._calls & (self._calls - 1) == 0 or self._has_waited():
            self.due = done

    def look(self, loop: Steps) -> None:
        """Before some steps: record again where something that can be seen has changed.

        Raises:
            RuntimeError: a parameter has been replaced, or one requires a gradient that did not before; the optimiser does
                not have it.
        """
        name = self._flags.changed() or (self._watched.changed() if self._watched is not None else "")
        if not name and self._memory_now() != self._memory:
            name = "the memory of a parameter or buffer"
        replaced = [name for name in self._store.replaced() if id(self._store.before[name]) in self._known]
        if not name and not replaced:
            return
        known = self._known
        self._note()
        new = [n for n, p in self._flags.parameters.items() if id(p) in self._learned - known]
        if new or replaced:
            raise RuntimeError(
                f"the parameter {(new or replaced)[0]} has been replaced, or requires a gradient and did not when the "
                "training began, so that no step would change it: change values in place (copy_), and let parameters "
                "require a gradient before the training, which may freeze them"
            )
        if loop.engine.name == "pyro":
            return
        _log.info("after step %d, %s has changed: the steps are recorded again", loop.done, name)
        self._loss.forget()
        loop.record_again(max(1, loop.done - self._recorded))
        self._recorded = loop.done

    def compare(self, loop: Steps, *, at_end: bool = False) -> None:
        """Compare the recorded steps with Pyro's if that is due.

        Args:
            at_end: whether the training is at its end, where what the user's code did before its last steps is compared.

        Raises:
            RuntimeError: loss or gradients differ.
        """
        last = at_end and (self._program or (self._open is not None and self._open < loop.done))
        if loop.done == self._compared or (loop.done < self.due and not last):
            return
        done = loop.done
        if self._program and self._open is None and not last and not self._has_waited():
            self.due = done + _LATER
            return
        self.due = min(max(1, 2 * done), (done // _EVERY + 1) * _EVERY) if self._program else sys.maxsize
        start = time.perf_counter()
        if loop.engine.name != "pyro":
            for sample in loop.batches.samples(1):
                batch = sample.parts[0].batch if isinstance(sample, Joint) else sample
                unlike = self._loss.differs(batch)
                if unlike:
                    raise RuntimeError(
                        f"{unlike} of the recorded steps is not Pyro's: model and guide must depend only on data, "
                        "parameters, and what their code names in attributes and variables; something else that they read "
                        f"has changed since step {self._compared}, and the steps since then may be wrong. Make it a tensor "
                        "among the data, or use engine='pyro'"
                    )
        self._compared, self._open = done, None
        self._clock = time.perf_counter()
        self._cost = self._clock - start

    def _has_waited(self) -> bool:
        return time.perf_counter() - self._clock > _SHARE * self._cost
