"""Trained posteriors: `restore` builds fits, which predict without the data, from a file of the zoo.

``NAME.safetensors`` of an entry has the content of `Replicates.save`, a fit per split of the data, in a shorter form:

    unchanged tensors    those that training left as they were are omitted: the entry builds them from the seed
    losses               means over 100 equal stretches of the training
    pruned weights       weights with ln alpha >= 3 are 0, if the posterior prunes
    sparse tensors       a tensor that is mostly 0 is stored as places and values of its other elements
    large tensors        in 16 bits, where these represent them exactly

That of an exact posterior has the content of `Sampled.save`. Files of entries and of exact posteriors also have

    zoo                  in the header: name, result of the run (scores, seed, date, versions, ...); of an entry also rows,
                         shapes and dtypes of the training data of every fit
    data                 of an entry: the standardisations of these data, with which the model is built
    points               ten inputs, and the mean and the standard deviation of 100 draws of f there, seed 0

`pyrodrop.analysis.zoo.keep` writes them. Files that are no part of the package are files of its release, with the name's
dots in place of slashes; ``posteriors/SHA256SUMS`` has a line ``HASH  NAME.safetensors`` for each.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pooch
import torch
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.data.files import download
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

SHIPPED = Path(__file__).parent / "posteriors"
HASHES = SHIPPED / "SHA256SUMS"
THRESHOLD = 3.0
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64, torch.int64)}
_SPARSE = {"places": 1, "values": 0}  # of a tensor; where one is missing, sizes that differ stand for it
_X, _Y = 2**28, 2**24  # elements that may be made in place of training data, more than any entry has

Trained = Fit | Replicates | Sampled


def file(name: str) -> Path | None:
    """The file of this name on this machine: in the folder that ``PYRODROP_ZOO`` names, or in this package."""
    for folder in (os.environ.get("PYRODROP_ZOO"), SHIPPED):
        if folder and (path := Path(folder) / f"{name}.safetensors").is_file():
            return path
    return None


def address() -> str:
    """Where the files of this release are, or a copy of them in ``PYRODROP_ZOO``; empty if there is no public repository."""
    place = os.environ.get("PYRODROP_ZOO", "")
    if place.startswith(("https://", "http://")):
        return place.rstrip("/")
    about = metadata("pyrodrop")
    repository = dict(url.split(", ", 1) for url in about.get_all("Project-URL") or ()).get("Repository", "example.org")
    return "" if "example.org" in repository else f"{repository}/releases/download/v{about['Version']}"


def pull(name: str) -> Path:
    """The file of this name, which is downloaded once if it is one of the release.

    Raises:
        Failed: there is none, or what an address sent has another hash.
        ConnectionError: it cannot be downloaded.
    """
    if path := file(name):
        return path
    hashes = {file: digest for digest, file in map(str.split, HASHES.read_text(encoding="utf-8").splitlines())}
    sha256, place = hashes.get(f"{name}.safetensors"), address()
    offline = (
        "set the environment variable PYRODROP_ZOO to a folder or an address that has it, such as pyrodrop/zoo/posteriors "
        f"of a clone of the repository; pyrodrop run {name} --save FOLDER makes one"
    )
    if sha256 is None or not place:
        raise Failed(f"no trained posterior of {name} is here or at an address: {offline}")
    path = Path(pooch.os_cache("pyrodrop")) / "zoo" / f"{name}.safetensors"
    url = f"{place}/{name.replace('/', '.')}.safetensors"
    return download(url, path, sha256, f"the trained posterior {name}", offline)


def header(stored: Stored) -> Record:
    """The entry ``zoo`` of the header: ``name``, ``result`` with scores, ``data``; a `Failed` if it is damaged."""
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
    about = header(stored)
    if about.content["name"] != of.name:
        raise Failed(f"{path} is of {about.content['name']}; it must be of {of.name}")
    if isinstance(of, Problem):
        loaded = Sampled.load(path, of.model()) if "." not in of.name else Fit.load(path, of.model(), device=device)
        loaded.settings["zoo"] = about.content
        return loaded
    described, points = about.records("data"), _points(stored)
    if len(described) != len(stored.record.records("fits")):
        raise Failed(f"{path} is damaged: it describes the data of {len(described)} fits, and has another number")
    pairs = [
        of.build(_stand_in(data, under(f"data.{r}.", stored.tensors), points["x"]), data.whole("seed"))
        for r, data in enumerate(described)
    ]
    new = {f"{r}.{name}": value for r, pair in enumerate(pairs) for name, value in untrained(pair).items()}
    unpacked = _unpacked(path, stored.tensors, {name: value.shape for name, value in new.items()})
    models, guides = zip(*pairs, strict=True)
    made = restored(replace(stored, tensors={**new, **unpacked}), models, guides, device)
    for fit in made:
        fit.settings["zoo"] = about.content
    return as_loaded(made)


def _points(stored: Stored) -> dict[str, Tensor]:
    """The ten points of a file, and the predictions there; a `Failed` if one is missing."""
    points = under("points.", stored.tensors)
    if points.keys() != {"x", "mean", "sd"}:
        raise Failed(f"{stored.where} is damaged: it lacks the points x, mean and sd")
    return points


def as_loaded(fits: Replicates) -> Fit | Replicates:
    """The fits as `load` returns them: a single one by itself, and without pruned weights."""
    each = [fit.pruned(THRESHOLD) if prunes(fit) else fit for fit in fits]
    return replace(fits, fits=each) if len(each) > 1 else each[0]


def prunes(fit: Fit) -> bool:
    """Whether this is a posterior that prunes weights, trained with the full weight of the KL divergence at the end."""
    return isinstance(fit.guide, SparseDropout) and float(fit.history[-1, 2]) >= 1


def untrained(pair: tuple[Any, Any]) -> dict[str, Tensor]:
    """The tensors of a new model and guide, by the names that they have in a file."""
    tensors = Fit(*pair, None, torch.zeros(0, 3), {}).stored().tensors
    return {name: value for name, value in tensors.items() if name != "history"}


def _unpacked(path: Path, tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The tensors of a file, for a fit with tensors of these shapes, as they were before they were shortened."""
    tensors = {n.removesuffix(":half"): v.float() if n.endswith(":half") else v for n, v in tensors.items()}
    whole = {name: value for name, value in tensors.items() if ":" not in name}
    for name in {name.partition(":")[0] for name in tensors.keys() - whole.keys()}:
        shape = shapes.get(name, torch.Size([0]))
        places, values = (tensors.get(f"{name}:{kind}", torch.full((size,), -1)) for kind, size in _SPARSE.items())
        if places.shape != values.shape or not bool(((places >= 0) & (places < shape.numel())).all()):
            raise Failed(f"{path} is damaged: {name} must have as many places as values, all within {list(shape)}")
        whole[name] = values.new_zeros(shape.numel()).index_put((places.long(),), values).reshape(shape)
    return whole


