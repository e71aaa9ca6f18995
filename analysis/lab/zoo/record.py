"""Write references of zoo entries: ``python -m pyrodrop.analysis.lab.zoo.record ENTRY... [--full] [--device cuda]``.

Makes the short runs of ``pyrodrop check`` with several seeds and, with ``--full``, the full run. ``--runs FOLDER`` uses the
full run that ``pyrodrop run ENTRY --out FOLDER/ENTRY`` made. If the entry has not changed, its existing short runs are kept
and, without either option, also its result of the full run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from cyclopts import App

from pyrodrop import zoo
from pyrodrop.analysis.lab.zoo.beside import beside
from pyrodrop.analysis.reports.console import machine, versions
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.check import check_splits, short
from pyrodrop.analysis.zoo.train import keep, load_splits, measure, result_of
from pyrodrop.checks import mapped
from pyrodrop.data import Split
from pyrodrop.devices import resolve
from pyrodrop.failed import Failed
from pyrodrop.prediction.stored import Stored
from pyrodrop.training.result import Fit
from pyrodrop.zoo import Entry, trained

SEEDS = (0, 1, 2, 3)  # the first is the seed of the check
_CHANGES = (1, 2, 3)  # of the training x, in units of the last place of float32
_SHARE, _LEAST = 0.01, 1e-6


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
            result = trained.header(Stored.read(keep(folder, entry, fits, splits, result))).content["result"]
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


def main(
    *entries: str, full: bool = False, runs: Path | None = None, why: str = "", seeds: list[int] = [0], device: str = "cpu",  # noqa: B006
    beside: bool = False, save: Path | None = None,
) -> None:  # fmt: skip
    """Write references of entries.

    Args:
        entries: names of entries.
        full: also make the full run, as published.
        runs: folder of finished full runs, each as ENTRY/results.json and its fits.
        why: the reason for not making the full run.
        seeds: of the full runs, the first is described.
        device: of the full runs.
        beside: also fit the models of scikit-learn to the same data.
        save: folder to write the trained posterior to.
    """
    for entry in map(zoo.entry, entries):
        result = record(
            entry, full=full, why=why, seeds=seeds, device=device, folder=save, with_others=beside,
            run=runs and runs / entry.name,
        )["result"]  # fmt: skip
        print(entry.name, result if isinstance(result, str) else f"{result['seconds']:.0f} s", sep=": ", flush=True)


if __name__ == "__main__":
    App(default_command=main, result_action="return_none")()
