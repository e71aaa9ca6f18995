"""Stored references: thinned draws, the files of `pyrodrop.zoo.load("exact/NAME")`, and ``NAME.json`` with their recipe.

problem, recipe      the name, and all settings that the result depends on besides the versions
diagnostics          of all draws before thinning, with reasons not to use them (`problems`; empty if the chains have mixed)
sampler              the sampler's settings and what it learned
learned_precisions   of the noise, by mean-field fits; their median is used. null if the published precision is used
y                    observations drawn from the reference's predictive distribution; null if there are real ones
conventions          of the ELBOs by posterior
stored               number of stored draws and their log density at the test points
versions, machine    package versions, and processor

Two files have the results of all problems: ``posterior.csv`` the rows of `table`, and ``posterior-lines.npz`` the spreads
along a line. ``python -m pyrodrop.analysis.lab.experiments.references.stored FOLDER`` puts those of a run into them.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import torch

from pyrodrop.analysis.lab import RESULTS, tidy
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.analysis.zoo.write import save_sampled
from pyrodrop.checks import known
from pyrodrop.data import Dataset
from pyrodrop.sampling import Sampled
from pyrodrop.zoo import trained
from pyrodrop.zoo.exact import PROBLEMS

FOLDER = RESULTS / "posterior"
LEARNED = "learned"  # study and subfolder of the results with a learned precision; the others are `published`
ROWS, LINES = RESULTS / "posterior.csv", RESULTS / "posterior-lines.npz"


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
    """The stored results of a problem: what ``pyrodrop run references`` writes; the line in three digits."""
    about = read_record(folder / f"{known(name, PROBLEMS, 'reference')}.json").content
    study = LEARNED if folder.name == LEARNED else "published"
    rows = [row for row in tidy.read(ROWS) if (row["study"], row["problem"]) == (study, name)]
    start = f"{study}/{name}/"
    lines = {key: values.astype(float) for key, values in tidy.curves(LINES).items() if key.startswith(start)}
    return {**about, "rows": rows, "line": {key.removeprefix(start): values for key, values in lines.items()}}


def main(folder: str) -> None:
    """Put the results of a run of ``pyrodrop run references`` in place of those that are stored."""
    for file in (Path(folder) / f"{name}.json" for name in PROBLEMS):
        if file.is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            rows, line = content.pop("rows"), content.pop("line")
            study = rows[0]["study"]
            write_json((FOLDER / LEARNED if study == LEARNED else FOLDER) / file.name, content)
            tidy.put(ROWS, rows)
            tidy.put_curves(LINES, {f"{study}/{content['problem']}/{key}": values for key, values in line.items()})


def save(sampled: Sampled, path: Path, name: str, kept: int, judged: Dataset) -> float:
    """Write `kept` of the draws in float32, and return their mean log density at the test points."""
    model = copy.deepcopy(sampled.model).float()
    samples = {name: values.float() for name, values in sampled.samples.items()}
    stats = {n: v.float() if v.dtype == torch.float64 else v for n, v in sampled.stats.items()}
    few = dataclasses.replace(sampled, model=model, samples=samples, stats=stats).thinned(kept)
    log_density = float(few.predict(judged.x, kept).log_density(judged.y).mean())
    result = {"scores": {"log_density": log_density}, "date": datetime.date.today().isoformat(), "versions": versions()}
    save_sampled(path, PROBLEMS[name], few, judged.x, result)
    return log_density


if __name__ == "__main__":
    main(*sys.argv[1:])
