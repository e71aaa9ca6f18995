"""`Experiment`: cells that are found again, and what is written and printed at the end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from rich.table import Table

from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.experiments.experiment import Experiment, numbers
from pyrodrop.analysis.reports.job_options import job_options
from pyrodrop.failed import Failed

JOB = job_options(device="cpu", jobs=1, seed=3, quiet=True)
NAMES = ("a", "bb", "ccc")


class Measured:
    """The length of a name; every call is recorded, and the second one is interrupted once."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.interrupted = False

    def __call__(self, name: str, **options: Any) -> dict[str, Any]:
        if len(self.calls) == 1 and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        self.calls.append(name)
        return {"length": len(name), "options": {key: str(value) for key, value in options.items()}}


def run(out: Path, function: Any, steps: int = 5) -> dict[str, Any]:
    with Experiment.begin("made-up", out, JOB, {"steps": steps, "sizes": [1, 2], "more": None}) as experiment:
        cells = experiment.cells(numbers("length"))
        rows = experiment.measure(function, NAMES, cells, steps=steps)
        table = Table(title="lengths")
        table.add_row(*(str(row["length"]) for row in rows.values()))
        key = {"study": "made-up", "problem": "names", "method": "count"}
        tidy_rows = [key | {"seed": seed, "length": row["length"]} for seed, row in enumerate(rows.values())]
        content = {"cells": rows, "versions": {"more": "1"}}
        return experiment.write(
            content, table, rows=tidy_rows, settings={"draws": 7}, threads=1, figures={"lengths": Figure()}
        )


def test_an_interrupted_run_goes_on_and_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell is measured once; what is broken or of other settings is refused."""
    measured = Measured()
    with pytest.raises(KeyboardInterrupt, match="continues from what is finished"):
        run(tmp_path, measured)
    assert "reused" not in capsys.readouterr().out
    content = run(tmp_path, measured)
    shown = capsys.readouterr().out
    assert f"reused from {tmp_path}" in shown
    assert measured.calls == list(NAMES)
    assert run(tmp_path, None) == content
    assert list(content["cells"]) == list(NAMES)
    assert [row["length"] for row in content["rows"]] == [1, 2, 3]
    assert [row["length"] for row in tidy.read(tmp_path / "made-up.csv")] == [1, 2, 3]

    results = json.loads((tmp_path / "results.json").read_text())
    assert results == json.loads(json.dumps(content))
    assert results["settings"] == {"device": "cpu", "seed": 3, "steps": 5, "sizes": [1, 2], "more": None, "draws": 7}
    assert results["machine"]["threads"] == 1
    assert results["versions"]["more"] == "1"
    assert torch.__version__.startswith(results["versions"]["torch"])  # which adds what it was built for
    assert re.search(rf"lengths.*count.*2 ± 0.58.*{tmp_path}/lengths.png.*{tmp_path}/results.json", shown, re.DOTALL)
    assert (tmp_path / "lengths.png").stat().st_size > 100

    with pytest.raises(Failed, match="steps is 5 there and 6 here"):
        run(tmp_path, measured, steps=6)
    next(tmp_path.glob("*/a.json")).write_text('{"cell": {"name": "a"}}')
    with pytest.raises(Failed, match="a.json has a result of other settings"):
        run(tmp_path, measured)
