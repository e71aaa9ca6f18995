"""Reference posteriors of six small problems by sampling; `league` measures how far other methods are from them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import pyrodrop
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.lab.experiments.references.stored import save
from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.folder import Cells, say_reused
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.terminal import paragraph
from pyrodrop.checks import known
from pyrodrop.data import Dataset
from pyrodrop.files import Record
from pyrodrop.sampling import Sampled
from pyrodrop.sampling.compiled_density import Name
from pyrodrop.zoo.exact import PROBLEMS, Problem


@dataclass(frozen=True)
class Size:
    """Settings of the sampler: chains, draws and steps of tuning (None for those of the problem), leapfrog steps, engine."""

    chains: int | None = None
    draws: int | None = None
    tune: int | None = None
    max_steps: int = 1000
    engine: Name = "auto"


SIZES = {"default": Size(), "quick": Size(chains=4, draws=10, tune=100, max_steps=8, engine="traced")}  # for tests


@with_job_options()
def run(
    job: JobOptions,
    *,
    problems: list[str] = list(PROBLEMS),  # noqa: B006
    preset: Literal["default", "quick"] = "default",
    out: Path = Path("runs/references"),
) -> dict[str, Any]:
    """Sample every problem's posterior, and print whether the chains have mixed.

    Args:
        problems: which of co2, mnist, foong, yacht, boston and energy.
        preset: default takes an hour on one core; quick is too short to show anything.
        out: folder for NAME.json and NAME.safetensors, the thinned draws. An interrupted run continues with the problems
            that are not there.

    Returns:
        What is written to the JSON files, by problem.

    Raises:
        ValueError: a problem is unknown, or there is none.
    """
    names = [known(name, PROBLEMS, "problem") for name in problems]
    if not names:
        raise ValueError(f"problems needs at least one of {', '.join(PROBLEMS)}; got none")
    size = SIZES[preset]
    with Experiment.begin("references", out, job, {"preset": preset}) as experiment:
        folder, cells = experiment.folder, experiment.cells(_checked, lambda name: {}, where="")
        with_draws = [name for name in names if (folder / f"{name}.safetensors").exists()]
        finished = {name: kept for name in with_draws if (kept := cells.kept(name)) is not None}
        say_reused(finished, folder)
        for name in names:
            if name not in finished:
                finished[name] = _sampled(name, sized(PROBLEMS[name], size), size, job, cells)
            print(f"results: {cells.file(name)}\n", flush=True)
        return {name: finished[name] for name in names}


def _checked(record: Record) -> None:
    """Check that stored results are those of the problem and complete."""
    if record.text("problem") != Path(record.path).stem:
        raise record.fault(f"must be the result of {Path(record.path).stem}")
    for key in ("recipe", "diagnostics", "stored"):
        record.record(key)


def sized(problem: Problem, size: Size) -> Problem:
    """The problem with the settings of the sampler for this size."""
    sizes = {key: value for key in ("chains", "draws", "tune") if (value := getattr(size, key)) is not None}
    chains = sizes.get("chains", problem.chains)
    return replace(
        problem, **sizes, kept=min(problem.kept, chains * sizes.get("draws", problem.draws)) // chains * chains
    )


def recipe(problem: Problem, size: Size, seed: int, train: Dataset, test: Dataset) -> dict[str, Any]:
    """All settings, besides the versions, that a result depends on, as plain numbers and strings."""
    return {
        "summary": problem.summary,
        "network": f"{'-'.join(map(str, problem.widths))}, {problem.activation}",
        "likelihood": problem.model().likelihood.describe(),
        "prior": {
            "weights": [f"N(0, {scale:.6g}^2)" for scale in problem.scales],
            "biases": "N(0, 1)",
            "units": "standardised" if train.inputs is not None else "those of the data",
        },
        "train": {"rows": len(train), "fingerprint": train.fingerprint},
        "test": {"points": len(test), "fingerprint": test.fingerprint, "observed": problem.observed},
        "sampler": {k: getattr(problem, k) for k in ("chains", "draws", "tune", "kept")} | {"max_steps": size.max_steps},
        "seed": seed,
    }  # fmt: skip


def _sampled(name: str, problem: Problem, size: Size, job: JobOptions, cells: Cells) -> dict[str, Any]:
    train, test = problem.data()
    begun = time.perf_counter()
    sampled = pyrodrop.sample(
        problem.model(), train, chains=problem.chains, draws=problem.draws, tune=problem.tune, max_steps=size.max_steps,
        engine=size.engine, device="cpu", seed=job.seed, progress=job.progress,
    )  # fmt: skip
    seconds, diagnostics = time.perf_counter() - begun, sampled.diagnostics()
    judged = test if problem.observed else Dataset(test.x, drawn(sampled, test.x, job.seed))
    log_density = save(sampled, cells.folder / f"{name}.safetensors", name, problem.kept, judged)
    content = {
        "problem": name,
        "recipe": recipe(problem, size, job.seed, train, test),
        "diagnostics": {**diagnostics.to_dict(), "problems": diagnostics.problems},
        "sampler": {key: value for key, value in sampled.settings.items() if key not in ("diagnostics", "seconds")},
        "y": None if problem.observed else judged.y.flatten().tolist(),
        "stored": {"draws": problem.kept, "log_density": log_density},
        "versions": versions(),
        "machine": machine("cpu"),
        "seconds": seconds,
    }
    paragraph(f"{name}: {problem.summary}\n{diagnostics}")
    return cells.keep(name, content)


def drawn(sampled: Sampled, x: Tensor, seed: int) -> Tensor:
    """One y per point from the predictive distribution of all draws, ``[N, 1]``, each from a draw chosen at random."""
    prediction = sampled.predict(x, sampled.chains * sampled.draws, seed=seed)
    rows = torch.randint(len(prediction.f), (len(x),), generator=torch.Generator().manual_seed(seed))
    return prediction.y[rows, torch.arange(len(x))]
