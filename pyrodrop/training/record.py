"""The settings of a fit in plain numbers and words, and what a run is made of, for the files that are written of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.loader import Loader
from pyrodrop.data.streamed import Streamed
from pyrodrop.engines import Loss
from pyrodrop.engines.buffers import places_of
from pyrodrop.identity import differences, is_words, made_of, refuse, values_of
from pyrodrop.inputs import named_parts
from pyrodrop.names import known
from pyrodrop.scaling import Standardize
from pyrodrop.schedules import KLSchedule, LRSchedule
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.settings import Settings

# What a run is made of, by the names of the arguments of `fit`; it may have more steps than the one that it continues.
PARTS = (
    "model", "guide", "data", "batch_size", "accumulate", "lr", "optimizer", "lr_schedule", "estimator", "kl_weight",
    "likelihood_power", "objective", "engine", "precision", "starts", "device", "seed",
)  # fmt: skip
_PROBED = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, *(k * 10**n for n in range(3, 8) for k in (1, 2, 5)))

Identity = dict[str, dict[str, str]]


def record(settings: Settings, problem: Problem, seed: int, ranks: int = 1) -> dict[str, Any]:
    """The settings that a problem is trained with, under this seed, and the fingerprint of its data.

    Training adds ``seconds`` and ``engine``, and ``replicates`` where there are several.
    """
    return {
        "steps": settings.steps,
        "device": settings.place.type,
        "estimator": settings.estimator,
        "kl_weight": "scheduled" if callable(settings.kl_weight) else settings.kl_weight,
        "likelihood_power": settings.likelihood_power,
        "precision": settings.precision,
        "model": describe(problem.model),
        "guide": describe(problem.guide),
        **({} if settings.objective is None else {"objective": type(settings.objective).__name__}),
        "accumulate": settings.accumulate,
        "data_fingerprint": problem.data.fingerprint,
        **_sizes(settings, problem.data),
        "noise_by_row": problem.noise_by_row(),
        "ranks": ranks,
        "seed": seed,
    }


def identity(
    settings: Settings, problem: Problem, loss: Loss, optimizer: torch.optim.Optimizer, rates: Mapping[str, float]
) -> Identity:
    """What a run is made of, in words, by `PARTS`; two runs with the same words take the same steps.

    Functions are known by what they return: a learning rate by the rate of every parameter, schedules of users by their
    values at 0, 1, 2, 5, 10 ... steps or epochs up to the end.

    Args:
        rates: the learning rate of every parameter, before the schedule.
    """
    rows = 1 if isinstance(problem.data, Keywords) else len(problem.data)
    batch = 1 if isinstance(problem.data, Keywords) else _batch_size(settings, problem.data)
    values = values_of(_constant(problem, loss))

    def made(part: Any, name: str) -> dict[str, str]:
        return made_of(part, name) | {key: value for key, value in values.items() if key.startswith(f"{name}.")}

    parts = {
        "model": made(problem.model, "model"),
        "guide": made(problem.guide, "guide"),
        "data": _data(problem),
        "batch_size": {"batch_size": str(batch)},
        "lr": _rates(rates),
        "optimizer": _optimizer(optimizer),
        "lr_schedule": _schedule("lr_schedule", settings.lr_schedule, "step", settings.steps),
        "kl_weight": _schedule(
            "kl_weight", settings.kl_weight, "epoch", settings.steps and settings.steps / math.ceil(rows / batch)
        ),
        "objective": made_of(settings.objective, "objective"),
        "device": {"device": settings.place.type},
    }
    return {name: parts[name] if name in parts else {name: repr(getattr(settings, name))} for name in PARTS}


def check_allowed(allow: Any, name: str) -> tuple[str, ...]:
    """The names of the parts that may differ, as the argument `name` gives them."""
    if isinstance(allow, str) or not isinstance(allow, Collection) or not all(isinstance(one, str) for one in allow):
        raise TypeError(f"{name} must be a tuple of names, of {', '.join(PARTS)}; got {allow!r}")
    return tuple(known(one, PARTS, f"part of a run, in {name},") for one in allow)


class Restarts(NamedTuple):
    """What starts anew in a run that continues a different one.

    Attributes:
        new_optimizer: the optimiser's state, with another class of optimiser.
        new_epoch: the epoch, with other data or another size of minibatches.
    """

    new_optimizer: bool
    new_epoch: bool


def check_same(there: Any, here: Identity, allow: Collection[str], file: str, remedy: str) -> Restarts:
    """Check that a run may continue another one.

    Args:
        remedy: what to pass for `allow`, with {} for the names.

    Raises:
        ValueError: they differ in another part, or `there` is not such a description.
    """
    if isinstance(there, dict):  # files of older versions have no objective
        there = {"objective": made_of(None, "objective"), **there}
    if not isinstance(there, dict) or not all(is_words(there.get(name)) for name in PARTS):
        raise ValueError(
            f"{file} does not say what its run is made of, as it was written by another version of pyrodrop: it cannot be "
            "continued"
        )
    compared = {name: differences(there[name], here[name]) for name in PARTS}
    for name in ("lr_schedule", "kl_weight"):
        if _probes(there[name]) and _probes(here[name]):  # a longer run has more of them
            common = [at for at in here[name] if at in there[name]]
            compared[name] = differences({at: there[name][at] for at in common}, {at: here[name][at] for at in common})
    refuse(
        {name: lines for name, lines in compared.items() if name not in allow},
        f"{file} is of another run",
        f"To continue it with these on purpose, pass {remedy}",
    )
    return Restarts(
        new_optimizer=there["optimizer"].get("optimizer") != here["optimizer"]["optimizer"],
        new_epoch=bool(compared["data"] or compared["batch_size"]),
    )


def as_tensor(run: Identity) -> Tensor:
    """What a run is made of as the bytes of JSON, for a state that consists of tensors."""
    return torch.frombuffer(bytearray(json.dumps(run).encode()), dtype=torch.uint8)


def of_tensor(value: Any) -> Any:
    """The inverse of `as_tensor`; None for a tensor of something else."""
    try:
        return json.loads(value.to("cpu", torch.uint8).flatten().numpy().tobytes())
    except (ValueError, RecursionError, AttributeError):
        return None


def _constant(problem: Problem, loss: Loss) -> dict[str, Tensor]:
    """The buffers that no step changes, but for the initial values of what is trained."""
    model = problem.model
    changed = set(loss.moving.places)
    if hasattr(model, "parameter_names"):
        trained = [names for first, names in model.parameter_names.items() if first not in model.fixed]
        changed |= {f"model.network.{name}" for names in trained for name in names}
    places = places_of(model, problem.guide)
    return {
        name: value
        for name, [(module, leaf), *_] in places.items()
        if name not in changed
        and not isinstance(module, Standardize)  # it belongs to the data
        and (value := module._buffers[leaf]) is not None
    }


def _batch_size(settings: Settings, data: Dataset | Streamed) -> int:
    """The number of rows of a minibatch; of a loader, of the first one."""
    return len(data.sample) if isinstance(data, Loader) else min(settings.batch_size or len(data), len(data))


def _sizes(settings: Settings, data: Dataset | Streamed | Keywords) -> dict[str, Any]:
    """The numbers of rows, and what their columns were, of data that have them."""
    if isinstance(data, Keywords):
        return {"arguments": list(data.values)}
    sizes = {"batch_size": _batch_size(settings, data), "num_data": len(data)}
    if isinstance(data, Streamed):
        return {**sizes, **data.words}
    return sizes if data.columns is None else {**sizes, "columns": data.columns.words()}


def _data(problem: Problem) -> dict[str, str]:
    data = problem.data
    if isinstance(data, Keywords):
        return data.words
    entries = {"data": f"{data.outline if isinstance(data, Streamed) else data.fingerprint} ({len(data)} rows)"}
    if isinstance(data, Streamed):
        entries |= {f"data.{name}": word for name, word in data.words.items()}
    for name, tensor in {**named_parts(problem.example.x), "y": problem.example.y}.items():
        entries[f"data.{name}.dtype"] = str(tensor.dtype).removeprefix("torch.")
    for name in ("inputs", "targets"):  # the model has taken over those of the data
        standardisation = getattr(problem.model, name, None)
        if isinstance(standardisation, Standardize):
            buffers = dict(standardisation.named_buffers())
            entries |= values_of({f"data.{name}.{number}": value for number, value in buffers.items()})
    return entries


def _rates(rates: Mapping[str, float]) -> dict[str, str]:
    """One number where all rates are equal."""
    values = {name: repr(float(rate)) for name, rate in rates.items()}
    if len(set(values.values())) == 1:
        return {"lr": next(iter(values.values()))}
    return {f"lr of {name}": value for name, value in values.items()}


def _optimizer(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    entries = made_of(type(optimizer), "optimizer")
    usual = {name: value for name, value in optimizer.defaults.items() if name != "lr"}
    entries |= {k: v for name, value in usual.items() for k, v in made_of(value, f"optimizer.{name}").items()}
    for number, group in enumerate(optimizer.param_groups):
        changed = {n: v for n, v in group.items() if n not in ("params", "lr") and (n not in usual or usual[n] != v)}
        entries |= {k: v for n, v in changed.items() for k, v in made_of(v, f"optimizer.group {number}.{n}").items()}
    return entries


def _schedule(name: str, schedule: Any, unit: str, end: float | None) -> dict[str, str]:
    """A number, one of pyrodrop's schedules as its call, or the values of a function."""
    if not callable(schedule):
        return {name: repr(schedule)}
    if isinstance(schedule, KLSchedule | LRSchedule):
        return {name: str(schedule)}
    return {f"{name} at {unit} {at}": _value(schedule, at) for at in _PROBED if end is None or at < end}


def _value(schedule: Callable[[Any], float], at: int) -> str:
    try:
        return repr(float(schedule(at)))
    except Exception as error:  # whatever a user's function raises there; training raises it if it comes there
        return type(error).__name__


def _probes(words: Mapping[str, str]) -> bool:
    return all(" at " in name for name in words)
