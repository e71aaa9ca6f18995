"""Whether an entry of the zoo still does what its reference says: a short run with the reference's seed.

    |score - reference| <= tolerance = max(sd over seeds, 1 % of the reference)

On the machine of the reference the scores are the same to the bit. Elsewhere sums round otherwise and a training drifts
off; it must not drift further than another seed would have led it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.table import Table

from pyrodrop.analysis.reports.console import console, versions
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.train import Measured, load_splits, machine, measure
from pyrodrop.data import Split
from pyrodrop.devices import resolve
from pyrodrop.files import write_json
from pyrodrop.zoo import Entry

SEEDS = (0, 1, 2, 3)  # of which the first is the check's
_SHARE, _LEAST = 0.01, 1e-6


def check(entry: Entry, *, quiet: bool = False) -> bool:
    """Repeat the short run, print it beside the reference, and say whether every score is within its tolerance."""
    content = references.load(entry.name)["check"]
    measured = short(entry, content["seed"], quiet)
    missed = references.misses(entry.name, measured.scores)
    table = Table(title=f"{entry.name}, check: {entry.check.steps:,} steps, {measured.seconds:.0f} s")
    for header in ("score", "now", "reference", "tolerance", ""):
        table.add_column(header, justify="left" if header in ("score", "") else "right")
    for name, value in content["scores"].items():
        tolerance, now = content["tolerance"][name], measured.scores.get(name, float("nan"))
        table.add_row(name, f"{now:.5g}", f"{value:.5g}", f"{tolerance:.2g}", "MISS" if name in missed else "ok")
    console().print(table)
    for name, words in missed.items():
        print(f"{entry.name}: {name} {words}")
    return not missed


def short(entry: Entry, seed: int, quiet: bool = True, splits: Sequence[Split] | None = None) -> Measured:
    """The run that a check repeats, on `check_splits`: on the CPU, and too short to compile for."""
    run = entry.check
    settings = {"steps": run.steps, "engine": "traced", "device": "cpu", "progress": False if quiet else None}
    return measure(entry, splits or check_splits(entry), draws=run.draws, seed=seed, **settings)


def check_splits(entry: Entry) -> list[Split]:
    """The observations of an entry's check."""
    run = entry.check
    return [_cut(split, run.train, run.test) for split in load_splits(entry, run.splits)]


def record(entry: Entry, *, full: bool = False, why: str = "", seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """Measure an entry and write its reference. What is there already of an entry that has not changed stays.

    Args:
        entry: which.
        full: whether to make the whole run.
        why: in words, why there is none.
        seed: of the whole run.
        device: of the whole run.
    """
    where, recipe = resolve(device), entry.recipe(load_splits(entry, 1)[0].train)
    kept = _kept(entry, recipe)
    result: dict[str, Any] | str = kept.get("result") or why or "not made yet"
    if full:
        splits = load_splits(entry)
        done = measure(entry, splits, seed=seed, device=where, progress=False)
        result = {
            "scores": done.scores,
            "standard_errors": done.errors,
            "splits": len(splits),
            "seed": seed,
            "seconds": done.seconds,
        }
    content = {
        "entry": entry.name,
        "recipe": recipe,
        "result": why if why and not isinstance(result, dict) else result,
        "check": kept.get("check") or _short_runs(entry),
        "versions": versions(),
        "machine": machine(where),
    }
    path = references.file(entry.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    return content


def _kept(entry: Entry, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The reference that is there already, if the entry is still what it was; nothing if not."""
    if not references.file(entry.name).is_file():
        return {}
    content = references.load(entry.name)
    same = content["recipe"] == recipe and content["check"]["run"] == asdict(entry.check)
    return content if same else {}


def _short_runs(entry: Entry) -> dict[str, Any]:
    """The short run with every seed: scores of the first, tolerances from all."""
    splits = check_splits(entry)
    runs = [short(entry, seed, splits=splits).scores for seed in SEEDS]
    tolerance = {}
    for name, value in runs[0].items():
        sd = float(torch.tensor([row[name] for row in runs], dtype=torch.float64).std())
        tolerance[name] = max(sd, _SHARE * abs(value), _LEAST)
    return {
        "run": asdict(entry.check),
        "seed": SEEDS[0],
        "scores": runs[0],
        "tolerance": tolerance,
        "seeds_of_tolerance": list(SEEDS),
    }


def _cut(split: Split, train: int | None, test: int | None) -> Split:
    """The first observations of each part."""
    parts = (part if count is None else part.first(count) for part, count in ((split.train, train), (split.test, test)))
    own, held_out = parts
    return Split(
        split.name, own, held_out, split.x_unit, split.y_unit, split.source, period=split.period, truth=split.truth
    )
