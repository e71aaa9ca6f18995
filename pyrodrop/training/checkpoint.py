"""Checkpoints: the state of a training in one file, from which an interrupted run continues to the same result.

A checkpoint knows its run: model, guide, data and settings (`pyrodrop.training.record.identity`). Only the number of steps
may differ, unless `fit` allows more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pyrodrop.arguments import count
from pyrodrop.arguments import path as checked_path
from pyrodrop.files import check_writable, read_tensors, write_tensors
from pyrodrop.training.ranks import Ranks
from pyrodrop.training.record import Identity, check_allowed, check_same
from pyrodrop.training.state import State

_FILE = "the file to save the state of the training to"
ALLOW = "checkpoint=pyrodrop.Checkpoint(..., allow={})"

File = tuple[dict[str, Tensor], dict[str, Any]]


class Checkpoint:
    """Where and when a training saves its state, and what may differ in a run that continues from the file.

    The result of a run that continues is that of a run without interruption. A state with NaN or infinite losses or
    parameters is never saved, so the file keeps the last finite one.

    Args:
        path: of the file.
        every: number of steps between two savings; the last step is always saved.
        allow: names of what may differ from the run that wrote the file, such as ``("lr", "data")``: ``model``, ``guide``,
            ``data`` and the options of `fit` that change its result. Otherwise every difference is an error that names it.
            More `steps` are always allowed. With another class of `optimizer` its state begins anew, with other `data` or
            another `batch_size` an epoch. Functions count as equal if they return the same: `lr` for every parameter,
            `lr_schedule` and `kl_weight` at 0, 1, 2, 5, 10 ... steps or epochs; functions in a model or guide if their
            bytecode, constants and defaults are equal. Another number of ranks needs no permission: rank 0
            goes on where it was, the others with new noise.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, out of range, or an unknown name in `allow`.

    Example:
        >>> import pyrodrop
        >>> pyrodrop.Checkpoint("state.safetensors", every=1000, allow=("lr",)).every
        1000
    """

    def __init__(self, path: str | Path, *, every: int = 10_000, allow: Collection[str] = ()) -> None:
        self.path: Path = checked_path(path, "path", _FILE)
        self.every: int = count(every, "every", "the number of steps between two savings")
        self.allow: tuple[str, ...] = check_allowed(allow, "allow")

    @staticmethod
    def of(value: str | Path | Checkpoint | None) -> Checkpoint | None:
        """The argument ``checkpoint`` of `fit`."""
        if value is None or isinstance(value, Checkpoint):
            return value
        return Checkpoint(checked_path(value, "checkpoint", _FILE))


class StateFile:
    """The file of a checkpoint, which knows the run that it belongs to.

    Args:
        saving: where, and what may differ from the run that wrote the file.

    Attributes:
        saved: the state that the file has, in words; empty if it has none.
    """

    def __init__(self, saving: Checkpoint, settings: dict[str, Any], identity: Identity) -> None:
        self.saving: Checkpoint = saving
        self.settings: dict[str, Any] = settings
        self.identity: Identity = identity
        self.saved = ""

    @property
    def name(self) -> str:
        """The file in words, for messages."""
        return f"the checkpoint {self.saving.path}"

    def read(self) -> File | None:
        """The tensors of the file and what it says about them; None if there is none."""
        return read_tensors(self.saving.path) if self.saving.path.exists() else None

    def restarts(self, about: Mapping[str, Any]) -> dict[str, bool]:
        """What starts anew, as arguments of `State.load`; a ValueError if the file belongs to another run."""
        return check_same(about.get("run"), self.identity, self.saving.allow, self.name, ALLOW)._asdict()

    def write(self, tensors: Mapping[str, Tensor], **about: Any) -> None:
        """Write tensors, and what is said about them, in place of what is in the file.

        Raises:
            OSError: the file cannot be written; it stays as it was.
        """
        write_tensors(self.saving.path, tensors, {"settings": self.settings, **about, "run": self.identity})

    def where(self) -> str:
        """Where to continue after a failure, as a sentence; empty if nothing was saved."""
        if not self.saved:
            return ""
        return (
            f" The file {self.saving.path} has {self.saved}: continue from there with other settings, such as a smaller lr "
            f"and {ALLOW.format(('lr',))}."
        )


class FitFile(StateFile):
    """Saves the state of one training and restores it.

    Several ranks all make the same calls; rank 0 reads and writes.
    """

    def __init__(
        self, saving: Checkpoint, settings: dict[str, Any], identity: Identity, state: State, ranks: Ranks
    ) -> None:
        super().__init__(saving, settings, identity)
        self.state: State = state
        self.ranks: Ranks = ranks
        if ranks.first:
            check_writable(saving.path)

    def save(self) -> None:
        """Write the state to the file.

        Raises:
            FloatingPointError: a loss, a parameter or a buffer is not finite; the file stays as it was.
            OSError: the file cannot be written; it stays as it was.
        """
        loop = self.state.loop
        loop.check_finite(whole=True)
        tensors = self.state.tensors()
        position = int(tensors.pop("batches.position"))
        if self.ranks.first:
            self.write(tensors, position=position)
        self.saved = f"the state after {loop.done} steps"

    def resume(self) -> None:
        """Continue from the file if it exists.

        Raises:
            ValueError: it belongs to another run, or is no whole checkpoint.
            OSError: it cannot be read.
        """
        content = self.ranks.of_first(self.read() if self.ranks.first else None)
        if content is None:
            return
        tensors, about = content
        position, restarts = about.get("position"), self.restarts(about)
        if not isinstance(position, int) or isinstance(position, bool):
            raise ValueError(f"{self.name} is not whole: it lacks the place in the epoch")
        self.state.load(tensors, position, self.name, **restarts)
        self.saved: str = f"the state after {self.state.loop.done} steps"