def _stand_in(data: Record, standardisations: Mapping[str, Tensor], points: Tensor) -> Dataset:
    """A substitute for the training data to build a model from: as many rows of these shapes and standardisations.

    x is 0, and its rows have the shape of the `points` in the file; y is alternately one standard deviation above and below
    its mean.
    """
    rows, parts = data.whole("rows"), {}
    for name, most in (("x", _X), ("y", _Y)):
        record = data.record(name)
        dtype, shape = _DTYPES.get(record.text("dtype")), record.content.get("shape")
        sizes = shape if isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape) else [0]
        if dtype is None or not 1 <= rows * math.prod(sizes) <= most:
            raise record.fault(
                f"must have a shape with 1 to {most} elements in {rows} rows and one of the dtypes {', '.join(_DTYPES)} as "
                f"{record.where}"
            )
        parts[name] = torch.zeros((), dtype=dtype).expand(rows, *sizes)  # in the memory of one number
    x, y = parts.values()
    if x.shape[1:] != points.shape[1:]:
        raise data.fault(f"has rows of x of the shape {[*x.shape[1:]]} and points of the shape {[*points.shape[1:]]}")
    both = {}
    for name in ("inputs", "targets"):
        if statistics := under(f"{name}.", standardisations):
            if statistics.keys() != {"loc", "scale"}:
                raise data.fault(f"needs loc and scale of {name}")
            both[name] = Standardize(**statistics)
    if "targets" in both:
        signs = 1.0 - 2.0 * (torch.arange(rows) % 2).reshape(-1, *[1] * (y.dim() - 1))
        y = both["targets"].inverse(signs + y).to(y.dtype)
    return Dataset(x, y, **both)
