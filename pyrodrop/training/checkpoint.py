"""Checkpoints: the state of a training in one file, from which an interrupted run continues to the same result.

A checkpoint knows its run: model, guide, data and settings (`pyrodrop.training.record.identity`). Only the number of steps
may differ, unless `fit` allows more.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pyrodrop.files import check_writable, read_tensors, write_tensors
from pyrodrop.ranks import Averaging, Ranks
from pyrodrop.training.rank_noise import RankRandom
from pyrodrop.training.record import Identity, check_same
from pyrodrop.training.state import State


class Checkpoint:
    """Saves the state of a training to `path` and restores it.

    Several ranks all make the same calls; rank 0 reads and writes.

    Args:
        path: of the file.
        state: of the training.
        settings: recorded in the file.
        identity: what the run is made of; a run that differs cannot continue from the file.
        allow: the parts of the identity that may differ.
        random: the generators of this rank.
        average: of several ranks.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        state: State,
        settings: dict[str, Any],
        identity: Identity,
        allow: Collection[str],
        random: RankRandom,
        average: Averaging | None,
    ) -> None:
        self.path, self.state, self.settings, self.identity, self.allow = path, state, settings, identity, allow
        self.random, self.average = random, average
        self.saved: int | None = None
        with self.ranks.together():
            if self.ranks.first:
                check_writable(path)

    @property
    def ranks(self) -> Ranks:
        """The processes that train together."""
        return self.random.ranks

    def save(self) -> None:
        """Write the state to the file.

        Raises:
            FloatingPointError: a loss, a parameter or a buffer is not finite; the file stays as it was.
            OSError: the file cannot be written; it stays as it was.
        """
        loop = self.state.loop
        loop.check_finite(whole=True)
        if self.average is not None:
            self.average.pulse()
        tensors = self.random.gathered(self.state.tensors())
        position = int(tensors.pop("batches.position"))
        with self.ranks.together():
            if self.ranks.first:
                about = {"settings": self.settings, "position": position, "run": self.identity}
                write_tensors(self.path, tensors, about)
        self.saved = loop.done

    def resume(self) -> None:
        """Continue from the file if it exists.

        Raises:
            ValueError: it belongs to another run, or is no whole checkpoint.
            OSError: it cannot be read.
        """
        with self.ranks.together():
            found = read_tensors(self.path) if self.ranks.first and self.path.exists() else None
        found = self.ranks.of_first(found)
        if found is None:
            return
        name, (tensors, about) = f"the checkpoint {self.path}", found
        with self.ranks.together():
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
