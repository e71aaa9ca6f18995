"""What `pyrodrop.fit` is asked for, checked before anything is built: factors, schedules, and names that have changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from pyrodrop.data import Dataset
from pyrodrop.schedules import KLSchedule, LRSchedule

_RENAMED = {
    "temperature": "likelihood_power, since it is the power of the likelihood, and a temperature divides",
    "schedule": "lr_schedule; schedules of the divergence's weight, such as schedules.linear, belong to kl_weight",
}


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise a TypeError for arguments that `pyrodrop.fit` does not have, with the new name of those that it had."""
    for name in names:
        if name in _RENAMED:
            raise TypeError(f"fit() has no argument {name!r}; it is now called {_RENAMED[name]}")
        raise TypeError(f"fit() has no argument {name!r}")


def likelihood_power_of(value: float) -> float:
    """The power of the likelihood, positive and finite, or a ValueError."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"likelihood_power is the power of the likelihood, positive and finite; got {value}")
    return value


def kl_weight_of(value: float | Callable[[float], float]) -> Callable[[float], float]:
    """The divergence's weight as a function of the epochs done.

    Raises:
        TypeError: neither a number nor a function, or a schedule of the learning rate.
        ValueError: it starts negative or not finite.
    """
    if isinstance(value, LRSchedule):
        raise TypeError(
            f"kl_weight is a number or a function of the epochs done, such as schedules.linear(20); {value} is a schedule "
            "of the learning rate by step: give it as lr_schedule"
        )
    if callable(value):
        weight: Any = value
    elif isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise TypeError(
            "kl_weight is the factor of the divergence: a number, or a function of the epochs done, such as "
            f"schedules.linear(20); got a {type(value).__name__}"
        )
    else:
        weight = lambda _: float(value)  # noqa: E731
    if not (math.isfinite(weight(0.0)) and weight(0.0) >= 0):
        raise ValueError(
            f"kl_weight is the factor of the divergence and must be finite and at least 0; got {weight(0.0)}"
        )
    return weight  # type: ignore[no-any-return]


def lr_schedule_of(value: Callable[[int], float] | None) -> Callable[[int], float] | None:
    """The learning rate's factor as a function of the steps done; a TypeError for anything else."""
    if isinstance(value, KLSchedule):
        raise TypeError(
            f"lr_schedule is a factor of the learning rate by step; {value} is a schedule of the divergence's weight by "
            "epoch: give it as kl_weight"
        )
    if value is not None and not callable(value):
        raise TypeError(
            "lr_schedule is a function from the number of steps done to a factor of the learning rate, such as "
            f"schedules.cosine(steps); got a {type(value).__name__}"
        )
    return value


def checkpoint_every_of(value: int | None, checkpoint: object) -> int:
    """Steps between checkpoints: 10,000 where it is not said; a ValueError if it is less than 1 or there is none."""
    if value is None:
        return 10_000
    if checkpoint is None:
        raise ValueError(
            f"checkpoint_every is of a checkpoint, which is not asked for; got {value}: give checkpoint too"
        )
    if value < 1:
        raise ValueError(f"checkpoint_every is a number of steps and must be at least 1; got {value}")
    return value


def check_memory(value: float | None, replicates: int | None) -> None:
    """Raise a ValueError for a bound on memory that is not positive, or that nothing would keep."""
    if value is None:
        return
    if replicates is None:
        raise ValueError(
            f"memory is what replicates may take together, and one fit is not divided; got {value}: leave it out, or ask "
            "for replicates"
        )
    if not value > 0:
        raise ValueError(f"memory is a number of bytes and must be positive; got {value}")


def data_sets(data: Any, count: int) -> list[Dataset]:
    """One data set for each of `count` replicates, from one for all or a list or tuple of as many.

    A tuple (x, y) is one data set, where x may be a tuple of tensors itself. It is a sequence of data sets where its parts
    are `Dataset`s or pairs.

    Raises:
        TypeError: a sequence of something else, or a list [x, y], which could be either.
        ValueError: another number of data sets.
    """
    if isinstance(data, Dataset) or not isinstance(data, list | tuple):
        return [Dataset.of(data)] * count
    if isinstance(data, tuple) and len(data) == 2 and not _is_data(data[1]):
        return [Dataset.of(data)] * count
    if not all(_is_data(one) for one in data):
        raise TypeError(
            "data of replicates are one data set for all, a Dataset or a tuple (x, y), or a list or tuple of data sets, one "
            f"for each; got a {type(data).__name__} of {', '.join(type(one).__name__ for one in data)}"
        )
    if len(data) != count:
        raise ValueError(
            f"{count} replicates need as many data sets, or one for all; got a {type(data).__name__} of {len(data)}"
        )
    return [Dataset.of(one) for one in data]


def _is_data(value: Any) -> bool:
    """Whether it can be a data set of its own: y of a pair is a tensor or an array, never a pair."""
    pair = isinstance(value, list | tuple) and len(value) == 2
    return isinstance(value, Dataset) or (pair and hasattr(value[1], "__array__"))
