"""Checkpoints: the state of a training in one file, from which an interrupted run continues.

A checkpoint knows its run by names, shapes, settings and a hash of the data (`pyrodrop.training.record.identity`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyrodrop.arguments import count
from pyrodrop.arguments import path as checked_path
from pyrodrop.files import check_writable, read_tensors, write_tensors
from pyrodrop.training.ranks import Ranks
from pyrodrop.training.record import Identity, check_same
from pyrodrop.training.state import State

_FILE = "the file to save the state of the training to"


class Checkpoint:
    """Where and when a training saves its state.

    The result of a run that continues on tensors is that of a run without interruption; on a loader, the epoch that was
    interrupted begins again. A state with NaN or infinite losses or parameters is never saved, so the file keeps the last
    finite one.

    A file of another model, guide or data is refused, as is one with another `batch_size`, `estimator`, `likelihood_power`,
    `objective`, `starts`, `device` or `seed`. Another number of steps or ranks, learning rate, optimiser, schedule,
    `kl_weight`, `accumulate`, `engine` or `precision` is taken, and the log says so: an optimiser whose state has other
    entries begins anew. Functions and classes of your own are known by their names, not by their code.

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


class StateFile:
    """Saves the state of a training, of one fit or of a stack of replicates, and restores it.

    Several ranks all make the same calls; rank 0 reads and writes.

    Args:
        saving: where.
        identity: the run that the file belongs to.

    Attributes:
        saved: the state that the file has, in words; empty if it has none.
    """

    def __init__(
        self, saving: Checkpoint, settings: dict[str, Any], identity: Identity, state: State, ranks: Ranks
    ) -> None:
        self.saving: Checkpoint = saving
        self.settings: dict[str, Any] = settings
        self.identity: Identity = identity
        self.state: State = state
        self.ranks: Ranks = ranks
        self.saved = ""
        if ranks.first:
            check_writable(saving.path)

    def save(self) -> None:
        """Write the state to the file, in place of what is there.

        Raises:
            FloatingPointError: a loss, a parameter or a buffer is not finite; the file stays as it was.
            OSError: the file cannot be written; it stays as it was.
        """
        loop = self.state.loop
        loop.check_finite(whole=True)
        tensors = self.state.tensors()
        if self.ranks.first:
            write_tensors(self.saving.path, tensors, {"settings": self.settings, "run": self.identity})
        self.saved = f"the state after {loop.done} steps"

    def resume(self) -> None:
        """Continue from the file if it exists; the log says which settings differ.

        Raises:
            ValueError: it belongs to another run, or is no whole checkpoint.
            OSError: it cannot be read.
        """
        path, name = self.saving.path, f"the checkpoint {self.saving.path}"
        content = self.ranks.of_first(read_tensors(path) if self.ranks.first and path.exists() else None)
        if content is None:
            return
        tensors, about = content
        check_same(about.get("run"), self.identity, name)
        self.state.load(tensors, name)
        self.saved = f"the state after {self.state.loop.done} steps"

    def where(self) -> str:
        """Where to continue after a failure, as a sentence; empty if nothing was saved."""
        if not self.saved:
            return ""
        return f" The file {self.saving.path} has {self.saved}: the same call with another lr continues from there."
