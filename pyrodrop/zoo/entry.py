"""One entry of the zoo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.fitted import Fit
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.svi import fit


@dataclass(frozen=True)
class Entry:
    """A model and a posterior joined by a name, with the training they were published with.

    Attributes:
        name: ``set/model``.
        summary: one line.
        source: paper, figure or table.
        build: from the training data to a fresh model and guide. Initial weights come from torch's random state.
        training: from the training data to the arguments of `pyrodrop.fit`.
    """

    name: str
    summary: str
    source: str
    build: Callable[[Dataset], tuple[NetworkModel, Guide]]
    training: Callable[[Dataset], Mapping[str, Any]]

    def fit(self, data: Dataset, *, seed: int = 0, **overrides: Any) -> Fit:
        """Build and train as published, but for what `overrides` changes; see `pyrodrop.fit`.

        `seed` decides the initial weights too, and the caller's random state is left alone.
        """
        with seeded(seed, torch.device("cpu")):
            model, guide = self.build(data)
        return fit(model, guide, data, seed=seed, **{**self.training(data), **overrides})
