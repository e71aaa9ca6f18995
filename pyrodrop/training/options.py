"""The optional arguments of `pyrodrop.fit` and its relatives: their types by name, and the error for an unknown name."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypedDict, TypeVar, get_args, get_type_hints

import torch
from pyro.infer import ELBO

from pyrodrop.constraints import EngineName
from pyrodrop.names import did_you_mean
from pyrodrop.training.settings import (
    Estimator,
    KLWeight,
    LearningRate,
    LearningRateSchedule,
    Optimizer,
    Settings,
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
    objective: ELBO | None
    engine: EngineName
    device: str | torch.device
    seed: int


_FIRST = ["model", "guide", "data"]
_MANY = "it belongs to fit_replicates(model, guide, data, count=...), for several fits"
_HINTS = {
    "temperature": "here it is kl_weight, the factor of the KL divergence in the loss",
    "schedule": "here it is lr_schedule; schedules of the KL divergence's weight, such as schedules.linear, belong to "
    "kl_weight",
    "learning_rate": "here it is lr",
    "epochs": "here it is steps, the number of gradient steps: that of epochs times that of minibatches",
    "replicates": _MANY,
    "memory": _MANY,
    "jobs": _MANY,
    "checkpoint": "it belongs to fit, for one fit: train replicates by shares, with Replicates.save after each; a Training "
    "has state()",
    "after_epoch": "it belongs to fit, for one fit at a time",
}


def check_settings(settings: Mapping[str, Any], title: str) -> None:
    """Raise a TypeError for arguments of `fit_replicates` that the function `title` sets itself."""
    for name in ("models", "guides", "data", "count"):
        if name in settings:
            raise TypeError(f"{title}() has no argument {name!r}: it makes its replicates itself, with their {name}")


def with_options(function: Callable[P, T]) -> Callable[P, T]:
    """Put the options of ``**options: Unpack[...]`` into a function's signature, with the defaults of `Settings`.

    An unknown argument is a TypeError that says what it is called here, or which name is nearest.
    """
    signature, hints = inspect.signature(function), get_type_hints(function)
    parameters = {name: one for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
    (spelled,) = get_args(hints.pop("options"))
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    for name, hint in get_type_hints(spelled).items():
        hints[name] = hint
        parameters[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hint
        )
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
        for name in kwargs:
            if name not in known:
                hint = f"; {_HINTS[name]}" if name in _HINTS else did_you_mean(name, known)
                raise TypeError(f"{title}() has no argument {name!r}{hint}")
        if "steps" in required and "steps" not in kwargs:
            raise TypeError(f"steps, the number of gradient steps, must be given, {title}(..., steps=1000); got none")
        return function(*args, **kwargs)

    checked.__annotations__ = hints
    checked.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    return checked
