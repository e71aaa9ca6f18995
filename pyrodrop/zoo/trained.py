"""Trained posteriors: `restore` builds fits, which predict without the data, from a file of the zoo.

``NAME.safetensors`` of an entry has the content of `Replicates.save`, a fit per split of the data, in a shorter form:

    unchanged tensors    those that training left as they were are omitted: the entry builds them from the seed
    losses               means over 100 equal stretches of the training
    pruned weights       weights with ln alpha >= 3 are 0, if the posterior prunes
    sparse tensors       a tensor that is mostly 0 is stored as places and values of its other elements

That of an exact posterior has the content of `Sampled.save`. Files of entries and of exact posteriors also have

    zoo                  in the header: name, result of the run (scores, seed, date, versions, ...); of an entry also rows,
                         shapes and dtypes of the training data of every fit
    data                 of an entry: the standardisations of these data, with which the model is built
    points               ten inputs, and the mean and the standard deviation of 100 draws of f there, seed 0
"""

from __future__ import annotations

import copy
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.failed import Failed
from pyrodrop.files import Record, under
from pyrodrop.guides.sparse_dropout import SparseDropout
from pyrodrop.prediction.stored import Stored
from pyrodrop.sampling import Sampled
from pyrodrop.scaling import Standardize
from pyrodrop.training.replicates import Replicates, restored
from pyrodrop.training.result import Fit
from pyrodrop.zoo.entry import Entry
from pyrodrop.zoo.exact import Problem
from pyrodrop.zoo.released import chosen, released

SHIPPED = Path(__file__).parent / "posteriors"
POINTS, DRAWS, STRETCHES, THRESHOLD = 10, 100, 100, 3.0
TOLERANCE = 1e-6  # of predictions on any processor, relative to the largest of them
_LARGE = 1000  # elements from which a tensor that is mostly 0 is kept as places and values
_HALVED = 10_000  # elements from which a tensor is rounded to 16 bits
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64, torch.int64)}
_X, _Y = 2**28, 2**24  # elements that may be made in place of training data, more than any entry has

Trained = Fit | Replicates | Sampled


def file(name: str) -> Path | None:
    """The file of this name on this machine: in the folder that ``PYRODROP_ZOO`` names, or in this package.

    Raises:
        Failed: ``PYRODROP_ZOO`` is no folder and no address, or something other than a file has this name in a folder.
    """
    folder = not chosen() and os.environ.get("PYRODROP_ZOO")
    if folder and not Path(folder).is_dir():
        raise Failed(f"PYRODROP_ZOO must be a folder with trained posteriors, or an address of them; got {folder}")
    for place in [*([Path(folder)] if folder else []), SHIPPED]:
        path = place / f"{name}.safetensors"
        if path.is_file():
            return path
        if path.exists() or path.is_symlink():
            raise Failed(f"a folder of trained posteriors must have files; cannot read {path}, which is none")
    return None


def pull(name: str) -> Path:
    """The file of this name, here or of the release; a `Failed` if there is none, which says how to make it."""
    path = file(name) or released(name)
    if path is None:
        raise Failed(
            f"no trained posterior of {name} comes with this package: pyrodrop run {name} --save FOLDER makes one, which is "
            "found if the environment variable PYRODROP_ZOO names the folder"
        )
    return path


def header(path: Path) -> dict[str, Any]:
    """The entry ``zoo`` of the header of a file: ``name``, ``result`` with scores, ``data``.

    Raises:
        Failed: the file is no trained posterior, or damaged.
    """
    return dict(_header(Stored.read(path)).content)


def _header(stored: Stored) -> Record:
    if "zoo" not in stored.about:
        raise Failed(f"{stored.where} is no trained posterior of the zoo: its header has no entry 'zoo'")
    header = stored.record.record("zoo")
    header.text("name")
    scores = header.record("result").record("scores")
    for score in scores.content:
        scores.number(score)
    return header


