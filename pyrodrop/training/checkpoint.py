"""Checkpoints: the state of a training in one file, from which an interrupted run continues to the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.training.state import State


class Checkpoint:
    """Saves the state of a training to `path` and restores it.

    Args:
        path: of the file.
        state: of the training.
        settings: recorded in the file; a run with other settings cannot continue from it.
    """

    def __init__(self, path: Path, state: State, settings: dict[str, Any]) -> None:
        self.path, self.state = path, state
        self.settings = {k: v for k, v in settings.items() if k != "steps"}  # a run may be made longer

    def save(self) -> None:
        """Write the state to the file."""
        tensors = self.state.tensors()
        position = int(tensors.pop("batches.position"))
        write_tensors(self.path, tensors, {"settings": self.settings, "position": position})

    def resume(self) -> None:
        """Continue from the file if it exists; a ValueError if it belongs to another run."""
        if not self.path.exists():
            return
        tensors, about = read_tensors(self.path)
        other = {k: v for k, v in self.settings.items() if about["settings"].get(k) != v}
        if other:
            found = {k: about["settings"].get(k) for k in other}
            raise ValueError(f"the checkpoint {self.path} is of another run: it has {found}, this run has {other}")
        self.state.load(tensors, about["position"], f"the checkpoint {self.path}")
