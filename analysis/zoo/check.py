"""Check an entry of the zoo against its reference: repeat a short run with the seed of the reference.

    |score - reference| <= tolerance = max(sd over seeds, 3 root mean square change by rounding, 1 % of the reference, 1e-6)

On the reference's machine the scores are bitwise equal. On other machines rounding differs and the training diverges
slowly, which `record` repeats by changing x in the last bits of float32; references without ``changes_of_x`` were recorded
without. After so few steps some references predict badly themselves. The output then says so, since ``ok`` does not mean a
good fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.analysis.reports.terminal import paragraph, print_table, text_table
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.beside import beside
from pyrodrop.analysis.zoo.train import Measured, keep, load_splits, measure, result_of
from pyrodrop.data import Split
from pyrodrop.devices import resolve
from pyrodrop.failed import Failed
from pyrodrop.inputs import mapped
from pyrodrop.training.jobs import run_each, workers
from pyrodrop.training.result import Fit
from pyrodrop.zoo import Entry, trained
from pyrodrop.zoo import entry as entry_of

SEEDS = (0, 1, 2, 3)  # the first is the seed of the check
_CHANGES = (1, 2, 3)  # of the training x, in units of the last place of float32
_SHARE, _LEAST = 0.01, 1e-6
_LEAST_COVERAGE = 0.7  # of 95 % intervals; a fit with less is poor


def check(entry: Entry, *, quiet: bool = False) -> bool:
    """Repeat the short run, print it next to the reference, and return whether every score is within its tolerance."""
    return _reported(entry, short(entry, references.load(entry.name)["check"]["seed"], quiet))


def check_each(entries: Sequence[Entry], *, jobs: int | None = None, quiet: bool = False) -> bool:
    """`check` for several entries, each a unit of work of `pyrodrop.training.jobs`.

    Args:
        entries: entries of the zoo; worker processes look them up by name.
        jobs: number of processes, one thread each. If None, the workers of the joblib backend that is active; otherwise the
            entries are checked in this process, one after the other.
    """
    if workers(jobs) == 1:
        passed = [check(entry, quiet=quiet) for entry in entries]
        return all(passed)
    seeds = {entry.name: references.load(entry.name)["check"]["seed"] for entry in entries}
    measured = run_each(
        _measured, list(seeds.items()), jobs=jobs, title="checks", unit="entry",
        progress=False if quiet else None,
    )  # fmt: skip
    by_name = dict(zip(seeds, measured, strict=True))
    passed = [_reported(entry, by_name[entry.name]) for entry in entries]
    return all(passed)


def _measured(name: str, seed: int) -> Measured:
    return replace(short(entry_of(name), seed), fits=())


def _reported(entry: Entry, measured: Measured) -> bool:
    """Print the scores next to the reference, and return whether every score is within its tolerance."""
    content = references.load(entry.name)["check"]
    missed = references.misses(entry.name, measured.scores)
    equal = _stored_predicts(entry)
    rows = [["score", "now", "reference", "tolerance", ""]]
    for name, value in content["scores"].items():
        tolerance, now = content["tolerance"][name], measured.scores.get(name, float("nan"))
        rows.append([name, f"{now:.5g}", f"{value:.5g}", f"{tolerance:.2g}", "MISS" if name in missed else "ok"])
    print_table(text_table(f"{entry.name}, check: {entry.check.steps:,} steps, {measured.seconds:.0f} s", rows))
    for name, miss in missed.items():
        paragraph(f"{entry.name}: {name} {miss}")
    if wrong := shortcoming(content["scores"], lambda: len(load_splits(entry, 1)[0].train.y.unique())):
        full = references.scores(entry.name)
        fully = ", ".join(f"{name} {full[name]:.4g}" for name in ("log_density", "error_percent") if name in full)
        paragraph(
            f"{entry.name}: the reference of this check is no good fit itself: after {entry.check.steps:,} steps {wrong}. "
            f"{f'The full run has {fully}.' if fully else 'There is no full run to compare with.'}"
        )
    return equal and not missed


def _stored_predicts(entry: Entry) -> bool:
    """Print and return whether the stored posterior still gives the predictions in its file; True if there is no file."""
    path = trained.file(entry.name)
    if path is None:
        return True
    apart = trained.difference(trained.restore(entry, path, "cpu"), path)
    verdict = (
        "as when it was written" if apart <= trained.TOLERANCE else f"MISS: {apart:.1g} of the largest value apart"
    )
    paragraph(f"{entry.name}: the trained posterior predicts {verdict} ({path.name}, ten points)")
    return apart <= trained.TOLERANCE


def shortcoming(scores: Mapping[str, float], classes: Callable[[], int]) -> str:
    """Why a fit with these scores is poor: intervals with too little coverage, or a classifier at chance level.

    Args:
        classes: a function that returns the number of classes; called only for scores of a classifier.

    Returns:
        The end of a sentence; empty if nothing is wrong.
    """
    coverage = scores.get("coverage_95", scores.get("train_coverage_95", 1.0))
    if coverage < _LEAST_COVERAGE:
        return f"its 95 % intervals hold {100 * coverage:.0f} % of the observations"
    if "error_percent" in scores and scores["log_density"] <= -math.log(classes()):
        return "its class probabilities are no better than equal ones"
    return ""


def short(entry: Entry, seed: int, quiet: bool = True, splits: Sequence[Split] | None = None) -> Measured:
    """The short run of a check on `splits`, by default `check_splits`; on the CPU and not compiled, as it is too short."""
    run = entry.check
    settings = {"steps": run.steps, "engine": "traced", "device": "cpu", "progress": False if quiet else None}
    return measure(entry, splits or check_splits(entry), draws=run.draws, seed=seed, **settings)


def check_splits(entry: Entry) -> list[Split]:
    """The data of an entry's check."""
    run = entry.check
    return [_cut(split, run.train, run.test) for split in load_splits(entry, run.splits)]


