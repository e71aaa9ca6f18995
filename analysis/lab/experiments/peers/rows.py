"""Distances of methods from exact posteriors, a row per problem and method of ``analysis/lab/results/distances.csv``.

The study ``peers`` has other packages and the method ``chance``, between two halves of the exact posterior's draws, from the
job `peers`; the study ``league`` has our posteriors, from `league.measure`. ``python -m
pyrodrop.analysis.lab.experiments.peers.rows FOLDER`` puts the rows of a run of the job in place of those that are stored.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyrodrop.analysis.lab import RESULTS, tidy
from pyrodrop.analysis.reports.json_files import read_record

STORED = RESULTS / "distances.csv"


def rows_of(problems: Mapping[str, Any], seed: int) -> list[tidy.Row]:
    """The rows of a run of the job."""
    rows = []
    for problem, of_problem in problems.items():
        key = {"study": "peers", "problem": problem, "seed": seed}
        rows.append(key | {"method": "chance"} | with_errors(of_problem["chance"]))
        for method, row in of_problem["rows"].items():
            about = row.get("about", {})
            texts = {
                name: ", ".join(f"{k} {v}" for k, v in about.get(name, {}).items()) for name in ("settings", "versions")
            }
            scores = {"fault": row["fault"]} if "fault" in row else with_errors(row["values"])
            rows.append(key | {"method": method} | scores | {"seconds": about.get("seconds")} | texts)
    return rows


def with_errors(scores: Mapping[str, Any]) -> tidy.Row:
    """Scores by their names in a table, where a standard error is ``SCORE se``."""
    return {name.replace("_se", " se"): value for name, value in scores.items()}


def stored(study: str) -> dict[tuple[str, str], tidy.Row]:
    """The scores of a study by problem and method; a standard error is ``SCORE_se``, as in other tables of distances."""
    return {
        (row["problem"], row["method"]): {name.replace(" se", "_se"): value for name, value in tidy.scores(row).items()}
        for row in tidy.read(STORED)
        if row["study"] == study
    }


if __name__ == "__main__":
    content = read_record(Path(sys.argv[1]) / "results.json").content
    tidy.put(STORED, rows_of(content["problems"], content["settings"]["seed"]))
