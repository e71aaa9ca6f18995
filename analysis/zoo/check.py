"""Check an entry of the zoo against its reference: repeat a short run with the seed of the reference.

    |score - reference| <= tolerance = max(sd over seeds, 3 root mean square change by rounding, 1 % of the reference, 1e-6)

On the reference's machine the scores are bitwise equal. On other machines rounding differs and the training diverges
slowly, which `record` repeats by changing x in the last bits of float32; references without ``changes_of_x`` were recorded
without. After so few steps some references predict badly themselves: ``ok`` does not mean a good fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyrodrop.analysis.reports.terminal import paragraph, print_table, text_table
from pyrodrop.analysis.reports.workers import run_each, workers
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.train import Measured, load_splits, measure
from pyrodrop.data import Split
from pyrodrop.zoo import Entry, trained
from pyrodrop.zoo import entry as entry_of


def check(entry: Entry, *, quiet: bool = False) -> bool:
    """Repeat the short run, print it next to the reference, and return whether every score is within its tolerance."""
    return _reported(entry, short(entry, references.load(entry.name)["check"]["seed"], quiet))


def check_each(entries: Sequence[Entry], *, jobs: int | None = None, quiet: bool = False) -> bool:
    """`check` for several entries, each a unit of work of `pyrodrop.analysis.reports.workers`.

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


def short(entry: Entry, seed: int, quiet: bool = True, splits: Sequence[Split] | None = None) -> Measured:
    """The short run of a check on `splits`, by default `check_splits`; on the CPU and not compiled, as it is too short."""
    run = entry.check
    settings = {"steps": run.steps, "engine": "traced", "device": "cpu", "progress": False if quiet else None}
    return measure(entry, splits or check_splits(entry), draws=run.draws, seed=seed, **settings)


def check_splits(entry: Entry) -> list[Split]:
    """The data of an entry's check."""
    run = entry.check
    return [_cut(split, run.train, run.test) for split in load_splits(entry, run.splits)]


def _cut(split: Split, train: int | None, test: int | None) -> Split:
    """The split with only the first `train` training and `test` test observations; None keeps all."""
    parts = (rows if count is None else rows.first(count) for rows, count in ((split.train, train), (split.test, test)))
    training_rows, held_out = parts
    return replace(split, train=training_rows, test=held_out)
