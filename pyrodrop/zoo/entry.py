"""An entry of the zoo: a data set, a model with priors, a posterior and training settings under one name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pyrodrop.checks import Seed, checked
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.training.fit import fit
from pyrodrop.training.result import Fit


@dataclass(frozen=True)
class Entry:
    """A model and a posterior with their published training settings.

    Attributes:
        name: ``set/model``; also the path of its measured results in ``analysis/reference``.
        summary: one-line description.
        source: paper, and figure or table.
        data: name of one of `pyrodrop.zoo.sources.SOURCES`.
        model: makes a new model from the training data, with initial weights from torch's generator (``seed=None``).
        guide: makes a new guide from the model: a class of `pyrodrop.guides`, or a `functools.partial` of one.
        training: makes the arguments of `pyrodrop.fit` from the training data; ``epochs`` may be in place of ``steps``, and
            ``schedule`` makes the schedule of the learning rate from the number of steps.
        published: published results by the name of our score; empty if the source has only text, or curves not read off.
        draws: number of posterior samples for prediction.
        published_errors: their standard errors, where they are known.
        published_as: name of the published results in tables; if they were read off a figure, with the precision of that.
        purpose: use of the entry in a few words, which several entries may share, such as "counts".
    """

    name: str
    summary: str
    source: str
    data: str
    model: Callable[[Dataset], NetworkModel]
    guide: Callable[[NetworkModel], Guide]
    training: Callable[[Dataset], Mapping[str, Any]]
    published: Mapping[str, float] = field(default_factory=dict)
    draws: int = 100
    published_as: str = "published"
    published_errors: Mapping[str, float] = field(default_factory=dict)
    purpose: str = ""

    @checked
    def build(self, data: Dataset, seed: Seed = 0) -> tuple[NetworkModel, Guide]:
        """A new model and guide with initial weights from `seed`; the caller's random state is unchanged.

        Raises:
            ValueError: `seed` is negative.
            TypeError: it is no whole number.
        """
        with seeded(seed, torch.device("cpu")):
            model = self.model(data)
            return model, self.guide(model)

    def fit(self, data: Dataset, *, seed: int = 0, **overrides: Any) -> Fit:
        """Build and train with the published settings; `overrides` replaces arguments of `pyrodrop.fit`."""
        model, guide = self.build(data, seed)
        return fit(model, guide, data, seed=seed, **self.settings(data, **overrides))

    def settings(self, data: Dataset, **overrides: Any) -> dict[str, Any]:
        """Arguments of `pyrodrop.fit`; a schedule of the learning rate is that of the number of steps in `overrides`."""
        made = {**self.training(data), **overrides}
        epochs, schedule = made.pop("epochs", None), made.pop("schedule", None)
        if epochs is not None:
            made.setdefault("steps", epochs * -(-len(data) // made["batch_size"]))
        if schedule is not None:
            made.setdefault("lr_schedule", schedule(made["steps"]))
        return made
