"""The page docs/scale.md: its code, and the numbers of its table, which are those of the result files."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import pyrodrop

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
RESULTS = ROOT / "analysis" / "benchmarks" / "results"
ROWS = re.findall(r"^\| (.+) \| (.+) \| `([\w-]+\.json): (.+)` \|$", PAGE, flags=re.MULTILINE)
OPEN = "to be measured"


@pytest.mark.more
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_code_of_the_page_runs_in_order(jobs: int) -> None:
    """By default in this process alone."""
    namespace: dict[str, Any] = {"__name__": "page"}
    found = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == PAGE.count("```python")
    assert sum("jobs=2" in code for code in found) == 1
    for code in found:
        exec(compile(code.replace("jobs=2", f"jobs={jobs}"), "scale.md", "exec"), namespace)
    assert len(namespace["runs"]) == 4
    assert len(namespace["many"]) == 8


def test_the_table_is_read() -> None:
    table = PAGE[PAGE.index("| what is measured | ratio") :].strip().splitlines()
    assert len(ROWS) == len(table) - 2


@pytest.mark.parametrize(("what", "ratio", "file", "entry"), ROWS)
def test_numbers_are_those_of_the_result_files(what: str, ratio: str, file: str, entry: str) -> None:
    """A row without a number waits for its file."""
    path = RESULTS / file
    if ratio == OPEN:
        assert not path.exists(), f"{file} is there: fill in the row {what!r}"
        return
    value: Any = json.loads(path.read_text(encoding="utf-8"))
    for key in entry.split(" / "):
        value = value[int(key) if isinstance(value, list) else key]
    assert ratio == f"{value:.2f}"


def test_every_row_names_what_it_is_compared_with() -> None:
    """And rows of replicates both our own fits and plain PyTorch, where both were measured."""
    baselines = ("plain PyTorch", "our compiled fits", "compiled fits of ours", "as one process")
    assert [what for what, *_ in ROWS if not any(baseline in what for baseline in baselines)] == []
    for file in {file for _, ratio, file, _ in ROWS if file.startswith("replicates") and ratio != OPEN}:
        cells = " ".join(what for what, _, source, _ in ROWS if source == file)
        assert "plain PyTorch" in cells
        assert "our compiled fits" in cells


def test_options_that_the_page_names_exist() -> None:
    """Those of `fit`, and the words after `pyrodrop run`."""
    from pyrodrop.analysis.experiments import JOBS

    functions = (pyrodrop.fit, pyrodrop.fit_replicates)
    options = {name for function in functions for name in inspect.signature(function).parameters}
    assert set(re.findall(r"`(\w+)=", PAGE)) - {"ARGS"} <= options
    assert set(re.findall(r"`pyrodrop run ([\w-]+)`", PAGE)) <= set(JOBS)
