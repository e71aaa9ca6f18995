"""Rounds of asking: train on the labelled rows, score, ask for the labels of some others.

A replicate is a way to choose rows with a seed. All replicates of a posterior are trained at once, each on its own rows, and
those of one seed start from the same rows. A round is kept in a file, so that an interrupted run repeats none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrodrop.analysis.reports.folder import Cells
from pyrodrop.data import Dataset
from pyrodrop.files import Record
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.training.replicates import Replicates, fit_replicates

RANDOM = "random"


@dataclass(frozen=True)
class Task(ABC):
    """What a posterior learns. Seeds are of the first rows, the unlabelled ones that are scored, weights and noise.

    Attributes:
        acquisitions: how rows may be chosen, with `RANDOM`.
        size: number of rows of a round.
        candidates: number of unlabelled rows, random ones of each round, of which the best are chosen.
    """

    posterior: str
    steps: int
    device: torch.device
    acquisitions: ClassVar[tuple[str, ...]]
    size: ClassVar[int]
    candidates: ClassVar[int]

    @abstractmethod
    def data(self, seed: int) -> tuple[Dataset, Dataset]:
        """The training rows, labelled or not, and the test rows."""

    @abstractmethod
    def start(self, seed: int) -> Tensor:
        """The rows that are labelled at first."""

    @abstractmethod
    def train(self, parts: Sequence[Dataset], seeds: Sequence[int]) -> Sequence[Any]:
        """What was trained on the labelled rows, for every replicate."""

    @abstractmethod
    def score(self, run: Any, test: Dataset, seed: int) -> float:
        """How good it is on the test rows."""

    @abstractmethod
    def best(self, run: Any, acquisition: str, x: Tensor, seed: int) -> Tensor:
        """Which `size` of the rows to ask for."""

    def fits(
        self, networks: Sequence[NetworkModel], guide: Callable[[Any], Guide], parts: Sequence[Dataset], **options: Any
    ) -> Replicates:
        """All networks, each trained on its own part."""
        many = fit_replicates(
            networks, [guide(network) for network in networks], list(parts), count=len(networks), steps=self.steps,
            estimator="local", device=self.device, progress=False, **options,
            engine="traced",  # every round has another number of rows, for which a program would be compiled anew
        )  # fmt: skip
        if many.failed:
            raise FloatingPointError(f"the loss of {self.posterior} stopped being finite in {sorted(many.failed)}")
        return many


def learn(task: Task, name: str, *, labels: int, seeds: Sequence[int], folder: Path) -> dict[str, Any]:
    """From the first rows to this number of `labels`.

    Returns:
        ``labels``, their numbers by round; by acquisition ``scores``, a list over rounds of lists over seeds, and
        ``asked``, the rows, a list over rounds of lists over seeds of lists.
    """
    replicates = [(acquisition, seed) for acquisition in task.acquisitions for seed in seeds]
    each = [seed for _, seed in replicates]

    def check(record: Record) -> None:
        record.numbers("scores", len(each))
        record.numbers("asked", len(each) * task.size)

    cells = Cells(folder / "rounds", lambda _: {}, check)
    labelled = [task.start(seed) for seed in each]
    numbers: list[int] = []
    scores: list[list[float]] = []
    rows: list[Tensor] = []
    while not numbers or numbers[-1] + task.size <= labels:
        numbers.append(len(labelled[0]))
        cell = f"{name}-{numbers[-1]}"
        result = cells.kept(cell) or cells.keep(cell, _round(task, replicates, labelled))
        scores.append(result["scores"])
        rows.append(torch.tensor(result["asked"]).reshape(len(each), task.size))
        labelled = [torch.cat(pair) for pair in zip(labelled, rows[-1], strict=True)]

    def by_acquisition(values: Tensor) -> dict[str, Any]:
        parts = values.unflatten(1, (-1, len(seeds))).unbind(1)
        return {name: part.tolist() for name, part in zip(task.acquisitions, parts, strict=True)}

    return {
        "labels": numbers,
        "scores": by_acquisition(torch.tensor(scores, dtype=torch.float64)),
        "asked": by_acquisition(torch.stack(rows)),
    }


def _round(task: Task, replicates: Sequence[tuple[str, int]], labelled: Sequence[Tensor]) -> dict[str, Any]:
    """Scores of all replicates, and the rows to ask for next, one replicate after the other."""
    seeds = [seed for _, seed in replicates]
    parts = [task.data(seed)[0].rows(rows) for rows, seed in zip(labelled, seeds, strict=True)]
    scores, asked = [], []
    for run, (acquisition, seed), known in zip(task.train(parts, seeds), replicates, labelled, strict=True):
        train, test = task.data(seed)
        scores.append(task.score(run, test, seed))
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1000 * seed + len(known)))
        rows = order[~torch.isin(order, known)][: task.candidates]
        chosen = slice(task.size) if acquisition == RANDOM else task.best(run, acquisition, train.x[rows], seed).cpu()
        asked += rows[chosen].tolist()
    return {"scores": scores, "asked": asked}
