"""Checkpoints of replicates: the states of all of them in one file, which continues to the same result.

The file says which replicates train together, since that decides how sums are rounded: a run continues with the same turns,
whatever memory is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pyrodrop.engines import Loss
from pyrodrop.files import check_writable, read_tensors, write_tensors
from pyrodrop.training.checkpoint import ALLOW, Checkpoint
from pyrodrop.training.optimizer import optimizer_of
from pyrodrop.training.problem import Problem
from pyrodrop.training.record import PARTS, Identity, check_same, identity, record
from pyrodrop.training.settings import Settings
from pyrodrop.training.stacked_state import StackedState
from pyrodrop.training.turns import Turns


class TurnsCheckpoint:
    """Reads the states of all replicates from a file, and writes them.

    Args:
        saving: where, and what may differ from the run that wrote the file.
        problems: one per replicate.
        losses: of the problems.
        settings: of all.

    Raises:
        ValueError: the file belongs to another run, or is no whole checkpoint of replicates.
        OSError: the file cannot be read or written.
    """

    def __init__(
        self, saving: Checkpoint, problems: Sequence[Problem], losses: Sequence[Loss], settings: Settings
    ) -> None:
        self.saving, self._settings = saving, record(settings, problems[0], settings.seed)
        self._count, self._identity = len(problems), identity_of_all(settings, problems, losses)
        self._turns: Turns | None = None
        self.saved = False
        check_writable(saving.path)
        self._read = self._checked() if saving.path.exists() else None

    @property
    def name(self) -> str:
        """The file in words, for messages."""
        return f"the checkpoint {self.saving.path}"

    def parts(self, groups: Sequence[Sequence[int]]) -> list[list[int]] | None:
        """The numbers of the replicates of every turn, as the file says; None without a file.

        Args:
            groups: those that can train together.

        Raises:
            ValueError: the file says that others train together.
        """
        if self._read is None:
            return None
        parts = [turn["replicates"] for turn in self._read[1]]
        if not all(any(set(part) <= set(group) for group in groups) for part in parts):
            raise ValueError(f"{self.name} is of other replicates: it trains some together whose shapes differ here")
        return parts

    def resume(self, turns: Turns) -> None:
        """Continue from the file, if there is one; the file is given up."""
        self._turns = turns
        if self._read is None:
            return
        (tensors, about, restarts), self._read = self._read, None
        for number, (turn, own) in enumerate(zip(turns.turns, about, strict=True)):
            prefix = f"turn {number}."
            state = {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}
            StackedState(turn.stack, turn.loop).load(state, own["position"], self.name, **restarts)
            if own["failed"] is not None:
                turn.fail(FloatingPointError(own["failed"]))
        self.saved = True

    def save(self) -> None:
        """Write the states of all turns to the file.

        Raises:
            FloatingPointError: no replicate of the turn that trains now has a finite loss; the file stays as it was.
            OSError: the file cannot be written; it stays as it was.
        """
        assert self._turns is not None
        tensors: dict[str, Tensor] = {}
        about = []
        for number, turn in enumerate(self._turns.turns):
            if turn.error is None:
                turn.loop.check_finite(whole=True)
            state = StackedState(turn.stack, turn.loop).tensors()
            position = int(state.pop("batches.position"))
            tensors |= {f"turn {number}.{name}": value for name, value in state.items()}
            failed = None if turn.error is None else str(turn.error)
            about.append({"replicates": turn.numbers, "position": position, "failed": failed})
        write_tensors(self.saving.path, tensors, {"settings": self._settings, "turns": about, "run": self._identity})
        self.saved = True

    def where(self) -> str:
        """Where to continue after a failure, as a sentence; empty if nothing was saved."""
        if not self.saved:
            return ""
        return (
            f" The file {self.saving.path} has the last finite state: continue from there with other settings, such as a "
            f"smaller lr and {ALLOW.format(('lr',))}."
        )

    def _checked(self) -> tuple[dict[str, Tensor], list[dict[str, Any]], dict[str, bool]]:
        """The tensors of the file, what it says of the turns, and what starts anew."""
        tensors, about = read_tensors(self.saving.path)
        restarts = check_same(about.get("run"), self._identity, self.saving.allow, self.name, ALLOW)
        turns = about.get("turns")
        if not isinstance(turns, list) or not all(map(_is_turn, turns)):
            raise ValueError(f"{self.name} is not one of replicates: it does not say which of them train together")
        numbers = sorted(number for turn in turns for number in turn["replicates"])
        if numbers != list(range(self._count)):
            raise ValueError(
                f"{self.name} must be of as many replicates as this run, {self._count}; got {len(numbers)}"
            )
        return tensors, turns, restarts._asdict()


def identity_of_all(settings: Settings, problems: Sequence[Problem], losses: Sequence[Loss]) -> Identity:
    """What a run of replicates is made of: the words of replicate 0, and of each other what differs from it."""
    first = _alone(settings, problems[0], losses[0])
    found = {part: dict(words) for part, words in first.items()}
    for r, (problem, loss) in enumerate(zip(problems, losses, strict=True)):
        own = _alone(settings, problem, loss)
        for part in PARTS:
            names = dict.fromkeys([*own[part], *first[part]])
            here = {name: own[part].get(name, "absent") for name in names}
            found[part] |= {f"replicate {r}: {n}": v for n, v in here.items() if v != first[part].get(n, "absent")}
    found["model"] = {"replicates": str(len(problems)), **found["model"]}
    return found


def _alone(settings: Settings, problem: Problem, loss: Loss) -> Identity:
    leaves = {name: parameter.unconstrained for name, parameter in loss.parameters.items()}
    optimizer = optimizer_of(leaves, settings.optimizer, settings.lr)
    names = {id(leaf): name for name, leaf in leaves.items()}
    rates = {names[id(leaf)]: group["lr"] for group in optimizer.param_groups for leaf in group["params"]}
    return identity(settings, problem, loss, optimizer, rates)


def _is_turn(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("replicates"), list)
        and bool(value["replicates"])
        and all(type(number) is int for number in value["replicates"])
        and type(value.get("position")) is int
        and isinstance(value.get("failed", ()), str | None)
    )
