"""Checkpoints: the state of a training in one file, from which an interrupted run continues to the same result.

A checkpoint knows its run: model, guide, data and settings (`pyrodrop.training.record.identity`). Only the number of steps
may differ, unless `fit` allows more.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pyrodrop.arguments import count
from pyrodrop.arguments import path as checked_path
from pyrodrop.files import check_writable, read_tensors, write_tensors
from pyrodrop.ranks import Averaging, Ranks
from pyrodrop.training.rank_noise import RankRandom
from pyrodrop.training.record import Identity, check_allowed, check_same
from pyrodrop.training.state import State

_FILE = "the file to save the state of the training to"
ALLOW = "checkpoint=pyrodrop.Checkpoint(..., allow={})"


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
            bytecode, constants and defaults are equal. Another number of ranks needs no permission: the epoch continues, the
            noise is new, and the log says so.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, out of range, or an unknown name in `allow`.

    Example:
        >>> import pyrodrop
        >>> pyrodrop.Checkpoint("state.safetensors", every=1000, allow=("lr",)).every
        1000
    """

    def __init__(self, path: str | Path, *, every: int = 10_000, allow: Collection[str] = ()) -> None:
        self.path = checked_path(path, "path", _FILE)
        self.every = count(every, "every", "the number of steps between two savings")
        self.allow = check_allowed(allow, "allow")

    @staticmethod
    def of(value: str | Path | Checkpoint | None) -> Checkpoint | None:
        """The argument ``checkpoint`` of `fit`."""
        if value is None or isinstance(value, Checkpoint):
            return value
        return Checkpoint(checked_path(value, "checkpoint", _FILE))


class StateFile:
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
            content = read_tensors(self.path) if self.ranks.first and self.path.exists() else None
        content = self.ranks.of_first(content)
        if content is None:
            return
        name, (tensors, about) = f"the checkpoint {self.path}", content
        with self.ranks.together():
            position = about.get("position")
            restarts = check_same(about.get("run"), self.identity, self.allow, name, ALLOW)
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
            f"as a smaller lr and {ALLOW.format(('lr',))}."
        )
