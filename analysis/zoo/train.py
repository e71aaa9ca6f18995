"""Train and score an entry of the zoo.

Scores are means over the data's splits: those of `pyrodrop.metrics` for class labels or real observations, and

    training_nll    nats per observation     training_kl    nats      means over the last tenth of the steps
    epistemic_sd    for real observations: root mean square of the standard deviation of f
    error_percent, error_percent_averaged     for class labels: in place of accuracy, and for the mean weights (one pass)
    compression     weights over kept weights, if any is kept, for a pruning posterior at the full weight of the KL term

For a data set without test observations, the training observations are scored, with names ``train_...``.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch.distributions import Categorical

from pyrodrop import checks
from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.folder import run_folder, say_reused
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.analysis.reports.score_table import mean_and_error, score_table
from pyrodrop.analysis.reports.terminal import print_table
from pyrodrop.analysis.zoo import references, write
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.data import Dataset, Split
from pyrodrop.guides import Guide
from pyrodrop.likelihoods import elements
from pyrodrop.metrics import accuracy, classification_scores, regression_scores
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.training.reasons import collected, say, still_falls
from pyrodrop.training.replicates import fit_replicates
from pyrodrop.training.result import Fit
from pyrodrop.zoo import Entry, trained
from pyrodrop.zoo.sources import SOURCES

_LONG = 20_000  # number of steps from which a run writes checkpoints


@dataclass(frozen=True)
class Measured:
    """The results of a run of an entry.

    Attributes:
        fits: one fit per split.
        scores: means over the splits.
        errors: standard errors of the means; empty for a single split.
        each: scores by split, by the name of the score.
        seconds: duration of training and scoring.
    """

    fits: Sequence[Fit]
    scores: dict[str, float]
    errors: dict[str, float]
    each: dict[str, list[float]]
    seconds: float


def load_splits(entry: Entry, count: int | None = None) -> list[Split]:
    """The first `count` splits of an entry's data, all if None."""
    sets = SOURCES[entry.data].load()
    return [sets[number] for number in range(len(sets) if count is None else min(count, len(sets)))]


def measure(
    entry: Entry, splits: Sequence[Split], *, draws: int | None = None, seed: int = 0, **overrides: Any
) -> Measured:
    """Train on every split, split r with ``seed + r``, and score; `overrides` are arguments of `pyrodrop.fit`."""
    start = time.perf_counter()
    data = [split.train for split in splits]
    if len(data) == 1:
        fits: Sequence[Fit] = [entry.fit(data[0], seed=seed, **overrides)]
    else:
        models, guides = zip(*(entry.build(rows, seed + number) for number, rows in enumerate(data)), strict=True)
        fits = fit_replicates(models, guides, data, count=len(data), seed=seed, **entry.settings(data[0], **overrides))
    return replace(scored(fits, splits, draws or entry.draws, seed), seconds=time.perf_counter() - start)


def scored(fits: Sequence[Fit], splits: Sequence[Split], draws: int, seed: int) -> Measured:
    """The scores of trained fits; predictions for split r use ``seed + r``. `Measured.seconds` is 0."""
    pairs = zip(fits, splits, strict=True)
    each = [_scores(fit, split, draws, seed + number) for number, (fit, split) in enumerate(pairs)]
    common = [name for name in each[0] if all(name in row for row in each)]
    by_score = {name: [row[name] for row in each] for name in common}
    return Measured(fits, *means_and_errors(by_score), by_score, 0.0)


