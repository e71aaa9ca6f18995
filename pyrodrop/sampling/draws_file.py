"""The file of a run that draws: where an interrupted run goes on, to the draws of a run without interruption.

It has the chains as they were after tuning and a number of draws, these draws, and the state of the generator. A run that
is stopped while it tunes begins anew. The file knows its run: the model with its values, the data, where the chains started,
and the options that change the result. Only more draws may be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from pyrodrop.files import check_writable, read_tensors, under, write_tensors
from pyrodrop.identity import differences, is_words, refuse
from pyrodrop.sampling.chains import Chains, Drawn

_KIND = "sampling"
_NUMBERS = ("transitions", "done", "cpu_seconds")


class Saved(NamedTuple):
    """What the file has.

    Attributes:
        tensors: of the chains, by name.
        learned: by the tuning.
        numbers: transitions, draws and processor time so far.
    """

    tensors: dict[str, Tensor]
    learned: dict[str, float]
    numbers: dict[str, float]

    @property
    def dtype(self) -> torch.dtype:
        """Of the chains."""
        return self.tensors["state.q"].dtype

    @property
    def rounding(self) -> float:
        """Of their energies."""
        return float(self.tensors["rounding"])


class DrawsFile:
    """The file of one run.

    Args:
        identity: what the run is made of, in words by name.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path: Path = path
        self.identity: dict[str, str] = dict(identity)
        check_writable(path)

    def save(self, chains: Chains, rounding: float) -> None:
        """Write the chains and their draws in place of what the file has."""
        drawn = chains.drawn
        tensors = {f"state.{name}": value for name, value in chains.state._asdict().items()}
        tensors |= {f"tuned.{name}": value for name, value in chains.tuned().items()}
        tensors |= {f"stats.{name}": value[:, : drawn.done] for name, value in drawn.stats.items()}
        tensors |= {"q": drawn.q[:, : drawn.done], "generator": chains.generator.get_state()}
        numbers = dict(zip(_NUMBERS, (chains.transitions, drawn.done, drawn.cpu_seconds), strict=True))
        about = {"kind": _KIND, "run": self.identity, "learned": chains.learned, "numbers": numbers}
        tensors["rounding"] = torch.tensor(rounding, dtype=torch.float64)  # may be NaN, which JSON has not
        write_tensors(self.path, tensors, about)

    def read(self) -> Saved | None:
        """What the file has; None if there is none.

        Raises:
            ValueError: it is of another run, or is no such file.
            OSError: it cannot be read.
        """
        if not self.path.exists():
            return None
        tensors, about = read_tensors(self.path)
        run: Any
        run, learned, numbers = (about.get(name) for name in ("run", "learned", "numbers"))
        if about.get("kind") != _KIND or not is_words(run):
            raise ValueError(f"checkpoint must be a file that pyrodrop.sample wrote, or a new one; got {self.path}")
        refuse(
            {"run": differences(run, self.identity)},
            f"the checkpoint {self.path} is of another run",
            "Use another file",
        )
        if not _are_numbers(learned) or not _are_numbers(numbers) or not set(_NUMBERS) <= numbers.keys():
            raise self._damaged()
        if "state.q" not in tensors or tensors.get("rounding", torch.empty(0)).dim():
            raise self._damaged()
        return Saved(tensors, learned, numbers)

    def restore(self, chains: Chains, saved: Saved) -> None:
        """Put chains, which have not moved yet, to where they were.

        Raises:
            ValueError: the file has other tensors than these chains, or more draws than they are to make.
        """
        tensors, done = saved.tensors, int(saved.numbers["done"])
        if done > chains.draws:
            raise ValueError(
                f"draws must be at least the {done} that the checkpoint {self.path} has already; got {chains.draws}"
            )
        state, tuned, stats = (under(part, tensors) for part in ("state.", "tuned.", "stats."))
        wanted = {**chains.state._asdict(), **chains.tuned()}
        found, (count, size) = {**state, **tuned}, chains.state.q.shape
        fits = found.keys() == wanted.keys() and all(
            found[name].shape == value.shape and found[name].dtype == value.dtype for name, value in wanted.items()
        )
        fits &= done == 0 or {"lp", "diverging", "n_steps"} <= stats.keys()
        fits &= all(value.shape == (count, done) for value in stats.values())
        q, generator = tensors.get("q"), tensors.get("generator")
        like = chains.generator.get_state()
        fits &= q is not None and q.shape == (count, done, size) and q.dtype == saved.dtype
        fits &= generator is not None and generator.shape == like.shape and generator.dtype == like.dtype
        if not fits or q is None or generator is None:
            raise self._damaged()
        place = chains.state.q.device
        chains.state = type(chains.state)(**{name: value.to(place) for name, value in state.items()})
        chains.learned, chains.transitions = dict(saved.learned), int(saved.numbers["transitions"])
        chains.retune({name: value.to(place) for name, value in tuned.items()})
        chains.generator.set_state(generator)
        more = chains.draws - done
        chains.drawn = Drawn(
            torch.cat([q, q.new_empty(count, more, size)], 1),
            {name: torch.cat([v, v.new_zeros(count, more)], 1) for name, v in stats.items()},
            done,
            saved.numbers["cpu_seconds"],
        )

    def _damaged(self) -> ValueError:
        return ValueError(f"the checkpoint {self.path} is damaged: it does not have the chains of this run")


def _are_numbers(value: Any) -> TypeGuard[dict[str, float]]:
    return isinstance(value, dict) and all(
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        for number in value.values()
    )
