"""The page docs/coming-from.md: what its tables name exists, here and, where a package is installed, there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
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
SIGNATURES = ("pyrodrop.sample", "pyrodrop.compile_svi")  # not run: chains of default length, and a program's names
OF_PROGRAMS = (  # a block of the page runs them
    'pyrodrop.fit(model, guide, {"x": x, "y": y}, steps=100)',
    "run.predict(num_samples=100)",
)
VALUES = {  # what a name on the left is an instance of
    "svi": "pyro.infer.SVI",
    "bnn": "tyxe.VariationalBNN",
    "wrapper": "baal.ModelWrapper",
    "la": "laplace.ParametricLaplace",
}


def snippets(column: int) -> list[str]:
    """What is between backquotes in a column of the tables."""
    return list(dict.fromkeys(code for row in ROWS for code in re.findall(r"`([^`]+)`", row[column])))


def calls(code: str) -> Iterator[tuple[str, ast.Call | None]]:
    """The dotted names of a snippet, each with its call if it is called."""
    tree = ast.parse(code)
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner and not isinstance(node.value, ast.Call):
            yield ast.unparse(node), called.get(id(node))


def agrees(function: Any, call: ast.Call, bound: bool = True) -> None:
    """Raises a TypeError unless the function takes these arguments."""
    signature = inspect.signature(function)
    signature.bind(*([] if bound else [None]), *call.args, **{str(word.arg): word.value for word in call.keywords})


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


def test_the_tables_are_read() -> None:
    assert PAGE.count("| there | here |") == 6
    assert len(ROWS) > 50
    assert all(len(row) == 2 for row in ROWS if set(row[0]) != {"-"})


@pytest.mark.parametrize("code", snippets(1))
def test_what_is_here_runs(code: str, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every snippet of the right column, with fewer steps. Words are names of arguments."""
    monkeypatch.chdir(tmp_path)
    if code.isidentifier():
        assert code in ("prior", "weight_decay", "num_data")
    elif code.startswith(SIGNATURES) or code in OF_PROGRAMS:
        (call,) = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call))
        agrees(eval(ast.unparse(call.func), names), call)
    else:
        exec(code.replace("steps=100", "steps=3"), dict(names))


@pytest.mark.parametrize("code", snippets(0))
def test_what_is_there_exists(code: str) -> None:
    """Modules, classes, methods and arguments of the packages that are installed."""
    for name, call in calls(code):
        first, _, rest = name.partition(".")
        if first in ("net", "nn", "dist"):
            continue
        package, *path = f"{VALUES.get(first, first)}.{rest}".split(".")
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        value, at = importlib.import_module(package), package
        for part in path:
            at = f"{at}.{part}"
            value = getattr(value, part) if hasattr(value, part) else importlib.import_module(at)
        if call is not None:
            agrees(value, call, bound=first not in VALUES)
