"""Stored references: thinned draws, the files of `pyrodrop.zoo.load("exact/NAME")`, and ``NAME.json`` with their recipe and
results.

problem, recipe      the name, and all settings that the result depends on besides the versions
diagnostics          of all draws before thinning, with reasons not to use them (`problems`; empty if the chains have mixed)
sampler              the sampler's settings and what it learned
learned_precisions   of the noise, by mean-field fits; their median is used. null if the published precision is used
y                    observations drawn from the reference's predictive distribution; null if there are real ones
table, members       distances by posterior, see `table`; the row ``reference`` is between two halves of the chains
spreads              of f over the reference's: by posterior and place (median, lowest, highest), and along a line
elbo                 of every single fit, with its convention; ELBOs of the same convention show how well it was trained
stored               number of stored draws and their log density at the test points
versions, machine    package versions, and processor
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from pyrodrop.analysis.lab import RESULTS, tidy
from pyrodrop.analysis.lab.experiments.references.spreads import PLACES
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.data import Dataset
from pyrodrop.names import known
from pyrodrop.sampling import Sampled
from pyrodrop.zoo import trained
from pyrodrop.zoo.exact import PROBLEMS

FOLDER = RESULTS / "posterior"
LEARNED = "learned"  # study and subfolder of the results with a learned precision; the others are `published`
DISTANCES, LINES = RESULTS / "posterior.csv", RESULTS / "posterior-lines.csv"
AXES = ("t", "data", "exact")  # rows of `LINES` that are no ratio of a method


def load(name: str, folder: Path | None = None) -> Sampled:
    """The stored draws of a reference, which predict like a fit, in the units of its data.

    Args:
        name: name of the problem, one of `PROBLEMS`.
        folder: folder of the files; if None, that of the files that come with the package.

    Raises:
        ValueError: the name is unknown, or there is no such file.
    """
    known(name, PROBLEMS, "reference")
    path = (folder or trained.SHIPPED / "exact") / f"{name}.safetensors"
    if not path.is_file():
        raise ValueError(
            f"{name} has no stored draws: {path.name} is not in {path.parent}; pyrodrop run references makes it"
        )
    return Sampled.load(path, PROBLEMS[name].model())


def facts(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The stored results of a problem: what ``pyrodrop run references`` writes, with numbers of seven digits."""
    about = dict(read_record(folder / f"{known(name, PROBLEMS, 'reference')}.json").content)
    study = LEARNED if folder.name == LEARNED else "published"
    rows, lines = ([row for row in tidy.read(path) if _of(row) == (study, name)] for path in (DISTANCES, LINES))
    return joined(about, rows, lines)


def _of(row: tidy.Row) -> tuple[str, str]:
    return row["study"], row["problem"]


def parts(content: Mapping[str, Any], study: str) -> tuple[dict[str, Any], list[tidy.Row], list[tidy.Row]]:
    """The results of a problem in three parts: settings, and rows of `DISTANCES` and of `LINES`."""
    keys = {"study": study, "problem": content["problem"]}
    spreads, members = content["spreads"], content["members"]
    rows = [keys | {"method": name} | row | _ends(spreads["places"][name]) for name, row in content["table"].items()]
    for name, each in members.items():
        elbos = [{"elbo": elbo["value"], "elbo se": elbo["se"]} for elbo in content["elbo"][name]]
        rows += [keys | {"method": name, "seed": s} | row | elbos[s] for s, row in enumerate(each)]
    values = {key: spreads["line"][key] for key in AXES} | spreads["line"]["ratio"]
    lines = [keys | {"method": name} | {str(n): v for n, v in enumerate(line)} for name, line in values.items()]
    about = {key: value for key, value in content.items() if key not in ("table", "members", "spreads", "elbo")}
    about["conventions"] = {name: each[0]["convention"] for name, each in content["elbo"].items()}
    about["columns"] = {
        "table": list(next(iter(content["table"].values()))),
        "reference": list(content["table"]["reference"]),
        "members": list(next(iter(members.values()))[0]),
        "points": {name: len(line) for name, line in values.items()},
    }
    return about, rows, lines


def _ends(places: Mapping[str, Mapping[str, float | None]]) -> tidy.Row:
    return {f"{place} {end}": ratio[end] for place, ratio in places.items() for end in ("lowest", "highest")}


def joined(about: Mapping[str, Any], rows: Iterable[tidy.Row], lines: Iterable[tidy.Row]) -> dict[str, Any]:
    """The results of a problem from their three parts."""
    content = {key: value for key, value in about.items() if key not in ("conventions", "columns")}
    columns, conventions = about["columns"], about["conventions"]
    content |= {"table": {}, "members": {}, "spreads": {"places": {}, "line": {"ratio": {}}}, "elbo": {}}
    for row in rows:
        name = row["method"]
        if "seed" in row:
            content["members"].setdefault(name, []).append({key: row.get(key) for key in columns["members"]})
            elbo = {"value": row["elbo"], "se": row["elbo se"], "convention": conventions[name]}
            content["elbo"].setdefault(name, []).append(elbo)
            continue
        content["table"][name] = {key: row.get(key) for key in columns["reference" if name == "reference" else "table"]}
        content["spreads"]["places"][name] = {
            place: {"median": row.get(place)} | {end: row.get(f"{place} {end}") for end in ("lowest", "highest")}
            for place in PLACES
        }
    line = content["spreads"]["line"]
    for row in lines:
        values = [row.get(str(n)) for n in range(columns["points"][row["method"]])]
        (line if row["method"] in AXES else line["ratio"])[row["method"]] = values
    return content


def main(folder: str) -> None:
    """Put the results of a run of ``pyrodrop run references`` in place of those that are stored."""
    for file in (Path(folder) / f"{name}.json" for name in PROBLEMS):
        if file.is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            study = "published" if content["learned_precisions"] is None else LEARNED
            about, *tables = parts(content, study)
            write_json((FOLDER / LEARNED if study == LEARNED else FOLDER) / file.name, about)
            for path, rows in zip((DISTANCES, LINES), tables, strict=True):
                tidy.put(path, rows)


def save(sampled: Sampled, path: Path, name: str, kept: int, judged: Dataset) -> float:
    """Write `kept` of the draws in float32, and return their mean log density at the test points."""
    model = copy.deepcopy(sampled.model).float()
    samples = {name: values.float() for name, values in sampled.samples.items()}
    stats = {n: v.float() if v.dtype == torch.float64 else v for n, v in sampled.stats.items()}
    few = dataclasses.replace(sampled, model=model, samples=samples, stats=stats).thinned(kept)
    log_density = float(few.predict(judged.x, kept).log_density(judged.y).mean())
    result = {"scores": {"log_density": log_density}, "date": datetime.date.today().isoformat(), "versions": versions()}
    trained.save_sampled(path, PROBLEMS[name], few, judged.x, result)
    return log_density


if __name__ == "__main__":
    main(*sys.argv[1:])
