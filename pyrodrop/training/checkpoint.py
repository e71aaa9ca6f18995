"""Checkpoints: the state of a training in one file, from which an interrupted run continues to the same result.

A checkpoint knows its run: model, guide, data and settings (`pyrodrop.training.record.identity`). Only the number of steps
may differ, unless `fit` allows more.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pyrodrop.files import check_writable, read_tensors, write_tensors
from pyrodrop.training.record import Identity, check_same
from pyrodrop.training.state import State


class Checkpoint:
    """Saves the state of a training to `path` and restores it.

    Args:
        path: of the file.
        state: of the training.
        settings: recorded in the file.
        identity: what the run is made of; a run that differs cannot continue from the file.
        allow: the parts of the identity that may differ.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(
        self, path: Path, state: State, settings: dict[str, Any], identity: Identity, allow: Collection[str] = ()
    ) -> None:
        self.path, self.state, self.settings, self.identity, self.allow = path, state, settings, identity, allow
        self.saved: int | None = None
        check_writable(path)

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
        write_tensors(self.path, tensors, {"settings": self.settings, "position": position, "run": self.identity})
        self.saved = loop.done

    def resume(self) -> None:
        """Continue from the file if it exists.

        Raises:
            ValueError: it belongs to another run, or is no whole checkpoint.
            OSError: it cannot be read.
        """
        if not self.path.exists():
            return
        name = f"the checkpoint {self.path}"
        tensors, about = read_tensors(self.path)
        position = about.get("position")
        restarts = check_same(about.get("run"), self.identity, self.allow, name, "checkpoint_allow")
        if not isinstance(position, int) or isinstance(position, bool):
            raise ValueError(f"{name} is not whole: it lacks the place in the epoch")
        self.state.load(tensors, position, name, **restarts._asdict())
        self.saved = self.state.loop.done

    def where(self) -> str:
        """Where to continue after a failure, as a sentence; empty if nothing was saved."""
        if self.saved is None:
            return ""
        return (
            f" The file {self.path} has the state after {self.saved} steps: continue from there with other settings, such "
            "as a smaller lr and checkpoint_allow=('lr',)."
        )
