"""Stored references: thinned draws, the files of `pyrodrop.zoo.load("exact/NAME")`, and ``NAME.json`` with their recipe and
results.

problem, recipe      the name, and all settings that the result depends on besides the versions
diagnostics          of all draws before thinning, with reasons not to use them (`problems`; empty if the chains have mixed)
sampler              the sampler's settings and what it learned
learned_precisions   of the noise, by mean-field fits; their median is used. null if the published precision is used
y                    observations drawn from the reference's predictive distribution; null if there are real ones
table, members       distances by posterior, see `table`; the row ``reference`` is between two halves of the chains
spreads              of f over the reference's: by posterior and place (median, lowest, highest), and along a line
elbo                 of every single fit, with its convention; ELBOs of the same convention show how well it was trained
stored               number of stored draws and their log density at the test points
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
from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.analysis.zoo.references import FOLDER as REFERENCE
from pyrodrop.data import Dataset
from pyrodrop.names import known
from pyrodrop.sampling import Sampled
from pyrodrop.zoo import trained
from pyrodrop.zoo.exact import PROBLEMS

FOLDER = REFERENCE / "posterior"
LEARNED = "learned"  # subfolder of the results with a learned precision


def load(name: str, folder: Path | None = None) -> Sampled:
    """The stored draws of a reference, which predict like a fit, in the units of its data.

    Args:
        name: name of the problem, one of `PROBLEMS`.
        folder: folder of the files; if None, that of the files that come with the package.

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
    """Write `kept` of the draws in float32, and return their mean log density at the test points."""
    model = copy.deepcopy(sampled.model).float()
    samples = {name: values.float() for name, values in sampled.samples.items()}
    stats = {n: v.float() if v.dtype == torch.float64 else v for n, v in sampled.stats.items()}
    few = dataclasses.replace(sampled, model=model, samples=samples, stats=stats).thinned(kept)
    log_density = float(few.predict(judged.x, kept).log_density(judged.y).mean())
    result = {"scores": {"log_density": log_density}, "date": datetime.date.today().isoformat(), "versions": versions()}
    trained.save_sampled(path, PROBLEMS[name], few, judged.x, result)
    return log_density