def record(
    entry: Entry,
    *,
    full: bool = False,
    why: str = "",
    seeds: Sequence[int] = (0,),
    device: str = "cpu",
    folder: Path | None = None,
    with_others: bool = False,
    run: Path | None = None,
) -> dict[str, Any]:
    """Measure an entry and write its reference; existing results are kept if the entry has not changed.

    Args:
        full: whether to train as published, in addition to the short runs.
        why: the reason for not making the full run.
        folder: folder for the trained posterior of the first seed, ``NAME.safetensors``; if None, it is not written.
        with_others: whether to add the scores of scikit-learn's models (`beside`) to the result.
        run: folder of a finished ``pyrodrop run NAME``, whose fits and result are used instead of a new full run.

    Returns:
        The content of the reference file.
    """
    where, recipe = resolve(device), entry.recipe(load_splits(entry, 1)[0].train)
    kept = _kept(entry, recipe)
    result: dict[str, Any] | str = kept.get("result") or why or "not made yet"
    if full or run is not None:
        splits, others = load_splits(entry), result["seeds"] if isinstance(result, dict) else {}
        fits: Sequence[Fit]
        if run is not None:
            fits, result = _finished(entry, splits, run)
            result["seeds"] = {**others, **result["seeds"]}
        else:
            runs = {seed: measure(entry, splits, seed=seed, device=where, progress=False) for seed in seeds}
            fits, result = runs[seeds[0]].fits, result_of(entry, runs, where)
        if folder is not None:
            result = trained.header(keep(folder, entry, fits, splits, result))["result"]
    if with_others and isinstance(result, dict):
        result["beside"] = beside(load_splits(entry))
    content = {
        "entry": entry.name,
        "recipe": recipe,
        "result": why if why and not isinstance(result, dict) else result,
        **(
            {key: kept[key] for key in ("check", "versions", "machine")}
            if kept
            else {"check": _short_runs(entry), "versions": versions(), "machine": machine(where)}
        ),
    }
    path = references.file(entry.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    return content


def _finished(entry: Entry, splits: Sequence[Split], run: Path) -> tuple[list[Fit], dict[str, Any]]:
    """The fits and the result that ``pyrodrop run NAME`` wrote to a folder."""
    record = read_record(run / "results.json", "make the run again").record("result")
    seed, fits = record.whole("seed"), []
    for number, split in enumerate(splits):
        path = run / ("fit.safetensors" if len(splits) == 1 else f"fit-{number}.safetensors")
        fits.append(Fit.load(path, *entry.build(split.train, seed + number), device="cpu"))
        if fits[-1].fingerprint != split.train.fingerprint:
            raise Failed(f"{path} must be of the training data of {entry.name}; it is of other data")
    return fits, dict(record.content)


def _kept(entry: Entry, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The existing reference if the entry has not changed since; otherwise empty."""
    if not references.file(entry.name).is_file():
        return {}
    content = references.load(entry.name)
    same = content["recipe"] == recipe and content["check"]["run"] == asdict(entry.check)
    return content if same else {}


def _short_runs(entry: Entry) -> dict[str, Any]:
    """The short runs: scores of the first seed, tolerances from all seeds and from changes of x."""
    splits = check_splits(entry)
    runs = [short(entry, seed, splits=splits).scores for seed in SEEDS]
    rounded = [short(entry, SEEDS[0], splits=[_rounded(split, n) for split in splits]).scores for n in _CHANGES]
    tolerance = {}
    for name, value in runs[0].items():
        sd = float(torch.tensor([row[name] for row in runs], dtype=torch.float64).std())
        change = torch.tensor([row[name] - value for row in rounded], dtype=torch.float64).square().mean().sqrt()
        tolerance[name] = max(sd, 3 * float(change), _SHARE * abs(value), _LEAST)
    return {
        "run": asdict(entry.check),
        "seed": SEEDS[0],
        "scores": runs[0],
        "tolerance": tolerance,
        "seeds_of_tolerance": list(SEEDS),
        "changes_of_x": list(_CHANGES),
    }


def _rounded(split: Split, units: int) -> Split:
    """The split with a training x that differs by so many units in the last place of float32; whole numbers stay."""
    factor = 1 + units * torch.finfo(torch.float32).eps
    x = mapped(lambda part: part * factor if part.is_floating_point() else part, split.train.x)
    return replace(split, train=split.train.with_values(x=x))


def _cut(split: Split, train: int | None, test: int | None) -> Split:
    """The split with only the first `train` training and `test` test observations; None keeps all."""
    parts = (rows if count is None else rows.first(count) for rows, count in ((split.train, train), (split.test, test)))
    training_rows, held_out = parts
    return replace(split, train=training_rows, test=held_out)
