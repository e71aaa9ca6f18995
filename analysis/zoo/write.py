"""Write trained posteriors for the zoo: `save` that of an entry, `save_sampled` draws of an exact posterior.

`pyrodrop.zoo.trained` describes and reads the files.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.prediction.stored import Stored
from pyrodrop.sampling import Sampled
from pyrodrop.training.replicates import Replicates
from pyrodrop.training.result import Fit
from pyrodrop.zoo import Entry, Problem
from pyrodrop.zoo.trained import THRESHOLD, Trained, as_loaded, prunes, untrained

POINTS, STRETCHES = 10, 100
_LARGE = 1000  # elements from which a tensor that is mostly 0 is kept as places and values
_HALVED = 10_000  # elements from which a tensor is rounded to 16 bits


def save(
    path: Path, entry: Entry, fits: Sequence[Fit], sets: Sequence[Dataset], x: Tensor, result: Mapping[str, Any]
) -> Path:
    """Write the trained posterior of an entry.

    Args:
        fits: one per split, as `pyrodrop.analysis.zoo.train.measure` makes them.
        x: inputs ``[N, ...]``, of which ten, evenly spaced, are kept.
        result: of the run, with ``scores``, finite numbers by name.

    Raises:
        TypeError: an input is not one tensor.
        OSError: the file cannot be written; the message names it.
    """
    if not all(isinstance(data.x, Tensor) for data in sets):
        raise TypeError("the zoo keeps posteriors of networks whose input is one tensor; got several")
    kept = Replicates([_as_kept(fit) for fit in fits])
    stored = kept.stored()
    tensors, described = stored.tensors, []
    for r, (fit, data) in enumerate(zip(fits, sets, strict=True)):
        seed = fit.settings["seed"]
        for name, value in untrained(entry.build(data, seed)).items():
            if torch.equal(value, tensors[f"{r}.{name}"]):
                del tensors[f"{r}.{name}"]
        for name in ("inputs", "targets"):
            if (scale := getattr(data, name)) is not None:
                tensors |= {f"data.{r}.{name}.loc": scale.loc, f"data.{r}.{name}.scale": scale.scale}
        shapes = {
            name: {"shape": list(value.shape[1:]), "dtype": str(value.dtype).removeprefix("torch.")}
            for name, value in (("x", data.x), ("y", data.y))
        }
        described.append({"rows": len(data), **shapes, "seed": seed})
    tensors = _packed(tensors) | _shown(as_loaded(kept), x)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"zoo": {"name": entry.name, "result": dict(result), "data": described}}
    return Stored(tensors, {**stored.about, **about}).write(path, kind="replicates")


def predicted(trained: Trained, x: Tensor) -> dict[str, Tensor]:
    """Mean and standard deviation of 100 draws of f at x, ``[N, D]``, in double precision."""
    f = trained.predict(x, 100, seed=0).f.double().cpu()
    return {"mean": f.mean(0), "sd": f.std(0)}


def save_sampled(path: Path, problem: Problem, sampled: Sampled | Fit, x: Tensor, result: Mapping[str, Any]) -> Path:
    """Write draws of an exact posterior, or a fit that approximates it; the arguments are as of `save`."""
    sampled.save(path)
    stored = Stored.read(path)
    about = {**stored.about, "zoo": {"name": problem.name, "result": dict(result)}}
    return Stored(stored.tensors | _shown(sampled, x), about).write(path)


def rounded(fit: Fit) -> Fit:
    """A copy whose guide's large tensors are rounded to 16 bits, for half the size in a file; the fit if it has none."""
    model, guide = _copied(fit)
    large = [value for value in guide.state_dict().values() if _is_large(value)]
    for value in large:
        value.copy_(value.half())
    return replace(fit, model=model, guide=guide) if large else fit


def _copied(fit: Fit) -> Any:
    """Copies of model and guide."""
    return copy.deepcopy((fit.model, fit.guide))


def _is_large(value: Tensor) -> bool:
    """Whether this is a float32 tensor with many elements, all in the range of float16."""
    return value.dtype == torch.float32 and value.numel() >= _HALVED and bool(value.half().isfinite().all())


def _as_kept(fit: Fit) -> Fit:
    """A copy on the CPU, with means of the losses and zeros for pruned weights."""
    steps = len(fit.history)
    edges = [steps * n // STRETCHES for n in range(STRETCHES + 1)] if steps > STRETCHES else range(steps + 1)
    means = torch.stack([fit.history[a:b].double().mean(0) for a, b in itertools.pairwise(edges)]).float()
    means[-1, 2] = fit.history[-1, 2]
    model, guide = (module.cpu() for module in _copied(fit))
    if prunes(fit):
        with torch.no_grad():
            for name, mask in guide.keep_mask(THRESHOLD).items():
                guide.loc[name].mul_(mask)
                guide.log_variance[name].mul_(mask)
    settings = fit.settings | {"history_steps": steps}
    return replace(fit, model=model, guide=guide, history=means, settings=settings, device=torch.device("cpu"))


def _packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that are mostly 0 as places and values, and large ones that float16 represents exactly in 16 bits."""
    packed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        flat = value.reshape(-1)
        places = flat.nonzero()[:, 0]
        if value.numel() < _LARGE or 2 * len(places) > value.numel():
            each = {name: value}
        else:
            shape = torch.tensor(value.shape)
            each = {f"{name}:places": places.int(), f"{name}:values": flat[places], f"{name}:shape": shape}
        for key, part in each.items():
            exact = _is_large(part) and torch.equal(part, part.half().float())
            packed[f"{key}:half" if exact else key] = part.half() if exact else part
    return packed


def _shown(trained: Trained, x: Tensor) -> dict[str, Tensor]:
    """Ten evenly spaced rows of x and the predictions there, by the names that they have in a file."""
    points = x[torch.arange(POINTS) * len(x) // POINTS]
    return {f"points.{name}": value for name, value in {"x": points, **predicted(trained, points)}.items()}
