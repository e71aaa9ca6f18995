"""CONTRIBUTING names what exists, and the lists that it sends contributors to are complete."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

from pyrodrop import guides, likelihoods, models, priors, reparam
from pyrodrop.analysis.jobs import JOBS
from pyrodrop.guides import Ensemble, Guide
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models import NetworkModel
from pyrodrop.priors import Prior
from pyrodrop.reparam.lazy import LazyReparam

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ENDINGS = (".py", ".md", ".toml", ".txt", ".json", "/")


def named(text: str) -> list[str]:
    """What is between backquotes, on one line."""
    return re.findall(r"`([^`\n]+)`", text)


def is_path(name: str) -> bool:
    return " " not in name and (name.endswith(ENDINGS) or name.startswith((".ci/", "tests/")))


def is_there(path: str) -> bool:
    """Whether a path exists; NAME stands for any name."""
    return bool(list(ROOT.glob(path.rstrip("/").replace("NAME", "*"))))


def lost(text: str) -> list[str]:
    """Paths and modules that do not exist, and names that are not in the file that they are said to be in."""
    flat = " ".join(text.split())
    wrong = [path for path in named(flat) if is_path(path) and not is_there(path)]
    for name, path in re.findall(r"`(\w+)` (?:in|of) `([^`]+)`", flat):
        places = [ROOT / path] if path.endswith(".py") else (ROOT / path).glob("*.py") if path.endswith("/") else []
        files = [place.read_text(encoding="utf-8") for place in places if place.is_file()]
        if files and not any(re.search(rf"\b{name}\b", file) for file in files):
            wrong.append(f"{name} in {path}")
    modules = re.findall(r"python -m ([\w.]+)", flat)
    return wrong + [module for module in modules if importlib.util.find_spec(module) is None]


def test_everything_that_contributing_names_exists() -> None:
    assert sum(map(is_path, named(TEXT))) > 40
    assert lost(TEXT) == []
    assert lost((ROOT / ".github" / "good_first_issues.md").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("package", "kinds"),
    [
        (guides, (Guide, Ensemble)),
        (priors, (Prior,)),
        (likelihoods, (Likelihood,)),
        (models, (NetworkModel,)),
        (reparam, (LazyReparam,)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_file_defines_is_exported(package: ModuleType, kinds: tuple[type, ...]) -> None:
    names = set()
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(info.name)
        classes = inspect.getmembers(module, inspect.isclass)
        names |= {n for n, c in classes if issubclass(c, kinds) and c.__module__ == info.name and not n.startswith("_")}
    assert names - {"LazyReparam", "Dispersed"} <= set(package.__all__), "but for bases of several"


def test_every_experiment_is_a_job() -> None:
    folder = ROOT / "analysis" / "lab" / "experiments"
    files = [*folder.glob("*.py"), *folder.glob("*/__init__.py")]
    runs = {p for p in files if re.search(r"^def run\(|import .*\brun\b", p.read_text(encoding="utf-8"), re.MULTILINE)}
    names = {(path.parent.name if path.name == "__init__.py" else path.stem).replace("_", "-") for path in runs}
    assert names == set(JOBS)
