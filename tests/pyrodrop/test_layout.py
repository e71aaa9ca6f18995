"""The shape of the package: which part may import which, what importing costs, and names at the command line."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyrodrop
from pyrodrop import cli, zoo
from pyrodrop.analysis.experiments import JOBS, job
from pyrodrop.names import known

ROOT = Path(__file__).parents[2]
# What a part must not import, at any depth. Read downwards: distributions know nothing, analysis may know everything.
CORE = ("zoo", "cli", "models", "guides", "analysis")
FORBIDDEN = {
    "pyrodrop/distributions": ("divergences", "priors", "likelihoods", "svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/priors": ("svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/divergences": ("reparam", "svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/likelihoods": ("svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/data": ("svi", "predictive", "metrics", *CORE),
    "pyrodrop/reparam": ("svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/networks": ("svi", "predictive", "metrics", "data", "stepper", *CORE),
    "pyrodrop/masks.py": ("divergences", "reparam", "svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/moments.py": ("svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/functions.py": ("svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/tiles.py": ("svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/closed_form.py": ("svi", "predictive", "metrics", "data", *CORE),
    "pyrodrop/compression": ("svi", "fitted", "predictive", "metrics", *CORE),
    "pyrodrop/svi.py": CORE,
    "pyrodrop/fitted.py": CORE,
    "pyrodrop/predictive.py": CORE,
    "pyrodrop/metrics": CORE,
    "models": ("guides", "zoo", "cli", "analysis"),
    "guides": ("models", "zoo", "cli", "analysis"),
    "pyrodrop/zoo": ("cli", "analysis"),
    "analysis": ("cli",),
}


def imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("part", FORBIDDEN)
def test_imports_run_one_way(part: str) -> None:
    place = ROOT / part
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    assert files
    for file in files:
        for name in imported(file):
            for forbidden in FORBIDDEN[part]:
                wrong = name == f"pyrodrop.{forbidden}" or name.startswith(f"pyrodrop.{forbidden}.")
                assert not wrong, f"{file.relative_to(ROOT)} imports {name}"


def test_importing_the_package_is_light() -> None:
    """Even what the package offers of its analysis (to_arviz, compare) is imported when it is called."""
    heavy = ("arviz", "matplotlib", "gpytorch", "pandas", "xarray", "pyrodrop.analysis")
    code = f"import sys, pyrodrop; pyrodrop.to_arviz, pyrodrop.compare; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_reaches_its_analysis_by_name_only_inside_functions() -> None:
    """At the top of `pyrodrop/__init__.py` it may be named for types alone."""
    tree = ast.parse((ROOT / "pyrodrop" / "__init__.py").read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [node for node in top if "analysis" in ast.unparse(node)]


@pytest.mark.parametrize("folder", ["models", "guides", "analysis"])
def test_a_second_copy_under_another_name_is_refused(folder: str) -> None:
    spec = importlib.util.spec_from_file_location(folder, ROOT / folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=f"import pyrodrop.{folder}, not {folder}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    link = ROOT / "pyrodrop" / folder
    assert not link.is_symlink() or link.resolve() == ROOT / folder


def test_every_package_is_named_in_the_build() -> None:
    """A folder that pyproject does not name would be missing from the wheel."""
    text = (ROOT / "pyproject.toml").read_text()
    folders = [
        p.parent for top in ("pyrodrop", "models", "guides", "analysis") for p in (ROOT / top).rglob("__init__.py")
    ]
    for folder in folders:
        parts = folder.relative_to(ROOT).parts
        name = ".".join(parts if parts[0] == "pyrodrop" else ("pyrodrop", *parts))
        assert f'"{name}"' in text, name


def test_public_names_exist() -> None:
    assert all(hasattr(pyrodrop, name) for name in pyrodrop.__all__)


def test_nearest_names() -> None:
    with pytest.raises(ValueError, match="no job is called 'c02'.*did you mean 'co2'"):
        job("c02")
    with pytest.raises(ValueError, match="no zoo entry is called 'co2/relu'.*did you mean"):
        zoo.entry("co2/relu")
    assert known("a", ["a", "b"], "thing") == "a"


def test_list_names_every_job_and_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in [*JOBS, *zoo.ENTRIES])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "no command is called 'rnu'; there are run, list, show, check, compare, report; did you mean 'run'?"),
        (["run"], "run needs the name of a job: co2, "),
        (["run", "co3"], "no job is called 'co3'; there are co2, "),
        (["run", "co2", "--out", "/proc/nowhere"], "results need a folder that can be written to; got /proc/nowhere"),
        (["run", "co2", "--device", "cuda:99", "--out", "OUT"], "device must be one of auto, cpu"),
        (["run", "co2", "--steps", "0", "--out", "OUT"], "steps is the number of gradient steps"),
    ],
)
def test_mistakes_at_the_command_line_are_said_in_a_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(tmp_path) if w == "OUT" else w for w in words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_options_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "co2", "--preset", "papr"])
    assert "papr" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        cli.main(["run", "co2", "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(
        option in shown for option in ("--preset", "--data", "--device", "--seed", "--steps", "--out", "--quiet")
    )


@pytest.mark.parametrize("name", [*JOBS, "uci/yacht"])
def test_help_says_what_each_option_means(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", name, "--help"])
    options = re.split(r"\n  (?=--)", capsys.readouterr().out)[1:]
    assert len(options) > 4
    for text in options:
        flags, _, words = text.partition("  ")
        assert re.match(r"\s*\w+[^(]*\w", words), f"{flags} has no words of its own"
