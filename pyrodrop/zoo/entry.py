"""An entry of the zoo: a data set, a model with priors, a posterior and training settings under one name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from pyrodrop import guides
from pyrodrop.checks import Count, Seed, checked
from pyrodrop.data import Dataset, Split
from pyrodrop.devices import seeded
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.schedules import cosine
from pyrodrop.training.fit import fit
from pyrodrop.training.replicates import fit_replicates
from pyrodrop.training.result import Fit


@checked
@dataclass(frozen=True)
class Check:
    """Settings of the short run that checks an entry against its reference.

    Attributes:
        steps: number of training steps.
        train: number of training observations, the first ones; all if None.
        test: number of test observations, the first ones; all if None.
        draws: number of posterior samples for prediction.
        splits: number of splits of the data.

    Raises:
        ValueError: a number is below 1.
        TypeError: it is no whole number.
    """

    steps: Annotated[int, Count("the number of training steps")]
    train: Annotated[int, Count("the number of training observations")] | None = None
    test: Annotated[int, Count("the number of test observations")] | None = None
    draws: Annotated[int, Count("the number of posterior samples")] = 20
    splits: Annotated[int, Count("the number of splits")] = 1


@checked
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
        training: makes the arguments of `pyrodrop.fit` from the training data.
        published: published results by the name of our score; empty if the source has only text, or curves not read off.
        check: settings of the short run of ``pyrodrop check``.
        draws: number of posterior samples for prediction.
        published_errors: their standard errors, where they are known.
        published_runs: number of runs that the published results are means of. If it is above 1 and there are errors, a
            single run of ours is assumed to vary as much as one of theirs.
        published_as: name of the published results in tables; if they were read off a figure, with the precision of that.
        purpose: use of the entry in a few words, which several entries may share, such as "counts".

    Raises:
        ValueError: `draws` or `published_runs` is below 1, or an error has no result.
        TypeError: a number is of the wrong type.
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
    draws: Annotated[int, Count("the number of posterior samples")] = 100
    published_as: str = "published"
    published_errors: Mapping[str, float] = field(default_factory=dict)
    published_runs: Annotated[int, Count("the number of published runs")] = 1
    purpose: str = ""

    def __post_init__(self) -> None:
        if unknown := self.published_errors.keys() - self.published.keys():
            raise ValueError(f"published_errors must be of published results; got {', '.join(sorted(unknown))}")

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
        return fit(model, guide, data, seed=seed, **self._settings(data, overrides))

    def fit_splits(self, splits: Sequence[Split], *, seed: int = 0, **overrides: Any) -> Sequence[Fit]:
        """One fit per split, split r with ``seed + r``; several splits are trained together by `fit_replicates`."""
        if len(splits) == 1:
            return [self.fit(splits[0].train, seed=seed, **overrides)]
        data = [split.train for split in splits]
        models, posteriors = zip(*(self.build(rows, seed + number) for number, rows in enumerate(data)), strict=True)
        settings = self._settings(data[0], overrides)
        return fit_replicates(models, posteriors, data, count=len(data), seed=seed, **settings)

    def _settings(self, data: Dataset, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `pyrodrop.fit`. A cosine schedule is lengthened to more steps, which would have the rate 0."""
        settings = {**self.training(data), **overrides}
        rate, steps = settings.get("lr_schedule"), settings.get("steps")
        length = rate.steps if isinstance(rate, cosine) else math.inf
        if "lr_schedule" not in overrides and steps is not None and steps > length:
            settings["lr_schedule"] = cosine(steps)
        return settings

    def recipe(self, data: Dataset) -> dict[str, Any]:
        """A JSON-compatible description of network, prior, posterior and training."""
        model, guide = self.build(data)
        return {
            "network": model.describe(),
            "prior": {name: prior.describe() for name, prior in model.priors.items()},
            "posterior": guide.describe(),
            "training": {name: _plain(value) for name, value in self.training(data).items()},
        }


def settings(
    data: Dataset,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    schedule: Callable[[int], Callable[[int], float]] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Arguments of `pyrodrop.fit`, for an entry's `training`.

    Args:
        steps, epochs: the length of the training, one of them; epochs need a `batch_size`.
        schedule: makes the schedule of the learning rate from the number of steps.
        others: further arguments of `pyrodrop.fit`.
    """
    count = steps if epochs is None else epochs * -(-len(data) // others["batch_size"])
    assert count is not None
    rates = {} if schedule is None else {"lr_schedule": schedule(count)}
    return {"steps": count, **others, **rates}


def guide_class(entry: Entry) -> type | None:
    """The public class of an entry's guide; None if it is neither one of `pyrodrop.guides` nor a partial of one."""
    made: Any = entry.guide.func if isinstance(entry.guide, functools.partial) else entry.guide
    public = (getattr(guides, name) for name in guides.__all__)
    return next((known for known in public if known is made and isinstance(made, type)), None)


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
