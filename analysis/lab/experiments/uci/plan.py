"""The interface of a column of the UCI table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch

from pyrodrop.analysis.lab.experiments.uci import protocol as uci_protocol
from pyrodrop.analysis.lab.experiments.uci.protocol import Point
from pyrodrop.constraints import EngineName
from pyrodrop.data import Dataset
from pyrodrop.prediction.prediction import Predicts

Penalty = Literal["released", "paper"]
Noise = Literal["grid", "learned", "heteroscedastic"]
Precision = Literal["auto", "grid", "learned", "heteroscedastic"]


class Part(NamedTuple):
    """One training of the table: rows, and the point of the grid."""

    train: Dataset
    point: Point


@dataclass(frozen=True)
class Plan:
    """Common settings of all trainings of a cell."""

    epochs: int
    batch: int
    hidden: tuple[int, ...]
    precision: Noise
    penalty: Penalty
    seed: int
    device: torch.device
    engine: EngineName = "auto"


class Posterior(Protocol):
    """A column of the table."""

    @property
    def summary(self) -> str:
        """One-line description."""
        ...

    @property
    def noises(self) -> tuple[Noise, ...]:
        """Supported kinds of noise, the default first."""
        ...

    @property
    def with_rate(self) -> bool:
        """Whether the posterior has a drop rate to set."""
        ...

    def draws(self, protocol: uci_protocol.Protocol) -> int:
        """Number of posterior samples for prediction."""
        ...

    def at_once(self, rows: int, plan: Plan) -> int:
        """Number of parts to train in one fit."""
        ...

    def predictors(
        self, parts: Sequence[Part], plan: Plan, first: int, progress: bool | None
    ) -> Sequence[Predicts | None]:
        """A trained posterior for every part, None for one whose loss was not finite.

        Part i has the seed ``plan.seed + first + i``; an ensemble of m has the m seeds from ``plan.seed + (first + i) m``.
        """
        ...
