"""The arguments of `fit`, `fit_replicates` and `Training`: the same everywhere, and an error where they are wrong."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import pyrodrop
from pyrodrop.reparam import STRATEGIES
from pyrodrop.training.settings import Estimator, Settings, TrainingOptions


def arguments(function: object) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_options_have_one_default() -> None:
    """`Settings` has every option, and signatures and types of the options are made of it."""
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert set(fields) == set(get_type_hints(TrainingOptions)) | {"steps", "starts"}
    names = get_type_hints(TrainingOptions)
    for function in (pyrodrop.fit, pyrodrop.fit_replicates, pyrodrop.Training):
        own = arguments(function)
        assert all(p.kind is not p.VAR_KEYWORD for p in own.values())
        assert {name: own[name].default for name in names} == {name: fields[name] for name in names}


def test_help_shows_every_argument() -> None:
    for function in (pyrodrop.fit, pyrodrop.fit_replicates, pyrodrop.Training):
        text = pydoc.plain(pydoc.render_doc(function))
        assert all(f"{name}: " in text for name in arguments(function))
        assert "**" not in text.split("\n\n")[1].splitlines()[0]


def test_the_estimators_are_those_of_reparam() -> None:
    assert set(get_args(Estimator)) == set(STRATEGIES)


CALLS = """
from typing import Any
import pyrodrop
m: Any
d: Any
reveal_type(pyrodrop.fit(m, m, d, steps=1, batch_size=3, lr=lambda name: 0.1))
reveal_type(pyrodrop.fit_replicates(m, m, d, count=2, steps=1, memory=1e9))
reveal_type(pyrodrop.Training(m, m, d, batch_size=3).step().nll)
pyrodrop.fit(m, m, d, steps=1, batchsize=3)
pyrodrop.fit(m, m, d, steps=1, checkpoint=3)
pyrodrop.fit(m, m, d, steps=1, estimator="locl")
pyrodrop.fit_replicates(m, m, d, count=2, steps=1, batchsize=3)
pyrodrop.Training(m, m, d, batchsize=3)
"""


@pytest.mark.slow
def test_types_of_results_and_errors_of_mypy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    root = Path(__file__).parents[3]
    (tmp_path / "calls.py").write_text(CALLS)
    monkeypatch.setenv("MYPYPATH", str(root))
    monkeypatch.chdir(root)
    said, _, _ = api.run([str(tmp_path / "calls.py"), "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path)])
    lines = {int(line.split(":")[1]): line for line in reversed(said.splitlines()) if "calls.py:" in line}
    kinds = [lines[n].split('"')[1] for n in range(6, 9)]
    assert kinds == [
        "pyrodrop.training.result.Fit",
        "pyrodrop.training.fitted_replicates.Replicates",
        "torch._tensor.Tensor",
    ]
    assert all("error: " in lines[n] for n in range(9, 14)), said
    assert "batchsize" in lines[13]
