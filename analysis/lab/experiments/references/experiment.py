"""Reference posteriors of six small problems by sampling, and the distances of every approximate posterior from them."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm

import pyrodrop
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.lab.experiments.references.figure import figure
from pyrodrop.analysis.lab.experiments.references.posteriors import (
    LEARNING_RATES,
    POSTERIORS,
    learned_precisions,
    trained,
)
from pyrodrop.analysis.lab.experiments.references.stored import LEARNED, save
from pyrodrop.analysis.lab.experiments.references.table import distance_table
from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.folder import Cells, say_reused
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.score_table import score_table
from pyrodrop.analysis.reports.style import write_figure
from pyrodrop.analysis.reports.terminal import paragraph, print_table
from pyrodrop.checks import EngineName as Name
from pyrodrop.checks import known
from pyrodrop.data import Dataset
from pyrodrop.files import Record
from pyrodrop.likelihoods import Gaussian
from pyrodrop.sampling import Diagnostics, Sampled
from pyrodrop.zoo.exact import PROBLEMS, Problem

ELBO_DRAWS = 200
DRAWN = (
    "there are no observations at the test points: y is drawn from the reference's predictive distribution, so that to ref. "
    "estimates minus the KL divergence of a posterior's predictive distribution from it, mean over points"
)


@dataclass(frozen=True)
class Size:
    """Size of a run.

    Attributes:
        members: number of fits of every posterior.
        steps: steps of a training.
        samples: samples of every posterior and of the reference, for the distances.
        chains, draws, tune, max_steps: settings of the sampler; None for those of the problem.
        engine: engine of the sampler.
        training_engine: engine of the training; compiling takes less time than it saves in these steps.
    """

    members: int = 5
    steps: int = 6000
    samples: int = 1000
    chains: int | None = None
    draws: int | None = None
    tune: int | None = None
    max_steps: int = 1000
    engine: Name = "auto"
    training_engine: Name = "compiled"


SIZES = {
    "default": Size(),
    "quick": Size(
        members=2,
        steps=30,
        samples=60,
        chains=4,
        draws=10,
        tune=100,
        max_steps=8,
        engine="traced",
        training_engine="traced",
    ),  # for tests
}


@with_job_options()
def run(
    job: JobOptions,
    *,
    problems: list[str] = list(PROBLEMS),  # noqa: B006
    preset: Literal["default", "quick"] = "default",
    precision: Literal["published", "learned"] = "published",
    out: Path = Path("runs/references"),
) -> dict[str, Any]:
    """Sample every problem's posterior, train every guide on it, and print and store the distances.

    Args:
        problems: which of co2, mnist, foong, yacht, boston and energy.
        preset: default takes an hour on one core; quick is too short to show anything.
        precision: of the noise: as published with the problem, or the median of those that fits of mean field learn.
        out: folder for NAME.json, NAME.safetensors, the thinned draws, and NAME.png, the spreads along a line. An
            interrupted run continues with the problems that are not there.

    Returns:
        What is written to the JSON files, by problem.

    Raises:
        ValueError: a problem is unknown, or there is none, or its noise has no precision that could be learned.
    """
    names = [known(name, PROBLEMS, "problem") for name in problems]
    if not names:
        raise ValueError(f"problems needs at least one of {', '.join(PROBLEMS)}; got none")
    size = SIZES[preset]
    with Experiment.begin("references", out, job, {"preset": preset, "precision": precision}) as experiment:
        folder, cells = experiment.folder, experiment.cells(_checked, lambda name: {}, where="")
        with_draws = [name for name in names if (folder / f"{name}.safetensors").exists()]
        finished = {name: kept for name in with_draws if (kept := cells.kept(name)) is not None}
        say_reused(finished, folder)
        for name in names:
            if name not in finished:
                problem = sized(PROBLEMS[name], size)
                finished[name] = _measured(name, problem, size, job.seed, cells, job.quiet, precision == "learned")
            write_figure(folder / f"{name}.png", figure(finished[name]))
            print(f"results: {cells.file(name)}, figure: {name}.png\n", flush=True)
        return {name: finished[name] for name in names}


def _checked(record: Record) -> None:
    """Check that stored results are those of the problem and complete."""
    if record.text("problem") != Path(record.path).stem:
        raise record.fault(f"must be the result of {Path(record.path).stem}")
    for key in ("recipe", "diagnostics", "line", "stored"):
        record.record(key)
    record.records("rows")


def sized(problem: Problem, size: Size) -> Problem:
    """The problem with the settings of the sampler for this size."""
    sizes = {key: value for key in ("chains", "draws", "tune") if (value := getattr(size, key)) is not None}
    chains = sizes.get("chains", problem.chains)
    return replace(
        problem, **sizes, kept=min(problem.kept, chains * sizes.get("draws", problem.draws)) // chains * chains
    )


def recipe(problem: Problem, size: Size, seed: int, train: Dataset, test: Dataset) -> dict[str, Any]:
    """All settings, besides the versions, that a result depends on, as plain numbers and strings."""
    model = problem.model()
    return {
        "summary": problem.summary,
        "network": f"{'-'.join(map(str, problem.widths))}, {problem.activation}",
        "likelihood": model.likelihood.describe(),
        "prior": {
            "weights": [f"N(0, {scale:.6g}^2)" for scale in problem.scales],
            "biases": "N(0, 1)",
            "units": "standardised" if train.inputs is not None else "those of the data",
        },
        "train": {"rows": len(train), "fingerprint": train.fingerprint},
        "test": {"points": len(test), "fingerprint": test.fingerprint, "observed": problem.observed},
        "sampler": {k: getattr(problem, k) for k in ("chains", "draws", "tune", "kept")} | {"max_steps": size.max_steps},
        "posteriors": {name: make(model).describe() for name, make in POSTERIORS.items()},
        "training": {
            "fits": size.members, "steps": size.steps, "batch": "all rows", "estimator": "local",
            "optimizer": "Adam, cosine", "lr": LEARNING_RATES, "engine": size.training_engine,
        },
        "samples": size.samples,
        "seed": seed,
    }  # fmt: skip


def with_precision(problem: Problem, precisions: list[float]) -> Problem:
    """The problem with the median of learned precisions in place of the published precision."""
    return replace(problem, likelihood=functools.partial(Gaussian, median(precisions)))


def _measured(
    name: str, problem: Problem, size: Size, seed: int, cells: Cells, quiet: bool, learn_precision: bool
) -> dict[str, Any]:
    train, test = problem.data()
    training: dict[str, Any] = {
        "members": size.members, "steps": size.steps, "engine": size.training_engine, "seed": seed
    }  # fmt: skip
    start = time.perf_counter()
    precisions = learned_precisions(problem, train, **training) if learn_precision else None
    problem = problem if precisions is None else with_precision(problem, precisions)
    begun = time.perf_counter()
    sampled = pyrodrop.sample(
        problem.model(), train, chains=problem.chains, draws=problem.draws, tune=problem.tune, max_steps=size.max_steps,
        engine=size.engine, device="cpu", seed=seed, progress=False if quiet else None,
    )  # fmt: skip
    sampling, diagnostics = time.perf_counter() - begun, sampled.diagnostics()
    about = recipe(problem, size, seed, train, test)
    judged = test if problem.observed else Dataset(test.x, drawn(sampled, test.x, seed))
    fits = {}
    for posterior in tqdm(POSTERIORS, desc=name, unit="posterior", leave=False, disable=True if quiet else None):
        fits[posterior] = trained(posterior, problem.model(), train, **training)
    table = distance_table(fits, train, judged, sampled, num_samples=size.samples, seed=seed)
    table.comparison.notes[:0] = _first_notes(diagnostics, problem.observed)
    study = LEARNED if learn_precision else "published"
    elbos = {posterior: [fit.elbo(ELBO_DRAWS, seed=seed) for fit in many] for posterior, many in fits.items()}
    values = {name: [{"elbo": elbo.value, "elbo se": elbo.se} for elbo in each] for name, each in elbos.items()}
    log_density = save(sampled, cells.folder / f"{name}.safetensors", name, problem.kept, judged)
    content = {
        "problem": name,
        "recipe": about,
        "diagnostics": {**diagnostics.to_dict(), "problems": diagnostics.problems},
        "sampler": {key: value for key, value in sampled.settings.items() if key not in ("diagnostics", "seconds")},
        "learned_precisions": precisions,
        "y": None if problem.observed else judged.y.flatten().tolist(),
        "notes": table.comparison.notes,
        "conventions": {posterior: str(many[0].convention) for posterior, many in elbos.items()},
        "rows": table.rows(study, name, values),
        "line": table.spreads["line"],
        "stored": {"draws": problem.kept, "log_density": log_density},
        "versions": versions(),
        "machine": machine("cpu"),
        "seconds": {"sampling": sampling, "all": time.perf_counter() - start},
    }
    cells.keep(name, content)
    paragraph(f"{name}: {problem.summary}\n{diagnostics}")
    print_table(table.comparison)
    spreads = {row: dict(table.ends(row)) for row in table.comparison.rows}
    print_table(score_table(spreads, title="spread of f over the exact posterior's, over points and fits", form=".3g"))
    return content


def drawn(sampled: Sampled, x: Tensor, seed: int) -> Tensor:
    """One y per point from the predictive distribution of all draws, ``[N, 1]``, each from a draw chosen at random."""
    prediction = sampled.predict(x, sampled.chains * sampled.draws, seed=seed)
    rows = torch.randint(len(prediction.f), (len(x),), generator=torch.Generator().manual_seed(seed))
    return prediction.y[rows, torch.arange(len(x))]


def _first_notes(diagnostics: Diagnostics, observed: bool) -> list[str]:
    problems = diagnostics.problems
    notes = [f"THE REFERENCE SHOULD NOT BE USED YET: {'; '.join(problems)}"] if problems else []
    return notes if observed else [*notes, DRAWN]
