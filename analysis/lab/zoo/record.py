"""Write references of zoo entries: ``python -m pyrodrop.analysis.lab.zoo.record ENTRY... [--full] [--device cuda]``.

With ``--full`` it makes the full run, and ``--runs FOLDER`` uses that of ``pyrodrop run ENTRY --out FOLDER/ENTRY``.
If the entry has not changed, the existing result is kept without either option.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cyclopts import App

from pyrodrop import zoo
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.train import keep, load_splits, measure, result_of
from pyrodrop.data import Split
from pyrodrop.devices import resolve
from pyrodrop.failed import Failed
from pyrodrop.prediction.stored import Stored
from pyrodrop.training.result import Fit
from pyrodrop.zoo import Entry, trained


def record(
    entry: Entry,
    *,
    full: bool = False,
    why: str = "",
    seeds: Sequence[int] = (0,),
    device: str = "cpu",
    folder: Path | None = None,
    run: Path | None = None,
) -> dict[str, Any]:
    """Write the reference of an entry; an existing result is kept if the entry has not changed.

    Args:
        full: whether to train as published.
        why: the reason for not making the full run.
        folder: folder for the trained posterior of the first seed, ``NAME.safetensors``; if None, it is not written.
        run: folder of a finished ``pyrodrop run NAME``, whose fits and result are used instead of a new full run.

    Returns:
        The content of the reference file.
    """
    where, recipe = resolve(device), references.recipe(entry, load_splits(entry, 1)[0].train)
    content = references.load(entry.name) if references.file(entry.name).is_file() else {}
    result: dict[str, Any] | str = content["result"] if content.get("recipe") == recipe else why or "not made yet"
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
    content = {
        "entry": entry.name,
        "recipe": recipe,
        "result": why if why and not isinstance(result, dict) else result,
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


def main(
    *entries: str, full: bool = False, runs: Path | None = None, why: str = "", seeds: list[int] = [0], device: str = "cpu",  # noqa: B006
    save: Path | None = None,
) -> None:  # fmt: skip
    """Write references of entries.

    Args:
        entries: names of entries.
        full: make the full run, as published.
        runs: folder of finished full runs, each as ENTRY/results.json and its fits.
        why: the reason for not making the full run.
        seeds: of the full runs, the first is described.
        device: of the full runs.
        save: folder to write the trained posterior to.
    """
    for entry in map(zoo.entry, entries):
        options = {"full": full, "why": why, "seeds": seeds, "device": device, "folder": save}
        result = record(entry, run=runs and runs / entry.name, **options)["result"]  # type: ignore[arg-type]
        print(entry.name, result if isinstance(result, str) else f"{result['seconds']:.0f} s", sep=": ", flush=True)


if __name__ == "__main__":
    App(default_command=main, result_action="return_none")()