def restore(of: Entry | Problem, path: Path, device: str | torch.device = "auto") -> Trained:
    """Build a `Fit`, `Replicates` of all splits, or `Sampled` of an exact posterior from a file.

    Args:
        device: where to put the parameters; draws of an exact posterior stay on the CPU.

    Raises:
        ValueError: the file is no trained posterior, is damaged, or does not match `of` as it is now.
        OSError: the file cannot be read; the message names it.
    """
    stored = Stored.read(path)
    header = _header(stored)
    if header.content["name"] != of.name:
        raise Failed(f"{path} is of {header.content['name']}; it must be of {of.name}")
    if isinstance(of, Problem):
        loaded = Sampled.load(path, of.model()) if "." not in of.name else Fit.load(path, of.model(), device=device)
        loaded.settings["zoo"] = header.content
        return loaded
    described = header.records("data")
    if len(described) != len(stored.record.records("fits")):
        raise Failed(
            f"{path} is damaged: it describes the data of {len(described)} fits and has another number of fits"
        )
    seeds, points = [data.whole("seed") for data in described], _points(stored)
    pairs = [
        of.build(_stand_in(data, under(f"data.{r}.", stored.tensors), points["x"]), seed)
        for r, (data, seed) in enumerate(zip(described, seeds, strict=True))
    ]
    new = {f"{r}.{name}": value for r, pair in enumerate(pairs) for name, value in _untrained(pair).items()}
    unpacked = _unpacked(path, stored.tensors, {name: value.shape for name, value in new.items()})
    models, guides = zip(*pairs, strict=True)
    made = restored(replace(stored, tensors={**new, **unpacked}), models, guides, device)
    for fit in made:
        fit.settings["zoo"] = header.content
    return _as_loaded(made)


