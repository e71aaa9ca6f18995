"""One entry of the zoo: names that join data, a network with its priors, a posterior and a way to train it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pyrodrop import guides
from pyrodrop.data import Dataset, Split
from pyrodrop.devices import seeded
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.training.fit import fit
from pyrodrop.training.fitted import Fit
from pyrodrop.training.replicates import Replicates, fit_replicates


@dataclass(frozen=True)
class Check:
    """The short run that tells whether an entry still does what it did.

    Attributes:
        steps: of training.
        train, test: the first so many observations; all if None.
        draws: that predict.
        splits: how many of the data's splits.
    """

    steps: int
    train: int | None = None
    test: int | None = None
    draws: int = 20
    splits: int = 1


@dataclass(frozen=True)
class Entry:
    """A model and a posterior joined by a name, with the training they were published with.

    Attributes:
        name: ``set/model``. What we measured lies under this name in ``analysis/reference``.
        summary: one line.
        source: paper, and figure or table.
        data: name of one of `pyrodrop.zoo.sources.SOURCES`.
        model: from the training data to a fresh model. Initial weights come from torch's random state.
        guide: from the model to a fresh guide: a class of `pyrodrop.guides`, or a `functools.partial` of one.
        training: from the training data to the arguments of `pyrodrop.fit`.
        published: the source's figures by the name of our score; empty where it has curves or words alone.
        check: the short run of ``pyrodrop check``.
        draws: functions that predict.
    """

    name: str
    summary: str
    source: str
    data: str
    model: Callable[[Dataset], NetworkModel]
    guide: Callable[[NetworkModel], Guide]
    training: Callable[[Dataset], Mapping[str, Any]]
    published: Mapping[str, float]
    check: Check
    draws: int = 100

    def build(self, data: Dataset, seed: int = 0) -> tuple[NetworkModel, Guide]:
        """A fresh model and guide with the initial weights of `seed`; the caller's random state is left alone."""
        with seeded(seed, torch.device("cpu")):
            model = self.model(data)
            return model, self.guide(model)

    def fit(self, data: Dataset, *, seed: int = 0, **overrides: Any) -> Fit:
        """Build and train as published, but for what `overrides` changes; see `pyrodrop.fit`."""
        model, guide = self.build(data, seed)
        return fit(model, guide, data, seed=seed, **{**self.training(data), **overrides})

    def fit_splits(self, splits: Sequence[Split], *, seed: int = 0, **overrides: Any) -> Sequence[Fit]:
        """One fit a split, split r with ``seed + r``; several as replicates of one fit."""
        if len(splits) == 1:
            return [self.fit(splits[0].train, seed=seed, **overrides)]
        built = [self.build(split.train, seed + number) for number, split in enumerate(splits)]
        return self._replicates(built, splits, seed, {**self.training(splits[0].train), **overrides})

    def _replicates(
        self, built: Sequence[tuple[NetworkModel, Guide]], splits: Sequence[Split], seed: int, settings: Any
    ) -> Replicates:
        models, posteriors = [model for model, _ in built], [guide for _, guide in built]
        return fit_replicates(models, posteriors, [s.train for s in splits], count=len(built), seed=seed, **settings)

    def recipe(self, data: Dataset) -> dict[str, Any]:
        """What the entry is made of, in plain numbers and words."""
        model, guide = self.build(data)
        return {
            "network": model.describe(),
            "prior": {name: prior.describe() for name, prior in model.priors.items()},
            "posterior": guide.describe(),
            "training": {name: _plain(value) for name, value in self.training(data).items()},
        }


def guide_class(entry: Entry) -> type | None:
    """The public class of an entry's guide; None if it is neither one of `pyrodrop.guides` nor a partial of one."""
    made: Any = entry.guide.func if isinstance(entry.guide, functools.partial) else entry.guide
    public = (getattr(guides, name) for name in guides.__all__)
    return next((known for known in public if known is made and isinstance(made, type)), None)


def _plain(value: Any) -> Any:
    """A setting as a number, or in words."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, functools.partial):
        arguments = ", ".join(f"{k}={_plain(v)}" for k, v in value.keywords.items())
        return f"{_plain(value.func)}({arguments})"
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__.split(".")[0].lstrip("_")
    return str(value)
