"""The arguments of `pyrodrop.fit` about checkpoints and callbacks, checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyrodrop.arguments import count, path, shown
from pyrodrop.training.record import check_allowed

_EVERY = 10_000  # steps


class Saving(NamedTuple):
    """Where and when to save the state of a training.

    Attributes:
        path: of the file.
        every: number of steps between two savings.
        allow: the parts of the run that may differ from the one that wrote the file.
    """

    path: Path
    every: int
    allow: tuple[str, ...]


def saving_of(checkpoint: Any, every: Any, allow: Any) -> Saving | None:
    """The arguments ``checkpoint``, ``checkpoint_every`` and ``checkpoint_allow``; None without a checkpoint.

    Raises:
        TypeError: one of the wrong kind.
        ValueError: a number out of range, an unknown part, or one of the others without a checkpoint.
    """
    if checkpoint is None and every is not None:
        raise ValueError(
            f"checkpoint_every needs a checkpoint; got checkpoint_every={every} without checkpoint, the file to save to"
        )
    every = _EVERY if every is None else count(every, "checkpoint_every", "the number of steps between two savings")
    if checkpoint is not None:
        checkpoint = path(checkpoint, "checkpoint", "the file to save the state of the training to")
    allow = check_allowed(allow, "checkpoint_allow")
    if allow and checkpoint is None:
        raise ValueError(f"checkpoint_allow needs a checkpoint; got checkpoint_allow={allow} without checkpoint")
    return None if checkpoint is None else Saving(checkpoint, every, allow)


def callback(after_epoch: Callable[[Any, int], None] | None) -> Callable[[Any, int], None] | None:
    """The argument ``after_epoch``; a TypeError if it is no function."""
    if after_epoch is not None and not callable(after_epoch):
        raise TypeError(
            f"after_epoch must be a function of a fit and the number of epochs, or None; got {shown(after_epoch)}"
        )
    return after_epoch
