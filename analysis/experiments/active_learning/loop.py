"""Rounds of asking: train on the labelled rows, score, ask for the labels of a few others.

A replicate is an acquisition with a seed, and all replicates of a posterior are trained at once, each on its own rows. Those
of one seed start from the same labelled rows. A round is kept in a file, with the rows it asked for, so that a run that was
broken off repeats none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from pyrodrop.analysis.reports.folder import Cells
from pyrodrop.json_files import Record

RANDOM = "random"


class Task(Protocol):
    """What is learned by one posterior.

    Attributes:
        acquisitions: how rows may be chosen; `RANDOM` is the first.
        size: number of labels of a round.
        candidates: number of unlabelled rows, chosen at random anew in every round, of which the best are asked for.
    """

    acquisitions: tuple[str, ...]
    size: int
    candidates: int

    def start(self, seed: int) -> Tensor:
        """The rows that are labelled at first."""

    def rows(self, seed: int) -> int:
        """Number of rows, labelled or not."""

    def train(self, labelled: Sequence[Tensor], seeds: Sequence[int]) -> Sequence[Any]:
        """What was trained on these rows, one per replicate."""

    def score(self, run: Any, seed: int) -> float:
        """How good it is on the test rows."""

    def best(self, run: Any, acquisition: str, rows: Tensor, seed: int) -> Tensor:
        """Which `size` of these rows to ask for."""


def learn(task: Task, name: str, *, labels: int, seeds: Sequence[int], folder: Path) -> dict[str, Any]:
    """Scores from the first labelled rows to this number of `labels`.

    Returns:
        ``labels``, their numbers, and ``scores`` by acquisition: lists over these numbers of lists over `seeds`.
    """
    replicates = [(acquisition, seed) for acquisition in task.acquisitions for seed in seeds]
    count = len(replicates)

    def check(record: Record) -> None:
        record.numbers("scores", count)
        record.numbers("asked", count * task.size)

    cells = Cells(folder / "rounds", lambda _: {}, check)
    labelled = [task.start(seed) for _, seed in replicates]
    numbers, scores = [], []
    while True:
        numbers.append(len(labelled[0]))
        found = cells.kept(f"{name}-{numbers[-1]}")
        if found is None:
            runs = task.train(labelled, [seed for _, seed in replicates])
            asked = [
                _asked(task, run, rows, *replicate)
                for run, rows, replicate in zip(runs, labelled, replicates, strict=True)
            ]
            found = cells.keep(
                f"{name}-{numbers[-1]}",
                {
                    "scores": [task.score(run, seed) for run, (_, seed) in zip(runs, replicates, strict=True)],
                    "asked": torch.cat(asked).tolist(),
                },
            )
        scores.append(torch.tensor(found["scores"], dtype=torch.float64).reshape(len(task.acquisitions), -1))
        if numbers[-1] + task.size > labels:
            break
        new = torch.tensor(found["asked"]).reshape(count, task.size)
        labelled = [torch.cat(pair) for pair in zip(labelled, new, strict=True)]
    by_acquisition = torch.stack(scores, 1).tolist()
    return {"labels": numbers, "scores": dict(zip(task.acquisitions, by_acquisition, strict=True))}


def _asked(task: Task, run: Any, labelled: Tensor, acquisition: str, seed: int) -> Tensor:
    """The rows whose labels are asked for, none of which is labelled."""
    generator = torch.Generator().manual_seed(1000 * seed + len(labelled))
    order = torch.randperm(task.rows(seed), generator=generator)
    rows = order[~torch.isin(order, labelled)][: task.candidates]
    return rows[: task.size] if acquisition == RANDOM else rows[task.best(run, acquisition, rows, seed).cpu()]
