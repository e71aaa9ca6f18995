"""An entry of the zoo: a data set, a model with priors, a posterior and training settings under one name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pyrodrop import guides
from pyrodrop.checks import Seed, checked
from pyrodrop.data import Dataset, Split
from pyrodrop.devices import seeded
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.training.fit import fit
from pyrodrop.training.replicates import fit_replicates
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
        published_runs: number of runs that the published results are means of. If it is above 1 and there are errors, a
            single run of ours is assumed to vary as much as one of theirs.
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
    published_runs: int = 1
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

    def fit_splits(self, splits: Sequence[Split], *, seed: int = 0, **overrides: Any) -> Sequence[Fit]:
        """One fit per split, split r with ``seed + r``; several splits are trained together by `fit_replicates`."""
        if len(splits) == 1:
            return [self.fit(splits[0].train, seed=seed, **overrides)]
        data = [split.train for split in splits]
        models, posteriors = zip(*(self.build(rows, seed + number) for number, rows in enumerate(data)), strict=True)
        return fit_replicates(
            models, posteriors, data, count=len(data), seed=seed, **self.settings(data[0], **overrides)
        )

    def settings(self, data: Dataset, **overrides: Any) -> dict[str, Any]:
        """Arguments of `pyrodrop.fit`; a schedule of the learning rate is that of the number of steps in `overrides`."""
        made = {**self.training(data), **overrides}
        epochs, schedule = made.pop("epochs", None), made.pop("schedule", None)
        if epochs is not None:
            made.setdefault("steps", epochs * -(-len(data) // made["batch_size"]))
        if schedule is not None:
            made.setdefault("lr_schedule", schedule(made["steps"]))
        return made

    def recipe(self, data: Dataset) -> dict[str, Any]:
        """A JSON-compatible description of network, prior, posterior and training."""
        model, guide = self.build(data)
        return {
            "network": model.describe(),
            "prior": {name: prior.describe() for name, prior in model.priors.items()},
            "posterior": guide.describe(),
            "training": {name: _plain(value) for name, value in self.settings(data).items()},
        }


def guide_class(entry: Entry) -> type | None:
    """The public class of an entry's guide; None if it is neither one of `pyrodrop.guides` nor a partial of one."""
    made: Any = getattr(entry.guide, "func", entry.guide)
    return made if isinstance(made, type) and getattr(guides, made.__name__, None) is made else None


def _plain(value: Any) -> Any:
    """A setting as a number or a string."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, functools.partial):
        arguments = ", ".join(f"{k}={_plain(v)}" for k, v in value.keywords.items())
        return f"{_plain(value.func)}({arguments})"
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__.split(".")[0].lstrip("_")
    return str(value)
