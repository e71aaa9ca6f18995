"""Stored references: thinned draws, the files of `pyrodrop.zoo.load("exact/NAME")`, and ``NAME.json`` with their recipe.

problem, recipe      the name, and all settings that the result depends on besides the versions
diagnostics          of all draws before thinning, with reasons not to use them (`problems`; empty if the chains have mixed)
sampler              the sampler's settings and what it learned
y                    observations drawn from the reference's predictive distribution; null if there are real ones
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

from pyrodrop.analysis.arviz.sampled_draws import thinned
from pyrodrop.analysis.lab import RESULTS
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.analysis.zoo.write import save_sampled
from pyrodrop.checks import known
from pyrodrop.data import Dataset
from pyrodrop.sampling import Sampled
from pyrodrop.zoo import trained
from pyrodrop.zoo.exact import PROBLEMS

FOLDER = RESULTS / "posterior"


def load(name: str) -> Sampled:
    """The stored draws of a reference, one of `PROBLEMS`, which predict like a fit, in the units of its data."""
    path = trained.SHIPPED / "exact" / f"{known(name, PROBLEMS, 'reference')}.safetensors"
    return Sampled.load(path, PROBLEMS[name].model())


def facts(name: str) -> dict[str, Any]:
    """The stored results of a problem: what ``pyrodrop run references`` writes."""
    return dict(read_record(FOLDER / f"{known(name, PROBLEMS, 'reference')}.json").content)


def save(sampled: Sampled, path: Path, name: str, kept: int, judged: Dataset) -> float:
    """Write `kept` of the draws in float32, and return their mean log density at the test points."""
    model = copy.deepcopy(sampled.model).float()
    samples = {name: values.float() for name, values in sampled.samples.items()}
    stats = {n: v.float() if v.dtype == torch.float64 else v for n, v in sampled.stats.items()}
    few = dataclasses.replace(sampled, model=model, samples=samples, stats=stats)
    few = thinned(few, kept // few.chains)
    log_density = float(few.predict(judged.x, kept).log_density(judged.y).mean())
    result = {"scores": {"log_density": log_density}, "date": datetime.date.today().isoformat(), "versions": versions()}
    save_sampled(path, PROBLEMS[name], few, judged.x, result)
    return log_density
