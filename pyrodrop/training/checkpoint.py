"""Files of the state of a session, and the fingerprint by which a run that continues knows its own state.

The error for the state of another run says what differs.
"""

from __future__ import annotations

import json
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
from pyrodrop.steps import Loss
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.settings import Settings

_FILE = "a str or a pathlib.Path, the file to save the state of the training to"


class Checkpoint:
    """Where and when a training saves its state.

    A run that continues has the result of a run without interruption, except that on a loader it begins the
    interrupted epoch again. A state with NaN or infinite losses or parameters is never saved, so the file keeps the last
    finite one.

    A file of another model, guide or data is refused, as is one with another `batch_size`, `estimator`, `objective`,
    `optimizer`, `device` or `seed`. Other `steps`, `lr`, `lr_schedule`, `kl_weight` or `engine` are accepted.
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


def fingerprint(settings: Settings, problem: Problem, loss: Loss, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """What a run that continues another one must have in common with it: names, shapes and settings of model and guide,
    values of buffers that no step changes, a hash of the data, and options; a word for each."""
    data, objective, model = problem.data, settings.objective, problem.model
    changed = set(loss.moving.places)  # and initial values of trained weights
    if isinstance(model, NetworkModel):
        trained = [names for first, names in model.parameter_names.items() if first not in model.fixed]
        changed |= {f"model.network.{name}" for names in trained for name in names}
    places = places_of(model, problem.guide).items()
    constant = {name: module.get_buffer(leaf) for name, [(module, leaf), *_] in places if name not in changed}
    if isinstance(data, Keywords):
        of_data = data.words
    else:
        # a loader need not have the same rows first
        rows = f"{data.per_epoch} minibatches" if isinstance(data, Loader) else data.fingerprint
        of_data = {"data": f"{rows} ({len(data)} rows)"}
        for name, tensor in {**named_parts(problem.example.x), "y": problem.example.y}.items():
            of_data[f"data.{name}.dtype"] = str(tensor.dtype).removeprefix("torch.")
    options = {
        "batch_size": _batch_size(settings, data),
        "estimator": settings.estimator,
        "device": settings.place.type,
        "seed": settings.seed,
        "objective": type(objective).__name__,
        **{
            f"objective.{name}": value
            for name, value in (vars(objective) if objective else {}).items()
            if isinstance(value, bool | int | float | str)
        },
        "optimizer": type(optimizer).__name__,
        **{f"optimizer.{name}": value for name, value in optimizer.defaults.items() if name != "lr"},
    }
    return {
        **made_of(problem.model, "model"),
        **made_of(problem.guide, "guide"),
        **{f"{name} (values)": word for name, word in digests(constant).items()},
        **of_data,
        **{name: str(value) for name, value in options.items()},
    }


def check_same(there: Any, here: dict[str, str], file: str) -> None:
    """Check that a run may continue another one, whose fingerprint is `there`, as `as_tensor` returns it.

    Raises:
        ValueError: they differ, or `there` is no fingerprint.
    """
    try:
        words = json.loads(there.to("cpu", torch.uint8).flatten().numpy().tobytes())
    except (ValueError, RecursionError, AttributeError):
        words = None
    if not isinstance(words, dict) or not all(isinstance(word, str) for word in words.values()):
        raise ValueError(f"{file} must have a description of its run, to be continued; it has none")
    free = "A run that continues may differ in steps, lr, lr_schedule, kl_weight, engine"
    refuse(differences(words, here), f"{file} is of another run", free)


def as_tensor(run: dict[str, str]) -> Tensor:
    """A fingerprint as the bytes of JSON, for a state that consists of tensors."""
    return torch.frombuffer(bytearray(json.dumps(run).encode()), dtype=torch.uint8)


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
