"""The state of a training as tensors by name, and checkpoints: files of it, from which an interrupted run continues.

Names, shapes, settings and a hash of the data identify the run that a state belongs to
(`pyrodrop.training.record.identity`), so that the error for another run says which part differs.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pyrodrop.arguments import count
from pyrodrop.arguments import path as checked_path
from pyrodrop.devices import random_states, set_random_states
from pyrodrop.files import check_writable, read_tensors, under, write_tensors
from pyrodrop.private_apis import without_compiler
from pyrodrop.training.record import Identity, check_same, identity
from pyrodrop.training.session import Session

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
    """Reads and writes the state of a session: parameters, buffers, optimiser, random state, place in the epoch, losses.

    Raises:
        ValueError: a step changes Python attributes, which the state does not contain.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        if session.loss.changes:
            raise ValueError(
                "the state of a training consists of the parameters and buffers of modules, but "
                f"{session.loss.changes}: register what must be saved as a buffer (register_buffer)"
            )

    def tensors(self) -> dict[str, Tensor]:
        """The state by name, by reference. The random state is torch's own at this moment.

        Raises:
            FloatingPointError: a loss, a parameter or a buffer is not finite.
        """
        session = self.session
        session.check_finite(whole=True)
        session.engine.finish(session.done)
        return {
            **self._trained(),
            **{f"optimizer.{key}": value for key, value in _named(session.optimizer).items()},
            "history": session.history[: session.done],
            **{f"batches.{key}": value for key, value in session.rows.state().items()},
            **self._random(),
        }

    def load(self, tensors: Mapping[str, Tensor], name: str) -> None:
        """Set the session and torch's random state to a state that was read before.

        If the state is of an optimiser with other entries, this one begins anew, and a warning is logged.

        Raises:
            ValueError: it is not a whole state, or the state of another model, guide or data set, or of more steps than the
                session has. Nothing is changed then.
        """
        session, steps = self.session, self.session.settings.steps
        self._check(tensors, name)
        done, optimizer = len(tensors["history"]), under("optimizer.", tensors)
        if steps is not None and done > steps:
            raise ValueError(f"{name} has done {done} steps already; steps must be at least that, got {steps}")
        fresh = (done > 0 or bool(optimizer)) and not self._is_of_this_optimizer(optimizer)
        if fresh:
            _log.warning("%s is of an optimizer whose state has other entries: it begins anew", name)
            optimizer = {}
        session.rows.load(under("batches.", tensors), name)
        with torch.no_grad():
            for key, value in self._trained().items():
                value.copy_(tensors[key])
        self._load_optimizer(optimizer)
        set_random_states(under("random.", tensors), session.history.device)
        session.history = session.history.to(tensors["history"].dtype)
        session.reserve(done)
        session.history[:done] = tensors["history"].to(session.history.device)
        session.done = session.checked = done
        if done == 0 or fresh:
            session.forget_engine()

    def _check(self, tensors: Mapping[str, Tensor], name: str) -> None:
        """Raise a ValueError unless these tensors are a whole state of this model, guide and data set."""
        wrong = [n for n, value in self._trained().items() if n not in tensors or not _alike(tensors[n], value)]
        if wrong:
            raise ValueError(
                f"{name} is of another model or guide: {', '.join(wrong)} of this run is missing there or has another shape "
                "or dtype"
            )
        wanted = ["history", *(f"batches.{key}" for key in self.session.rows.state()), *self._random()]
        missing = [n for n in wanted if n not in tensors]
        if missing:
            raise ValueError(f"{name} is not whole: it lacks {', '.join(missing)}")
        history = tensors["history"]
        if history.dim() != 2 or history.shape[1] != 3 or not history.is_floating_point():
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
        here = _named(self.session.optimizer) or _after_a_step(self.session.optimizer)
        here = {key: value for key, value in here.items() if key.split(".", 1)[0] in used or not used}
        return here.keys() == there.keys() and all(_alike(there[key], value) for key, value in here.items())

    def _random(self) -> dict[str, Tensor]:
        """The states of the random generators, by name."""
        return {f"random.{kind}": state for kind, state in random_states(self.session.history.device).items()}

    def _trained(self) -> dict[str, Tensor]:
        """Parameters and buffers, by reference."""
        session = self.session
        buffers = session.problem.buffers(session.loss)
        state = {f"parameter.{n}": p for n, p in session.parameters.items()}
        return state | {f"buffer.{n}": b for n, b in buffers.items()}

    def _load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Load the state of the optimiser: in place if it has the same tensors, to which a compiled engine refers."""
        optimizer = self.session.optimizer
        mine = _named(optimizer)
        entries = optimizer.state.values()
        if mine.keys() == tensors.keys() and all(isinstance(v, Tensor) for e in entries for v in e.values()):
            for name, value in mine.items():
                value.copy_(tensors[name])
            return
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        with without_compiler():
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        self.session.forget_engine()


class StateFile:
    """Saves the state of a training, and restores it from the file if that exists; the log says which settings differ.

    Attributes:
        saved: a description of the state in the file; empty if nothing was read or written.

    Raises:
        ValueError: the file belongs to another run, or is no whole checkpoint; or as `State`.
        OSError: it cannot be read or written.
    """

    def __init__(self, saving: Checkpoint, session: Session) -> None:
        self.saving, self.session, self.state, self.saved = saving, session, State(session), ""
        self._run: Identity = identity(session.settings, session.problem, session.loss)
        check_writable(saving.path)
        if saving.path.exists():
            name = f"the checkpoint {saving.path}"
            tensors, about = read_tensors(saving.path)
            check_same(about.get("run"), self._run, name)
            self.state.load(tensors, name)
            self.saved = f"the state after {session.done} steps"

    def save(self) -> None:
        """Write the state to the file, in place of what is there; if that fails, or is refused, the file stays as it was."""
        session = self.session
        write_tensors(self.saving.path, self.state.tensors(), {"settings": session.record, "run": self._run})
        self.saved = f"the state after {session.done} steps"

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
