"""Write references of zoo entries: ``python -m pyrodrop.analysis.lab.zoo.record ENTRY... [--full] [--device cuda]``.

With ``--full`` it makes the full run. Without it, the existing result is kept if the entry has not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cyclopts import App

from pyrodrop import zoo
from pyrodrop.analysis.reports.json_files import write_json
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.train import keep, load_splits, measure, result_of
from pyrodrop.devices import resolve
from pyrodrop.prediction.stored import Stored
from pyrodrop.zoo import Entry, trained


def record(
    entry: Entry,
    *,
    full: bool = False,
    why: str = "",
    seeds: Sequence[int] = (0,),
    device: str = "cpu",
    folder: Path | None = None,
) -> dict[str, Any]:
    """Write the reference of an entry; an existing result is kept if the entry has not changed.

    Args:
        full: whether to train as published.
        why: the reason for not making the full run.
        folder: folder for the trained posterior of the first seed, ``NAME.safetensors``; if None, it is not written.

    Returns:
        The content of the reference file.
    """
    where, recipe = resolve(device), references.recipe(entry, load_splits(entry, 1)[0].train)
    content = references.load(entry.name) if references.file(entry.name).is_file() else {}
    result: dict[str, Any] | str = content["result"] if content.get("recipe") == recipe else why or "not made yet"
    if full:
        splits = load_splits(entry)
        runs = {seed: measure(entry, splits, seed=seed, device=where, progress=False) for seed in seeds}
        result = result_of(entry, runs, where)
        if folder is not None:
            kept = keep(folder, entry, runs[seeds[0]].fits, splits, result)
            result = trained.header(Stored.read(kept)).content["result"]
    content = {
        "entry": entry.name,
        "recipe": recipe,
        "result": why if why and not isinstance(result, dict) else result,
    }
    path = references.file(entry.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    return content


def main(
    *entries: str, full: bool = False, why: str = "", seeds: list[int] = [0], device: str = "cpu", save: Path | None = None,  # noqa: B006
) -> None:  # fmt: skip
    """Write references of entries.

    Args:
        entries: names of entries.
        full: make the full run, as published.
        why: the reason for not making the full run.
        seeds: of the full runs, the first is described.
        device: of the full runs.
        save: folder to write the trained posterior to.
    """
    for entry in map(zoo.entry, entries):
        result = record(entry, full=full, why=why, seeds=seeds, device=device, folder=save)["result"]
        print(entry.name, result if isinstance(result, str) else f"{result['seconds']:.0f} s", sep=": ", flush=True)


if __name__ == "__main__":
    App(default_command=main, result_action="return_none")()
