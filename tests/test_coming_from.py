"""The page docs/coming-from.md: what its tables show of pyrodrop runs."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, models, priors
from pyrodrop.analysis import acquire

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text(encoding="utf-8")
ROWS = [
    line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ") and "| there |" not in line
]
SIGNATURES = (
    "pyrodrop.sample",
    "pyrodrop.compile_svi",
    "pyrodrop.last_layer",
)  # not run: long chains, other names, real y
OF_PROGRAMS = (  # a block of the page runs them
    'pyrodrop.fit(model, guide, {"x": x, "y": y}, steps=100)',
    "run.predict(num_samples=100)",
)


def snippets(column: int) -> list[str]:
    """What is between backquotes in a column of the tables."""
    return list(dict.fromkeys(code for row in ROWS for code in re.findall(r"`([^`]+)`", row[column])))


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page has made before: rows, networks, a reading, a fit and a prediction."""
    torch.manual_seed(0)
    x = torch.randn(200, 4)
    y = (x[:, 0] > 0).long()
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 2))
    plain = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    model = models.from_module(plain, prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    reading = pyrodrop.read(net, x, likelihood=likelihoods.Categorical(), weight_decay=1e-4, num_data=200)
    run = pyrodrop.fit(reading.model, reading.guide, (x, y), steps=3)
    return {
        **{"pyrodrop": pyrodrop, "guides": guides, "likelihoods": likelihoods, "metrics": metrics, "models": models},
        **{"priors": priors, "acquire": acquire, "torch": torch, "nn": nn, "x": x, "y": y, "net": net, "model": model},
        **{
            "guide": guides.MeanField(model),
            "plain": plain,
            "run": run,
            "reading": reading,
            "prediction": run.predict(x, num_samples=10),
        },
    }


@pytest.mark.parametrize("code", snippets(1))
def test_what_is_here_runs(code: str, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every snippet of the right column, with fewer steps. Words are names of arguments."""
    monkeypatch.chdir(tmp_path)
    if code.isidentifier():
        assert code in ("prior", "weight_decay", "num_data")
    elif code.startswith(SIGNATURES) or code in OF_PROGRAMS:
        (call,) = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
        arguments = {str(word.arg): word.value for word in call.keywords}
        inspect.signature(eval(ast.unparse(call.func), names)).bind(*call.args, **arguments)
    else:
        exec(code.replace("steps=100", "steps=3"), dict(names))
