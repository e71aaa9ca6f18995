"""Results of a study as one table, ``NAME.csv``, with what they were made with in ``NAME.json`` beside it.

    study,problem,method,seed, then a column per score, and ``SCORE se`` for a standard error

A row is one measurement of a method on a problem. `seed` counts repetitions: seeds, splits or folds; it is empty if there is
one for all. Numbers have at most seven significant digits, and a cell is empty if it was not measured. ``NAME.json`` has
settings, commit, date, machine and versions; if these differ, they are in the list `made`, with the rows of each,
``STUDY/PROBLEM/METHOD``, where * stands for any.

``python -m pyrodrop.analysis.lab.tidy INTO.csv FROM.csv`` puts the rows of one table into another.
"""

from __future__ import annotations

import csv
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from pyrodrop.analysis.lab import ROOT
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.analysis.reports.score_table import mean_and_error
from pyrodrop.devices import processor
from pyrodrop.files import whole

KEYS = ("study", "problem", "method", "seed")
Row = dict[str, Any]


def write(path: Path, rows: Iterable[Mapping[str, Any]], about: Mapping[str, Any]) -> None:
    """Write the rows to `path`, columns in the order of each row, and what they were made with to the JSON beside it."""
    rows = list(rows)
    scores: list[str] = []
    for row in rows:
        at = 0
        for name in (name for name in row if name not in KEYS):
            if name not in scores:
                scores.insert(at, name)
            at = scores.index(name) + 1
    with whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*KEYS, *scores])
        table.writerows([_text(row.get(name)) for name in (*KEYS, *scores)] for row in rows)
    write_json(path.with_suffix(".json"), about)
    read.cache_clear()


@functools.cache
def read(path: Path) -> tuple[Row, ...]:
    """The rows of a study, each without what was not measured; numbers are numbers, and seeds are whole."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple({name: _value(name, text) for name, text in row.items() if text} for row in csv.DictReader(file))


def about(path: Path) -> Mapping[str, Any]:
    """What the rows were made with: the content of the JSON file beside them."""
    return read_record(path.with_suffix(".json")).content


def put(path: Path, rows: Iterable[Mapping[str, Any]], extra: Mapping[str, Any] | None = None) -> None:
    """Put new rows in place of those of the same study, problem and method, and say with what they were made."""
    rows = list(rows)
    _put(path, rows, [made() | dict(extra or {}) | {"rows": list(map(_name, rows))}])


def merge(path: Path, other: Path) -> None:
    """Put the rows of another table in place of those of the same study, problem and method, with what they were made."""
    beside = about(other)
    _put(path, read(other), beside["made"] if "made" in beside else [{**beside, "rows": list(map(_name, read(other)))}])


def _put(path: Path, new: Sequence[Mapping[str, Any]], of_new: Sequence[Mapping[str, Any]]) -> None:
    there, beside = (list(read(path)), dict(about(path))) if path.is_file() else ([], {"made": []})
    names = set(map(_name, new))
    kept = [row for row in there if _name(row) not in names]
    every = [*dict.fromkeys(map(_name, [*kept, *new]))]
    parts = [(group, set(map(_name, kept))) for group in beside["made"]] + [(group, names) for group in of_new]
    groups = [(dict(g), {n for n in of if any(fnmatchcase(n, pattern) for pattern in g["rows"])}) for g, of in parts]
    beside["made"] = [group | {"rows": _patterns(of, every)} for group, of in groups if of]
    write(path, [*kept, *new], beside)


def _name(row: Mapping[str, Any]) -> str:
    return "/".join(re.sub(r"[\[\]*?/]", "_", str(row[key])) for key in KEYS[:3])


def _patterns(names: Set[str], every: Sequence[str]) -> list[str]:
    """The names, or in place of all of a study, or of all of a problem of it, one pattern."""
    patterns = dict[str, None]()
    for name in (name for name in every if name in names):
        study, problem, _ = name.split("/")
        wider = [
            start
            for start in (f"{study}/", f"{study}/{problem}/")
            if {n for n in every if n.startswith(start)} <= names
        ]
        patterns[f"{wider[0]}*" if wider else name] = None
    return list(patterns)


def made() -> dict[str, Any]:
    """Commit, date, processor and versions of this moment."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return {"commit": commit.strip(), "date": f"{date.today()}", "processor": processor(), "versions": versions()}


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of every score that is a number in all rows, and its standard error as ``SCORE se`` if they are several."""
    row: dict[str, float] = {}
    for name in rows[0]:
        values = [each.get(name) for each in rows]
        if name not in KEYS and all(isinstance(value, (int, float)) for value in values):
            row[name], error = mean_and_error(values)  # type: ignore[arg-type]
            row |= {} if error is None else {f"{name} se": error}
    return row


def pivot(rows: Iterable[Mapping[str, Any]], shown: Callable[[Sequence[float]], str]) -> list[list[str]]:
    """A table of texts: a header, and a row per method with the numbers of all its seeds by score."""
    by_method: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        of_method = by_method.setdefault(row["method"], {})
        for name, value in scores(row).items():
            if isinstance(value, (int, float)):
                of_method.setdefault(name, []).append(value)
    columns = list(dict.fromkeys(name for of_method in by_method.values() for name in of_method))
    texts = ([m, *(shown(of[c]) if c in of else "" for c in columns)] for m, of in by_method.items())
    return [["method", *columns], *texts]


def mean_shown(values: Sequence[float]) -> str:
    """Mean and standard error, in three digits."""
    mean, error = mean_and_error(values)
    return f"{mean:.3g}" + ("" if error is None else f" ± {error:.2g}")


def scores(row: Mapping[str, Any]) -> Row:
    """The scores of a row, without its keys."""
    return {name: value for name, value in row.items() if name not in KEYS}


def curves(path: Path) -> dict[str, np.ndarray]:
    """The values of figures by name, in a file ``NAME.npz``; empty if there is none."""
    if not path.is_file():
        return {}
    with np.load(path) as stored:
        return dict(zip(stored["names"].tolist(), np.split(stored["values"], stored["ends"][:-1]), strict=True))


def put_curves(path: Path, new: Mapping[str, Any]) -> None:
    """Put values of figures in place of those of the same names, in float16."""
    every = curves(path) | {name: np.array(values, dtype=float).astype(np.float16) for name, values in new.items()}
    ends = np.cumsum([len(values) for values in every.values()])
    with whole(path) as part, part.open("wb") as file:
        np.savez_compressed(file, names=np.array(list(every)), ends=ends, values=np.concatenate([*every.values()]))


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)


def _value(name: str, text: str) -> Any:
    if name in KEYS:
        return int(text) if name == "seed" else text
    try:
        return float(text)
    except ValueError:
        return text


if __name__ == "__main__":
    merge(*map(Path, sys.argv[1:]))
