"""The notebooks: every one is a pair of files of the same cells, and runs from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[3] / "analysis" / "lab" / "notebooks"
HANGS = 600  # seconds of a cell; a notebook takes less than 90 on two free cores
TEXTS = sorted(NOTEBOOKS.glob("*.py"))
PAIRS = pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)


def cells(text: Path) -> list[tuple[str, str]]:
    """Kind and source of every cell of the executed notebook."""
    found = json.loads(text.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in found]


def test_every_notebook_is_a_pair() -> None:
    assert TEXTS
    assert [path.stem for path in TEXTS] == sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


@PAIRS
def test_both_files_have_the_same_cells(text: Path) -> None:
    jupytext = pytest.importorskip("jupytext", reason="needs the notebooks extra: pip install '.[notebooks]'")
    assert [(cell.cell_type, cell.source) for cell in jupytext.read(text).cells] == cells(text)


@PAIRS
def test_outputs_are_there_and_clean(text: Path) -> None:
    """Every code cell has run, in order; no errors, no warnings, no paths of the machine that ran it."""
    found = json.loads(text.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in found if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for output in outputs:
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", "".join(output["text"])
        shown = json.dumps({kind: value for kind, value in output.get("data", {}).items() if kind != "image/png"})
        for path in ("/tmp/", "/home/", "/root/", "/Users/"):
            assert path not in shown + "".join(output.get("text", ""))


@pytest.mark.slow
@pytest.mark.timeout(2 * HANGS)
@PAIRS
def test_it_runs(text: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, in a kernel of its own with one thread: those of several kernels would wait for each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    source = text.read_text(encoding="utf-8")
    if any(f"{loader}(" in source for loader in ("mnist", "foong2020", "uci")):
        request.getfixturevalue("data_folder")
    nbformat = pytest.importorskip("nbformat", reason="needs the notebooks extra: pip install '.[notebooks]'")
    nbclient = pytest.importorskip("nbclient", reason="needs the notebooks extra: pip install '.[notebooks]'")
    notebook = nbformat.read(text.with_suffix(".ipynb"), as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=HANGS, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}}
    )
    client.execute()
