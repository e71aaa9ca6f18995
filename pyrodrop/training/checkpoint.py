"""Files of the state of a session, and the fingerprint by which a run that continues knows its own state.

Names, shapes, settings and a hash of the data identify the run that a state belongs to, so that the error for another run
says which part differs.
"""

from __future__ import annotations

import functools
import json
import logging
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrodrop.changes import places_of
from pyrodrop.checks import count, instance, named_parts
from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.loader import Loader
from pyrodrop.files import digests
from pyrodrop.models.network import NetworkModel
from pyrodrop.parts import differences, made_of, refuse
from pyrodrop.schedules import KLSchedule, LRSchedule
from pyrodrop.steps import Loss
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.settings import Settings

_log = logging.getLogger("pyrodrop")

_FILE = "a str or a pathlib.Path, the file to save the state of the training to"

# Arguments of `fit`: a run that continues another one must agree with it in all of PARTS but those in FREE.
FREE = ("steps", "lr", "lr_schedule", "kl_weight", "engine")
PARTS = ("model", "guide", "data", "batch_size", "estimator", "objective", "optimizer", "device", "seed", *FREE)

Fingerprint = dict[str, dict[str, str]]


class Checkpoint:
    """Where and when a training saves its state.

    A run that continues has the result of a run without interruption, except that on a loader it begins the
    interrupted epoch again. A state with NaN or infinite losses or parameters is never saved, so the file keeps the last
    finite one.

    A file of another model, guide or data is refused, as is one with another `batch_size`, `estimator`, `objective`,
    `optimizer`, `device` or `seed`. Other `steps`, `lr`, `lr_schedule`, `kl_weight` or `engine` are accepted and logged.
    Functions and classes of your own are identified by name, not by their code.

    Args:
        path: of the file.
        every: number of steps between two savings; the last step is always saved.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, or out of range.

    Example:
        >>> import pyrodrop
        >>> pyrodrop.Checkpoint("state.safetensors", every=1000).every
        1000
    """

    def __init__(self, path: str | Path, *, every: int = 10_000) -> None:
        self.path: Path = Path(instance(path, str | PathLike, "path", _FILE))
        self.every: int = count(every, "every", "the number of steps between two savings")

    @staticmethod
    def of(value: str | Path | Checkpoint | None) -> Checkpoint | None:
        """The argument ``checkpoint`` of `fit`."""
        if value is None or isinstance(value, Checkpoint):
            return value
        return Checkpoint(instance(value, str | PathLike, "checkpoint", _FILE))


def record(settings: Settings, problem: Problem, seed: int) -> dict[str, Any]:
    """The settings that a problem is trained with, under this seed, and the fingerprint of its data.

    Training adds ``seconds`` and ``engine``; a `fit` of 100 steps or more ``worth``, replicates their number.
    """
    return {
        "steps": settings.steps,
        "device": settings.place.type,
        "estimator": settings.estimator,
        "kl_weight": "scheduled" if callable(settings.kl_weight) else settings.kl_weight,
        "model": describe(problem.model),
        "guide": describe(problem.guide),
        **({} if settings.objective is None else {"objective": type(settings.objective).__name__}),
        **({"average": settings.average} if settings.average else {}),
        "data_fingerprint": problem.data.fingerprint,
        **_sizes(settings, problem.data),
        "noise_by_row": problem.noise_by_row(),
        "seed": seed,
    }


def fingerprint(settings: Settings, problem: Problem, loss: Loss, optimizer: torch.optim.Optimizer) -> Fingerprint:
    """The fingerprint of a run: descriptions of names, shapes, settings and buffers, and a hash of the data, by `PARTS`.

    Functions are described by their names.
    """
    parts = {"model": made_of(problem.model, "model"), "guide": made_of(problem.guide, "guide")}
    for name, word in digests(_constant(problem, loss)).items():
        parts[name.partition(".")[0]][f"{name} (values)"] = word
    parts |= {"data": _data(problem), "objective": _objective(settings.objective)}
    entries = {f"optimizer.{name}": str(value) for name, value in optimizer.defaults.items() if name != "lr"}
    parts["optimizer"] = {"optimizer": type(optimizer).__name__, **entries}
    parts["batch_size"] = {"batch_size": str(_batch_size(settings, problem.data))}
    parts["device"] = {"device": settings.place.type}
    return {name: parts[name] if name in parts else {name: _word(getattr(settings, name))} for name in PARTS}