def save(
    path: Path,
    entry: Entry,
    fits: Sequence[Fit],
    sets: Sequence[Dataset],
    x: Tensor,
    result: Mapping[str, Any],
) -> Path:
    """Write the trained posterior of an entry.

    Args:
        fits: one per split, from `Entry.fit` or `Entry.fit_splits`.
        x: inputs ``[N, ...]``, of which ten, evenly spaced, are kept.
        result: of the run, with ``scores``, finite numbers by name.

    Raises:
        TypeError: an input is not one tensor.
        OSError: the file cannot be written; the message names it.
    """
    for inputs in (x, *(data.x for data in sets)):
        if not isinstance(inputs, Tensor):
            raise TypeError(
                f"the zoo keeps posteriors of networks whose input is one tensor; got a {type(inputs).__name__}"
            )
    kept = Replicates([_as_kept(fit) for fit in fits])
    stored = kept.stored()
    tensors = stored.tensors
    for r, (fit, data) in enumerate(zip(fits, sets, strict=True)):
        for name, value in _untrained(entry.build(data, fit.settings["seed"])).items():
            if torch.equal(value, tensors[f"{r}.{name}"]):
                del tensors[f"{r}.{name}"]
        tensors |= {f"data.{r}.{name}": value for name, value in _standardisations(data).items()}
    tensors = _packed(tensors) | _shown(_as_loaded(kept), x)
    described = [_described(data) | {"seed": fit.settings["seed"]} for fit, data in zip(fits, sets, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"zoo": {"name": entry.name, "result": dict(result), "data": described}}
    return Stored(tensors, {**stored.about, **about}).write(path, kind="replicates")


def save_sampled(path: Path, problem: Problem, sampled: Sampled | Fit, x: Tensor, result: Mapping[str, Any]) -> Path:
    """Write draws of an exact posterior, or a fit that approximates it; the arguments are as of `save`."""
    sampled.save(path)
    stored = Stored.read(path)
    about = {**stored.about, "zoo": {"name": problem.name, "result": dict(result)}}
    return Stored(stored.tensors | _shown(sampled, x), about).write(path)


def difference(trained: Trained, path: Path) -> float:
    """The largest difference between predictions at the ten points of a file and the predictions stored in it.

    It is that of means and standard deviations of f, relative to the largest stored number.
    """
    points = _points(Stored.read(path))
    predicted = _predicted(trained, points["x"])
    for name, value in predicted.items():
        if points[name].shape != value.shape:
            raise Failed(f"{path} is damaged: its {name} at the points must have the shape {[*value.shape]}")
    now, then = (torch.cat([of[name].flatten() for name in predicted]) for of in (predicted, points))
    return float((now - then).abs().max() / then.abs().max().clamp(min=torch.finfo(torch.float64).tiny))


def _points(stored: Stored) -> dict[str, Tensor]:
    """The ten points of a file, and the predictions there; a `Failed` if one is missing."""
    points = under("points.", stored.tensors)
    if points.keys() != {"x", "mean", "sd"}:
        raise Failed(f"{stored.where} is damaged: it lacks the points x, mean and sd")
    return points


def _shown(trained: Trained, x: Tensor) -> dict[str, Tensor]:
    """Ten evenly spaced rows of x and the predictions there, by the names that they have in a file."""
    points = x[torch.arange(POINTS) * len(x) // POINTS]
    return {f"points.{name}": value for name, value in {"x": points, **_predicted(trained, points)}.items()}


def _predicted(trained: Trained, x: Tensor) -> dict[str, Tensor]:
    """Mean and standard deviation of f at x, ``[N, D]``, in double precision."""
    f = trained.predict(x, DRAWS, seed=0).f.double().cpu()
    return {"mean": f.mean(0), "sd": f.std(0)}


def _as_loaded(fits: Replicates) -> Fit | Replicates:
    """The fits as `load` returns them: a single one by itself, and without pruned weights."""
    each = [fit.pruned(THRESHOLD) if prunes(fit) else fit for fit in fits]
    return replace(fits, fits=each) if len(each) > 1 else each[0]


def prunes(fit: Fit) -> bool:
    """Whether this is a posterior that prunes weights, trained with the full weight of the KL divergence at the end."""
    return isinstance(fit.guide, SparseDropout) and float(fit.history[-1, 2]) >= 1


def _untrained(pair: tuple[Any, Any]) -> dict[str, Tensor]:
    """The tensors of a new model and guide, by the names that they have in a file."""
    tensors = Fit(*pair, None, torch.zeros(0, 3), {}).stored().tensors
    return {name: value for name, value in tensors.items() if name != "history"}


def rounded(fit: Fit) -> Fit:
    """A copy whose guide's large tensors are rounded to 16 bits, for half the size in a file; the fit if it has none."""
    parts: tuple[Any, Any] = copy.deepcopy((fit.model, fit.guide))
    model, guide = parts
    large = [value for value in guide.state_dict().values() if _is_large(value)]
    for value in large:
        value.copy_(value.half())
    return replace(fit, model=model, guide=guide) if large else fit


def _is_large(value: Tensor) -> bool:
    """Whether this is a float32 tensor with many elements, all in the range of float16."""
    return value.dtype == torch.float32 and value.numel() >= _HALVED and bool(value.half().isfinite().all())


def _as_kept(fit: Fit) -> Fit:
    """A copy on the CPU, where `difference` compares it, with means of the losses and zeros for pruned weights."""
    steps = len(fit.history)
    edges = [steps * n // STRETCHES for n in range(STRETCHES + 1)] if steps > STRETCHES else range(steps + 1)
    means = torch.stack([fit.history[a:b].double().mean(0) for a, b in itertools.pairwise(edges)]).float()
    means[-1, 2] = fit.history[-1, 2]
    parts: tuple[Any, Any] = copy.deepcopy((fit.model, fit.guide))
    model, guide = (module.cpu() for module in parts)
    if prunes(fit):
        masks = guide.keep_mask(THRESHOLD)
        with torch.no_grad():
            for tree in (guide.loc, guide.log_variance):
                for name, mask in masks.items():
                    tree[name].mul_(mask)
    settings = fit.settings | {"history_steps": steps}
    return replace(fit, model=model, guide=guide, history=means, settings=settings, device=torch.device("cpu"))


def _packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that are mostly 0 as ``NAME:places`` and ``NAME:values`` of the other elements, with ``NAME:shape``.

    Of these tensors and all others, large ones that float16 represents exactly are stored as ``NAME:half``.
    """
    packed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        places = value.reshape(-1).nonzero()[:, 0]
        if value.numel() < _LARGE or 2 * len(places) > value.numel():
            packed[name] = value
        else:
            packed |= {
                f"{name}:places": places.int(),
                f"{name}:values": value.reshape(-1)[places],
                f"{name}:shape": torch.tensor(value.shape),
            }
    in_16_bits = {
        name for name, value in packed.items() if _is_large(value) and torch.equal(value, value.half().float())
    }
    return {f"{n}:half" if n in in_16_bits else n: v.half() if n in in_16_bits else v for n, v in packed.items()}


def _unpacked(path: Path, tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Undo `_packed`, for tensors of these shapes.

    Raises:
        Failed: places and values do not match each other or the shape.
    """
    tensors = {n.removesuffix(":half"): v.float() if n.endswith(":half") else v for n, v in tensors.items()}
    whole = {name: value for name, value in tensors.items() if ":" not in name}
    for name in {name.partition(":")[0] for name in tensors.keys() - whole.keys()}:
        places, values, shape = (tensors.get(f"{name}:{kind}") for kind in ("places", "values", "shape"))
        if places is None or values is None or shape is None or places.shape != values.shape or shape.dim() != 1:
            raise Failed(f"{path} is damaged: {name} needs places and values of one length, and a shape")
        sizes, want = shape.tolist(), shapes.get(name, torch.Size())
        if sizes != list(want) or not bool(((places >= 0) & (places < want.numel())).all()):
            raise Failed(f"{path} is damaged: {name} has the shape {sizes} or places outside; it must be {list(want)}")
        whole[name] = values.new_zeros(want.numel()).index_put((places.long(),), values).reshape(want)
    return whole


def _described(data: Dataset) -> dict[str, Any]:
    """Rows, shapes and dtypes of a data set."""
    parts = {"x": data.x, "y": data.y}
    return {"rows": len(data)} | {
        name: {"shape": list(value.shape[1:]), "dtype": str(value.dtype).removeprefix("torch.")}
        for name, value in parts.items()
    }


def _standardisations(data: Dataset) -> dict[str, Tensor]:
    standardisations = {"inputs": data.inputs, "targets": data.targets}
    return {
        f"{name}.{statistic}": getattr(standardisation, statistic)
        for name, standardisation in standardisations.items()
        if standardisation is not None
        for statistic in ("loc", "scale")
    }


def _stand_in(data: Record, standardisations: Mapping[str, Tensor], points: Tensor) -> Dataset:
    """A substitute for the training data to build a model from: as many rows of these shapes and standardisations.

    x is 0, and its rows have the shape of the `points` in the file; y is alternately one standard deviation above and below
    its mean.
    """
    rows = data.whole("rows")
    x, y = (_zeros(data.record(name), rows, most) for name, most in (("x", _X), ("y", _Y)))
    if x.shape[1:] != points.shape[1:]:
        raise data.fault(f"has rows of x of the shape {[*x.shape[1:]]} and points of the shape {[*points.shape[1:]]}")
    both = {}
    for name in ("inputs", "targets"):
        if statistics := under(f"{name}.", standardisations):
            if statistics.keys() != {"loc", "scale"}:
                raise data.fault(f"needs loc and scale of {name}")
            both[name] = Standardize(**statistics)
    if "targets" in both:
        y = (
            both["targets"]
            .inverse(1.0 - 2.0 * (torch.arange(rows) % 2).reshape(-1, *[1] * (y.dim() - 1)) + y)
            .to(y.dtype)
        )
    return Dataset(x, y, **both)


def _zeros(record: Record, rows: int, most: int) -> Tensor:
    """A tensor of zeros with this number of rows and at most this number of elements, in the memory of one number."""
    dtype, shape = _DTYPES.get(record.text("dtype")), record.content.get("shape")
    if (
        dtype is None
        or not isinstance(shape, list)
        or not all(type(size) is int and size > 0 for size in shape)
        or not 1 <= rows * math.prod(shape) <= most
    ):
        raise record.fault(
            f"must have a shape with 1 to {most} elements in {rows} rows and one of the dtypes {', '.join(_DTYPES)} as "
            f"{record.where}"
        )
    return torch.zeros((), dtype=dtype).expand(rows, *shape)
