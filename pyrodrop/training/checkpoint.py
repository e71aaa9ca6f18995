"""Checkpoints: the state of a training in one file, from which an interrupted run continues.

The file has the state between two steps, as tensors by name. Names, shapes, settings and a hash of the data identify its run
(`pyrodrop.training.record.identity`).
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrodrop.arguments import count
from pyrodrop.arguments import path as checked_path
from pyrodrop.devices import random_states, set_random_states
from pyrodrop.files import check_writable, read_tensors, under, write_tensors
from pyrodrop.private_apis import without_compiler
from pyrodrop.training.loop import Loop
from pyrodrop.training.record import Identity, check_same

_log = logging.getLogger("pyrodrop")

_FILE = "the file to save the state of the training to"


class Checkpoint:
    """Where and when a training saves its state.

    A run that continues has the result of a run without interruption, except that on a loader it begins the
    interrupted epoch again. A state with NaN or infinite losses or parameters is never saved, so the file keeps the last
    finite one.

    A file of another model, guide or data is refused, as is one with another `batch_size`, `estimator`, `objective`,
    `device` or `seed`. Other `steps`, `lr`, `optimizer`, `lr_schedule`, `kl_weight` or `engine` are accepted and logged. An
    optimiser whose state has other entries begins anew. Functions and classes of your own are identified by name, not by
    their code.

    Args:
        path: of the file.
        every: number of steps between two savings; the last step is always saved.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, or out of range.

    Example:
        >>> import pyrodrop
        >>> pyrodrop.Checkpoint("state.safetensors", every=1000).every
        1000
    """

    def __init__(self, path: str | Path, *, every: int = 10_000) -> None:
        self.path: Path = checked_path(path, "path", _FILE)
        self.every: int = count(every, "every", "the number of steps between two savings")

    @staticmethod
    def of(value: str | Path | Checkpoint | None) -> Checkpoint | None:
        """The argument ``checkpoint`` of `fit`."""
        if value is None or isinstance(value, Checkpoint):
            return value
        return Checkpoint(checked_path(value, "checkpoint", _FILE))


class State:
    """Reads and writes the state of a loop: parameters, buffers, optimiser, random state, place in the epoch, losses."""

    def __init__(self, loop: Loop, buffers: Callable[[], Mapping[str, Tensor]]) -> None:
        self.loop: Loop = loop
        self.buffers = buffers

    def tensors(self) -> dict[str, Tensor]:
        """The state by name; tensors of the loop are not copied. The random state is torch's own at this moment."""
        loop = self.loop
        loop.engine.finish(loop.done)
        return {
            **self._trained(),
            **{f"optimizer.{key}": value for key, value in _named(loop.optimizer).items()},
            "history": loop.history[: loop.done],
            **{f"batches.{key}": value for key, value in loop.batches.state().items()},
            **self._random(),
        }

    def load(self, tensors: Mapping[str, Tensor], name: str) -> None:
        """Set the loop, its buffers and torch's random state to a state that was read before.

        If the state is of an optimiser with other entries, this one begins anew, and a warning is logged.

        Raises:
            ValueError: it is not a whole state, or the state of another model, guide or data set, or of more steps than the
                loop has. Nothing is changed then.
        """
        loop = self.loop
        self._check(tensors, name)
        done, optimizer = len(tensors["history"]), under("optimizer.", tensors)
        if loop.steps is not None and done > loop.steps:
            raise ValueError(f"{name} has done {done} steps already; steps must be at least that, got {loop.steps}")
        fresh = done > 0 and not self._is_of_this_optimizer(optimizer)
        if fresh:
            _log.warning("%s is of an optimizer whose state has other entries: it begins anew", name)
            optimizer = {}
        loop.batches.load(under("batches.", tensors), name)
        with torch.no_grad():
            for key, value in self._trained().items():
                value.copy_(tensors[key])
        self._load_optimizer(optimizer)
        set_random_states(under("random.", tensors), loop.history.device)
        loop.history = loop.history.to(tensors["history"].dtype)
        loop.reserve(done)
        loop.history[:done] = tensors["history"].to(loop.history.device)
        loop.done = loop.checked = done
        if done == 0 or fresh:
            loop.forget_engine()

    def _check(self, tensors: Mapping[str, Tensor], name: str) -> None:
        """Raise a ValueError unless these tensors are a whole state of this model, guide and data set."""
        wrong = [n for n, value in self._trained().items() if n not in tensors or not _alike(tensors[n], value)]
        if wrong:
            raise ValueError(
                f"{name} is of another model or guide: {', '.join(wrong)} of this run is missing there or has another shape "
                "or dtype"
            )
        wanted = ["history", *(f"batches.{key}" for key in self.loop.batches.state()), *self._random()]
        missing = [n for n in wanted if n not in tensors]
        if missing:
            raise ValueError(f"{name} is not whole: it lacks {', '.join(missing)}")
        history, want = tensors["history"], self.loop.history
        if history.shape[1:] != want.shape[1:] or history.dim() != want.dim() or not history.is_floating_point():
            raise ValueError(
                f"{name} must have three numbers for every step in its history; it has shape {list(history.shape)} of "
                f"{history.dtype}"
            )
        for key in self._random():
            try:
                torch.Generator("cuda" if key == "random.cuda" else "cpu").set_state(tensors[key].cpu())
            except (RuntimeError, TypeError) as error:
                raise ValueError(f"{name} has no random state of this version of PyTorch in {key}: {error}") from None

    def _is_of_this_optimizer(self, there: Mapping[str, Tensor]) -> bool:
        """Whether a state of an optimiser has the entries of this one, of the same shapes and dtypes."""
        # A parameter that no step has used, as of a member of an ensemble, has no state yet.
        used = {key.split(".", 1)[0] for key in there}
        here = _named(self.loop.optimizer) or _after_a_step(self.loop.optimizer)
        here = {key: value for key, value in here.items() if key.split(".", 1)[0] in used or not used}
        return here.keys() == there.keys() and all(_alike(there[key], value) for key, value in here.items())

    def _random(self) -> dict[str, Tensor]:
        """The states of the random generators, by name."""
        return {f"random.{kind}": state for kind, state in random_states(self.loop.history.device).items()}

    def _trained(self) -> dict[str, Tensor]:
        """Parameters and buffers, by reference."""
        state = {f"parameter.{n}": p for n, p in self.loop.parameters.items()}
        return state | {f"buffer.{n}": b for n, b in self.buffers().items()}

    def _load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Load the state of the optimiser: in place if it has the same tensors, to which a compiled engine refers."""
        mine = _named(self.loop.optimizer)
        entries = self.loop.optimizer.state.values()
        if mine.keys() == tensors.keys() and all(isinstance(v, Tensor) for e in entries for v in e.values()):
            for name, value in mine.items():
                value.copy_(tensors[name])
            return
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        with without_compiler():
            groups = self.loop.optimizer.state_dict()["param_groups"]
            self.loop.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.loop.forget_engine()


class StateFile:
    """Saves the state of a training, of one fit or of a stack of replicates, and restores it.

    Args:
        saving: has the path of the file.
        settings: of the run, in plain numbers and words (`record`).
        identity: the run that the file belongs to.

    Attributes:
        saved: a description of the state in the file; empty if nothing was read or written.
    """

    def __init__(self, saving: Checkpoint, settings: dict[str, Any], identity: Identity, state: State) -> None:
        self.saving: Checkpoint = saving
        self.settings: dict[str, Any] = settings
        self.identity: Identity = identity
        self.state: State = state
        self.saved = ""
        check_writable(saving.path)

    def save(self) -> None:
        """Write the state to the file, in place of what is there.

        Raises:
            FloatingPointError: a loss, a parameter or a buffer is not finite; the file stays as it was.
            OSError: the file cannot be written; it stays as it was.
        """
        loop = self.state.loop
        loop.check_finite(whole=True)
        write_tensors(self.saving.path, self.state.tensors(), {"settings": self.settings, "run": self.identity})
        self.saved = f"the state after {loop.done} steps"

    def resume(self) -> StateFile:
        """Continue from the file if it exists; the log says which settings differ. Returns itself.

        Raises:
            ValueError: it belongs to another run, or is no whole checkpoint.
            OSError: it cannot be read.
        """
        path, name = self.saving.path, f"the checkpoint {self.saving.path}"
        if path.exists():
            tensors, about = read_tensors(path)
            check_same(about.get("run"), self.identity, name)
            self.state.load(tensors, name)
            self.saved = f"the state after {self.state.loop.done} steps"
        return self

    def where(self) -> str:
        """Where to continue after a failure, as a sentence; empty if nothing was saved."""
        if not self.saved:
            return ""
        return f" The file {self.saving.path} has {self.saved}: the same call with another lr continues from there."


def _named(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser by name: number of the parameter and entry."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = [
        (i, entry) for i, parameter in enumerate(parameters) for entry in optimizer.state.get(parameter, {}).items()
    ]
    return {f"{i}.{key}": torch.as_tensor(value) for i, (key, value) in entries if value is not None}


def _after_a_step(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state that an optimiser without a state would have after a step, from a step of a copy."""
    stepped = copy.deepcopy(optimizer)
    for group in stepped.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        inspect.unwrap(type(stepped).step)(stepped)  # what PyTorch wraps around it imports its compiler
    return _named(stepped)


def _alike(there: Tensor, here: Tensor) -> bool:
    return there.shape == here.shape and there.dtype == here.dtype