def check_same(there: Any, here: Fingerprint, file: str) -> None:
    """Check that a run may continue another one, whose fingerprint is `there`, and log the settings in which they differ.

    Raises:
        ValueError: they differ in something other than `FREE`, or `there` is no fingerprint.
    """
    there = _of_tensor(there)
    if not isinstance(there, dict) or not all(_is_description(there.get(name)) for name in PARTS):
        raise ValueError(f"{file} must have a description of its run, to be continued; it has none")
    compared = {name: differences(there[name], here[name]) for name in PARTS}
    refuse(
        {name: lines for name, lines in compared.items() if name not in FREE},
        f"{file} is of another run",
        "A run that continues may differ in " + ", ".join(FREE),
    )
    lines = [line for differing in compared.values() for line in differing]
    if lines:
        level = logging.INFO if lines == compared["steps"] else logging.WARNING
        _log.log(level, "%s continues with other settings: %s", file, "; ".join(lines))


def as_tensor(run: Fingerprint) -> Tensor:
    """A `Fingerprint` as the bytes of JSON, for a state that consists of tensors."""
    return torch.frombuffer(bytearray(json.dumps(run).encode()), dtype=torch.uint8)


def _of_tensor(value: Any) -> Any:
    """The inverse of `as_tensor`; None if the value is not JSON in a tensor."""
    try:
        return json.loads(value.to("cpu", torch.uint8).flatten().numpy().tobytes())
    except (ValueError, RecursionError, AttributeError):
        return None


def _is_description(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _constant(problem: Problem, loss: Loss) -> dict[str, Tensor]:
    """The buffers that no step changes, without the initial values of trained weights."""
    model = problem.model
    changed = set(loss.moving.places)
    if isinstance(model, NetworkModel):
        trained = [names for first, names in model.parameter_names.items() if first not in model.fixed]
        changed |= {f"model.network.{name}" for names in trained for name in names}
    return {
        name: module.get_buffer(leaf)
        for name, [(module, leaf), *_] in places_of(model, problem.guide).items()
        if name not in changed
    }


def _batch_size(settings: Settings, data: Dataset | Loader | Keywords) -> int:
    """The number of rows of a minibatch; of a loader, of the first one; 1 for the arguments of a program."""
    if isinstance(data, Keywords):
        return 1
    return len(data.sample) if isinstance(data, Loader) else min(settings.batch_size or len(data), len(data))


def _sizes(settings: Settings, data: Dataset | Loader | Keywords) -> dict[str, Any]:
    """The numbers of rows and the columns of a data set; the names of the arguments of a program."""
    if isinstance(data, Keywords):
        return {"arguments": list(data.values)}
    sizes = {"batch_size": _batch_size(settings, data), "num_data": len(data)}
    if isinstance(data, Loader):
        return {**sizes, "data_source": data.source}
    return sizes if data.columns is None else {**sizes, "columns": data.columns.words()}


def _data(problem: Problem) -> dict[str, str]:
    data = problem.data
    if isinstance(data, Keywords):
        return data.words
    if isinstance(data, Loader):  # which need not have the same rows first
        entries = {"data": f"{data.per_epoch} minibatches ({len(data)} rows)", "data.data_source": data.source}
    else:
        entries = {"data": f"{data.fingerprint} ({len(data)} rows)"}
    for name, tensor in {**named_parts(problem.example.x), "y": problem.example.y}.items():
        entries[f"data.{name}.dtype"] = str(tensor.dtype).removeprefix("torch.")
    return entries


def _objective(objective: Any) -> dict[str, str]:
    """A loss object of Pyro, by its class and settings."""
    settings = {} if objective is None else vars(objective)
    plain = {name: str(value) for name, value in settings.items() if isinstance(value, bool | int | float | str)}
    return {"objective": type(objective).__name__, **{f"objective.{name}": word for name, word in plain.items()}}


def _word(value: Any) -> str:
    """A setting as a string: a number as it is, a schedule of this package as its call, another function by its name."""
    if isinstance(value, functools.partial):
        options = ", ".join(f"{name}={option}" for name, option in value.keywords.items())
        return f"{_word(value.func)}({options})"
    if callable(value) and not isinstance(value, KLSchedule | LRSchedule):
        return str(getattr(value, "__name__", type(value).__name__))
    return str(value)
