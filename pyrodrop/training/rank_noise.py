"""The random numbers of ranks: each draws noise of its own, rows are dealt by a generator that is the same on all."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyrodrop.ranks import Ranks

_log = logging.getLogger("pyrodrop")

_ROWS = 2**32  # in the place of a rank's number: the generator of the order of rows
_STATES = ("random.cpu", "random.cuda")


@dataclass
class RankRandom:
    """The generators of a rank."""

    ranks: Ranks
    seed: int

    def __post_init__(self) -> None:
        self.own: bool = self.ranks.size > 1
        self.of_rows: torch.Generator | None = torch.Generator().manual_seed(self._derived(_ROWS)) if self.own else None

    @property
    def start(self) -> int:
        """The seed of this rank's noise; the training's own without others."""
        return self._derived(self.ranks.rank) if self.own else self.seed

    def tensors(self) -> dict[str, Tensor]:
        """Beside the states of torch's generators: whose they are, and the state of the generator of rows."""
        if self.of_rows is None:
            return {}
        ranks = torch.tensor([self.ranks.size, self.ranks.rank])
        return {"random.ranks": ranks, "random.rows": self.of_rows.get_state()}

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A state for a file: with the random states of all ranks; the others are the same on all of them."""
        gathered = dict(tensors)
        if self.own:
            mine = {name: tensors[name] for name in _STATES if name in tensors}
            for rank, states in enumerate(self.ranks.gather(mine)):
                gathered |= {f"{name}.rank {rank}": value for name, value in states.items()}
        return gathered

    def taken(self, tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
        """A state with the random states for this rank; afresh, as the log says, where it was made by other ranks."""
        state = {key: value for key, value in tensors.items() if ".rank " not in key}
        size, rank = (int(n) for n in state.pop("random.ranks", torch.tensor([1, -1])))
        rows = state.pop("random.rows", None)
        done = len(state["history"]) if "history" in state else 0
        mine, ranks = self.ranks.rank, self.ranks
        if not self.own and size == 1:
            return state
        if size == ranks.size and (rank == mine or f"random.cpu.rank {mine}" in tensors):
            for key in _STATES:
                if f"{key}.rank {mine}" in tensors:
                    state[key] = tensors[f"{key}.rank {mine}"]
        else:
            there = f"rank {rank} of {size}" if size == ranks.size else f"{size} rank(s)"
            message = f"{name} is of {there}; on {ranks.size} rank(s) it continues with new noise"
            self._note(message, size == ranks.size)
            seed = self._derived(mine if self.own else 0, done + 1, ranks.size)
            for key in _STATES:
                if key in state:
                    state[key] = _fresh(seed, state[key])
        if self.own:
            state["random.rows"] = self._rows(done) if rows is None else rows
        return state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the generator of rows, if there is one."""
        if self.of_rows is not None:
            self.of_rows.set_state(tensors["random.rows"].cpu())

    def _rows(self, done: int) -> Tensor:
        return torch.Generator().manual_seed(self._derived(_ROWS, done + 1)).get_state()

    def _note(self, message: str, of_rank: bool = False) -> None:
        if self.ranks.first or of_rank:
            _log.warning("%s", message)

    def _derived(self, *numbers: int) -> int:
        """A seed that differs for different numbers; the whole of (seed, numbers) is hashed."""
        halves = np.random.SeedSequence([self.seed, *numbers]).generate_state(2, np.uint32)
        return int(halves[0]) << 31 | int(halves[1]) >> 1


def _fresh(seed: int, like: Tensor) -> Tensor:
    """The state of a newly seeded generator of the kind whose state this is."""
    kind = "cpu" if len(like) == len(torch.Generator().get_state()) else "cuda"
    return torch.Generator(kind).manual_seed(seed).get_state()
