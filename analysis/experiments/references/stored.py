"""Stored references: thinned draws, the files of `pyrodrop.zoo.load("exact/NAME")`, and ``NAME.json``: how they were made,
and what they gave.

problem, recipe      the name, and everything that the result depends on besides the versions
diagnostics          of all draws before thinning, with what speaks against using them (`problems`; empty if they have mixed)
sampler              the sampler's settings and what it learned
learned_precisions   of the noise by fits of mean field, of which the median is used; null where the published one is
y                    observations drawn from the reference's predictive distribution; null where there are real ones
table, members       distances by posterior, see `table`; the row ``reference`` is between two halves of the chains
spreads              of f over the reference's: by posterior and place (median, lowest, highest), and along a line
elbo                 of every single fit, with its convention: how well it was trained, where conventions are equal
stored               number of stored draws and their own log density at the test points
versions, machine    package versions, and processor
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
from pathlib import Path
from typing import Any

import torch

from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.zoo.references import FOLDER as REFERENCE
from pyrodrop.data import Dataset
from pyrodrop.json_files import read_record
from pyrodrop.names import known
from pyrodrop.sampling import Sampled
from pyrodrop.zoo import trained
from pyrodrop.zoo.exact import PROBLEMS

FOLDER = REFERENCE / "posterior"
LEARNED = "learned"  # its folder of the results with a learned precision


def load(name: str, folder: Path | None = None) -> Sampled:
    """The stored draws of a reference, which predict like a fit, in the units of its data.

    Args:
        name: of the problem, one of `PROBLEMS`.
        folder: where the files are; those that come with the package if not given.

    Raises:
        ValueError: the name is unknown, or there is no such file.
    """
    known(name, PROBLEMS, "reference")
    path = (folder or trained.SHIPPED / "exact") / f"{name}.safetensors"
    if not path.is_file():
        raise ValueError(
            f"{name} has no stored draws: {path.name} is not in {path.parent}; pyrodrop run references makes it"
        )
    return Sampled.load(path, PROBLEMS[name].model())


def facts(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The content of ``NAME.json``."""
    return dict(read_record(folder / f"{known(name, PROBLEMS, 'reference')}.json").content)


def save(sampled: Sampled, path: Path, name: str, kept: int, judged: Dataset) -> float:
    """Write so many of the draws in float32; returns their mean log density at the test points."""
    model = copy.deepcopy(sampled.model).float()
    samples = {name: values.float() for name, values in sampled.samples.items()}
    stats = {n: v.float() if v.dtype == torch.float64 else v for n, v in sampled.stats.items()}
    few = dataclasses.replace(sampled, model=model, samples=samples, stats=stats).thinned(kept)
    log_density = float(few.predict(judged.x, kept).log_density(judged.y).mean())
    result = {"scores": {"log_density": log_density}, "date": datetime.date.today().isoformat(), "versions": versions()}
    trained.save_sampled(path, PROBLEMS[name], few, judged.x, result)
    return log_density
