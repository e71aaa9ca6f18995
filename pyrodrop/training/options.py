"""The optional arguments of `pyrodrop.fit` and its relatives: their types by name, and the error for an unknown name."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypedDict, TypeVar

import torch

from pyrodrop.engines import Name as EngineName
from pyrodrop.training.fitted import Fit
from pyrodrop.training.fitted_replicates import Replicates
from pyrodrop.training.settings import (
    Estimator,
    KLWeight,
    LearningRate,
    LearningRateSchedule,
    Optimizer,
    Precision,
    RankNoise,
    Starts,
)

P = ParamSpec("P")
T = TypeVar("T")


class TrainingOptions(TypedDict, total=False):
    """The options that `fit`, `fit_replicates` and `Training` share; `fit` describes them."""

    batch_size: int | None
    lr: LearningRate
    optimizer: Optimizer
    lr_schedule: LearningRateSchedule | None
    estimator: Estimator
    kl_weight: KLWeight
    likelihood_power: float
    engine: EngineName
    precision: Precision | None
    starts: Starts
    device: str | torch.device
    seed: int


class ReplicateOptions(TrainingOptions, total=False):
    """The options of `fit_replicates`."""

    memory: float | None
    jobs: int | None
    progress: bool | None
    checkpoint: str | Path | None
    checkpoint_every: int | None
    checkpoint_allow: Collection[str]
    after_epoch: Callable[[Replicates, int], None] | None


class StepOptions(TrainingOptions, total=False):
    """The options that a single `fit` and `Training` share."""

    accumulate: int
    distributed: bool | None
    rank_noise: RankNoise


class FitOptions(StepOptions, total=False):
    """The options of a single `fit`."""

    progress: bool | None
    checkpoint: str | Path | None
    checkpoint_every: int | None
    checkpoint_allow: Collection[str]
    after_epoch: Callable[[Fit, int], None] | None


_FIRST = ["model", "guide", "data"]
_RENAMED = {
    "temperature": "likelihood_power, since it is the power of the likelihood, and a temperature divides",
    "schedule": "lr_schedule; schedules of the KL divergence's weight, such as schedules.linear, belong to kl_weight",
}
_ELSEWHERE = {
    "learning_rate": "lr",
    "epochs": "steps, the number of gradient steps: that of epochs times that of minibatches",
}


def check_settings(settings: Mapping[str, Any], title: str) -> None:
    """Raise a TypeError for settings of replicates that their caller makes itself.

    Args:
        settings: further arguments of `fit_replicates`.
        title: of the caller, for the message.
    """
    for name in ("models", "guides", "data", "count"):
        if name in settings:
            raise TypeError(f"{title}() has no argument {name!r}: it makes its replicates itself, with their {name}")


def names_checked(function: Callable[P, T]) -> Callable[P, T]:
    """Raise a TypeError for an unknown argument that says what it is called now, or which name is nearest."""
    parameters = inspect.signature(function).parameters
    known = [name for name in parameters if name != "self"]
    required = {name for name in known if parameters[name].default is inspect.Parameter.empty}
    title = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        placed = len(args) - ("self" in parameters)
        if placed > len(_FIRST) and known[: len(_FIRST)] == _FIRST:
            raise TypeError(
                f"data must be a Dataset or a pair (x, y), the third argument of {title}(model, guide, data, *, steps=...); "
                f"got {placed} arguments without names: pass x and y as (x, y), and the others by name"
            )
        if "steps" in required and "steps" not in kwargs:
            raise TypeError(f"steps, the number of gradient steps, must be given, {title}(..., steps=1000); got none")
        for name in kwargs:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                hint = f"; it is now called {_RENAMED[name]}" if name in _RENAMED else hint
                hint = f"; here it is {_ELSEWHERE[name]}" if name in _ELSEWHERE else hint
                raise TypeError(f"{title}() has no argument {name!r}{hint}")
        return function(*args, **kwargs)

    return checked