def means_and_errors(each: Mapping[str, Sequence[float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Means over splits, and their standard errors where there are several."""
    moments = {name: mean_and_error(row) for name, row in each.items()}
    means = {name: mean for name, (mean, _) in moments.items()}
    return means, {name: error for name, (_, error) in moments.items() if error is not None}


def judged(split: Split) -> Dataset:
    """The data that a fit is scored on: the test data, or the training data if there are no test observations."""
    return split.test if split.truth else split.train


def _scores(fit: Fit, split: Split, draws: int, seed: int) -> dict[str, float]:
    data = judged(split)
    prediction = fit.predict(data.x, draws, seed=seed)
    if isinstance(elements(prediction.distribution), Categorical):
        scores = classification_scores(prediction, data.y)
        scores = {"error_percent": 100 * (1 - scores.pop("accuracy")), **scores}
        if isinstance(fit.guide, Guide):
            one_pass = averaged(fit).predict(data.x, 1)
            scores["error_percent_averaged"] = 100 * (1 - accuracy(one_pass, data.y))
    else:
        scores = {
            **regression_scores(prediction, data.y),
            "epistemic_sd": float(prediction.spread.square().mean().sqrt()),
        }
    if not split.truth:
        scores = {f"train_{name}": value for name, value in scores.items()}
    if callable(keep := getattr(fit.guide, "keep_mask", None)) and float(fit.history[-1, 2]) >= 1:
        masks = keep().values()
        kept = sum(int(mask.sum()) for mask in masks)
        scores |= {"compression": sum(mask.numel() for mask in masks) / kept} if kept else {}
    last = fit.history[-max(1, len(fit.history) // 10) :].double().mean(0)
    return {**scores, "training_nll": float(last[0]) / len(split.train), "training_kl": float(last[1])}


@with_job_options("device")
def run_entry(
    job: JobOptions,
    entry: Entry,
    *,
    steps: int | None = None,
    out: Path | None = None,
    save: Path | None = None,
) -> dict[str, Any]:
    """Train an entry of the zoo, print its scores next to the published ones and the reference, and save the fit.

    Args:
        steps: gradient steps; those of the entry if not given.
        out: folder for results.json and fit.safetensors (one per split); runs/NAME if not given.
        save: folder to write the trained posterior to; zoo.load finds it if the variable PYRODROP_ZOO names this folder.

    Returns:
        The content of results.json.
    """
    splits = load_splits(entry)
    steps = None if steps is None else checks.count(steps, "steps", "the number of gradient steps")
    overrides: dict[str, Any] = {"device": job.device, "progress": job.progress}
    overrides |= {} if steps is None else {"steps": steps}
    about = {"device": job.device.type, "seed": job.seed, "steps": steps}
    with run_folder(out or Path("runs") / entry.name, entry.name, about) as folder:
        if len(splits) == 1 and (steps or entry.settings(splits[0].train)["steps"]) >= _LONG:
            overrides["checkpoint"] = folder / "training.safetensors"
            say_reused(["training.safetensors"] if overrides["checkpoint"].exists() else [], folder)
        measured = measure(entry, splits, seed=job.seed, **overrides)
        for number, fit in enumerate(measured.fits):
            fit.save(folder / ("fit.safetensors" if len(splits) == 1 else f"fit-{number}.safetensors"))
        fitted = measured.fits[0].settings
        settings = {name: value for name, value in fitted.items() if name not in ("seconds", "seed")}
        content: dict[str, Any] = {
            "models": {entry.name: measured.scores},
            "standard_errors": measured.errors,
            "published": dict(entry.published),
            "reference": references.scores(entry.name),
            "settings": {"data": entry.data, "seed": job.seed, "draws": entry.draws, **settings},
            "versions": versions(),
            "machine": machine(job.device),
            "result": result_of(entry, {job.seed: measured}, job.device),
        }
        write_json(folder / "results.json", content)
        title = f"{entry.name}, seed {job.seed}, {measured.seconds:.0f} s"
        print_table(scores_table(title, entry, {"this run": measured.scores}))
        print(f"results: {folder / 'results.json'}")
        if save is not None:
            path = keep(save, entry, measured.fits, splits, content["result"])
            print(f"trained posterior: {path}; PYRODROP_ZOO={save} lets zoo.load find it")
        return content


def keep(folder: Path, entry: Entry, fits: Sequence[Fit], splits: Sequence[Split], result: Mapping[str, Any]) -> Path:
    """Write a trained posterior into a folder, ``NAME.safetensors``, with predictions for the first split.

    Large tensors are rounded to 16 bits and pruned weights are left out. If this changes a fit, it is scored again.
    """
    kept = [write.rounded(fit) for fit in fits]
    loaded = [fit.pruned(trained.THRESHOLD) if trained.prunes(fit) else fit for fit in kept]
    if any(new is not fit for new, fit in zip(loaded, fits, strict=True)):
        again = scored(loaded, splits, entry.draws, result["seed"])
        seeds = {**result["seeds"], str(result["seed"]): again.scores}
        result = {**result, **_scores_of(entry, again), "seeds": seeds}
    sets = [split.train for split in splits]
    return write.save(folder / f"{entry.name}.safetensors", entry, kept, sets, judged(splits[0]).x, result)


def result_of(entry: Entry, runs: Mapping[int, Measured], device: torch.device) -> dict[str, Any]:
    """The record of full runs, by seed, in references and trained posteriors: the first run, and the scores of the others.

    scores, standard_errors, splits, seed, seconds    of the first run
    seeds                                             scores of every run by its seed
    each                                              published scores by split, where there are several
    diagnostics                                       fits whose loss still fell at the end, by the rule of `fit`'s warnings
    date, versions, machine, command
    """
    seed, first = next(iter(runs.items()))
    splits = len(first.fits)
    return {
        **_scores_of(entry, first),
        "splits": splits,
        "seed": seed,
        "seconds": first.seconds,
        "seeds": {str(number): run.scores for number, run in runs.items()},
        "diagnostics": {"fits": splits, "still_falling": sum(bool(still_falls(fit)) for fit in first.fits)},
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "machine": machine(device),
        "command": f"pyrodrop run {entry.name} --seed {seed}",
    }


def _scores_of(entry: Entry, first: Measured) -> dict[str, Any]:
    """Scores, their standard errors and the published ones by split, as a result has them."""
    several = len(first.fits) > 1
    each = {name: row for name, row in first.each.items() if several and name in entry.published}
    return {"scores": first.scores, "standard_errors": first.errors, "each": each}


def scores_table(title: str, entry: Entry, ours: Mapping[str, Mapping[str, float]]) -> Table:
    """A table of scores next to the reference and the published ones."""
    columns = {**ours, "reference": references.scores(entry.name), entry.published_as: entry.published}
    names = dict.fromkeys(name for values in columns.values() for name in values)
    rows = {name: {column: values.get(name) for column, values in columns.items()} for name in names}
    return score_table(rows, title=title, corner="score")


def fit_resumed(entry: Entry, data: Dataset, checkpoint: Checkpoint, **options: Any) -> Fit:
    """``entry.fit(data, checkpoint=checkpoint, **options)``, which continues from the checkpoint if it exists.

    The duration and the engine of a finished training are stored beside the checkpoint, and are those of the fit if the
    call is repeated. After an interruption only the time since the training continued counts. Warnings name the entry.

    Raises:
        ValueError: the checkpoint is of another training, or one of the files is broken.
    """
    checkpoint.path.parent.mkdir(exist_ok=True)
    path = checkpoint.path.with_suffix(".json")
    with collected() as messages:
        fit = entry.fit(data, checkpoint=checkpoint, **options)
    for message in messages:
        say(f"{entry.name}: {message}")
    whole = {key: fit.settings[key] for key in ("steps", "seconds", "engine")}
    if path.exists():
        kept = read_record(path, "remove this file and run the same command again")
        steps, seconds = kept.number("steps") or 0, kept.number("seconds") or 0.0
        if steps == whole["steps"]:
            whole |= {"seconds": seconds, "engine": kept.text("engine")}
        elif steps < whole["steps"]:
            whole["seconds"] += seconds
    write_json(path, whole)
    fit.settings.update(whole)
    return fit
