"""The shape of the package: which part may import which, and what importing costs."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyrodrop

ROOT = Path(__file__).parents[2]
# Every file is in one layer, and imports from its own folder and from layers above it in this list.
# CONTRIBUTING shows the same list.
LAYERS = (
    ("pyrodrop/checks.py", "pyrodrop/failed.py", "pyrodrop/private_apis.py"),
    ("pyrodrop/lines.py", "pyrodrop/stacking.py", "pyrodrop/threads.py"),
    ("pyrodrop/arrays.py", "pyrodrop/distributions", "pyrodrop/files.py", "pyrodrop/parts.py", "pyrodrop/scaling.py")
    + ("pyrodrop/schedules.py",),
    ("pyrodrop/devices.py", "pyrodrop/divergences", "pyrodrop/priors", "pyrodrop/modules.py"),
    ("pyrodrop/changes.py",),
    ("pyrodrop/data", "pyrodrop/likelihoods", "pyrodrop/reparam", "pyrodrop/steps.py"),
    ("pyrodrop/compiled", "pyrodrop/networks"),
    ("guides", "models"),
    ("pyrodrop/priors/fitted.py",),
    ("pyrodrop/prediction",),
    ("pyrodrop/compression", "pyrodrop/metrics"),
    ("pyrodrop/training",),
    ("pyrodrop/sampling",),
    ("pyrodrop/reading", "pyrodrop/recipes.py"),
    ("pyrodrop/zoo",),
    ("pyrodrop/sklearn.py",),
    ("pyrodrop/__init__.py",),
    ("analysis/__init__.py", "analysis/jobs.py", "analysis/reports"),
    ("analysis/comparison", "analysis/gp"),
    ("analysis/acquire", "analysis/arviz", "analysis/calibration", "analysis/fit_report.py", "analysis/plots.py")
    + ("analysis/zoo",),
    ("pyrodrop/cli.py",),
    ("pyrodrop/__main__.py",),
    ("analysis/lab/__init__.py",),
    ("analysis/lab/generated.py", "analysis/lab/networks", "analysis/lab/programs")
    + ("analysis/lab/tidy.py", "analysis/lab/zoo"),
    ("analysis/lab/peers",),
    ("analysis/lab/benchmarks", "analysis/lab/experiments"),
    ("analysis/lab/pages.py",),
)
LAYER = {room: number for number, layer in enumerate(LAYERS) for room in layer}
FACADES = (
    "pyrodrop/__init__.py",
    "pyrodrop/priors/__init__.py",
    "analysis/__init__.py",
)  # reach for what stands above them when it is asked for


@functools.cache
def imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def files() -> list[Path]:
    """Every file of the project's code but its notebooks, which nothing imports."""
    paths = [f for top in ("pyrodrop", "models", "guides", "analysis") for f in (ROOT / top).rglob("*.py")]
    relative = [f.relative_to(ROOT) for f in paths if not f.relative_to(ROOT).as_posix().startswith(_LINKS)]
    return sorted(f for f in relative if f.parts[:3] != ("analysis", "lab", "notebooks"))


_LINKS = ("pyrodrop/models/", "pyrodrop/guides/", "pyrodrop/analysis/")


def room_of(file: Path) -> str:
    """The entry of `LAYERS` that a file is in: itself, or the one folder that it is in."""
    rooms = [room for room in LAYER if file.as_posix() == room] or [
        room for room in LAYER if file.as_posix().startswith(f"{room}/")
    ]
    assert len(rooms) == 1, f"{file} must be in one layer of LAYERS; it is in {rooms or 'none'}"
    return rooms[0]


def target(name: str) -> Path | None:
    """The file that a dotted name is of, if it is one of the project's."""
    parts = name.split(".")
    if parts[0] != "pyrodrop":
        return None
    while parts:
        place = Path(*(parts[1:] if parts[1:2] and parts[1] in ("models", "guides", "analysis") else parts))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if (ROOT / file).is_file():
                return file
        parts.pop()
    return None


def upward(file: Path, names: set[str]) -> list[str]:
    """The imports of a file that do not run down."""
    own_room = room_of(file)
    wrong = []
    for name in sorted(names):
        other = target(name)
        if other is None or file.as_posix() in FACADES:
            continue
        room = room_of(other)
        package = room == "pyrodrop/__init__.py"  # whose parts are names of their own
        if room != own_room and not (package and name == "pyrodrop") and LAYER[room] >= LAYER[own_room]:
            wrong.append(name)
    return wrong


def test_every_file_is_in_one_layer_and_imports_run_down_only() -> None:
    wrong = {str(file): bad for file in files() if (bad := upward(file, imported(ROOT / file)))}
    assert not wrong


def test_the_accelerator_stands_on_the_ground_floor_behind_one_door() -> None:
    """`compiled` imports what knows no model, guide or data; nobody imports below its `__init__`."""
    ground = {room for layer in LAYERS[:5] for room in layer} | {"pyrodrop/steps.py", "pyrodrop/compiled"}
    for file in files():
        names = [name for name in imported(ROOT / file) if (other := target(name)) is not None]
        if file.parts[:2] == ("pyrodrop", "compiled"):
            assert {room_of(other) for name in names if (other := target(name))} <= ground, file
        else:
            below = [name for name in names if (other := target(name)) and other.parts[:2] == ("pyrodrop", "compiled")]
            assert {target(name) for name in below} <= {Path("pyrodrop/compiled/__init__.py")}, file


def test_no_two_files_import_each_other() -> None:
    """Not within a folder either, not inside functions, and not for types alone. A package reads its own files."""
    graph: dict[Path, set[Path]] = {}
    for file in files():
        if file.as_posix() not in FACADES:
            names = imported(ROOT / file)
            graph[file] = {other for name in names if (other := target(name)) is not None}
            graph[file] -= {file, file.parent / "__init__.py", *map(Path, FACADES)}
    graphlib.TopologicalSorter(graph).prepare()  # raises an error that names a circle


def test_contributing_shows_the_same_layers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = [re.sub(r"^    \d+ +", "", line).split() for line in text.splitlines() if re.match(r"    \d+ +\S", line)]
    assert shown == [list(layer) for layer in LAYERS]


def test_importing_the_package_is_light() -> None:
    """What the package offers of its analysis (to_arviz, compare) is imported when it is first asked for."""
    heavy = ("arviz", "matplotlib", "gpytorch", "pandas", "xarray", "pyrodrop.analysis")
    code = f"import sys, pyrodrop; pyrodrop.fit, pyrodrop.Prediction; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from pyrodrop import cli\n"
        "cli.main(['--help']); cli.main(['run', '--help'])\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "Usage: pyrodrop COMMAND" in done.stdout
    assert done.stdout.splitlines()[-1] == "False False"


def test_public_names_are_those_that_types_are_checked_by_and_come_from_there() -> None:
    """What `pyrodrop.__getattr__` finds is what mypy sees."""
    tree = ast.parse((ROOT / "pyrodrop" / "__init__.py").read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    typed_names = {
        alias.name: node.module for node in imports for alias in node.names if alias.name in pyrodrop.__all__
    }
    assert set(typed_names) == set(pyrodrop.__all__)
    for name, place in typed_names.items():
        module = importlib.import_module(f"pyrodrop.{name}" if place == "pyrodrop" else str(place))
        assert getattr(pyrodrop, name) is (module if place == "pyrodrop" else getattr(module, name))
    assert {name for name in dir(pyrodrop) if not name.startswith("__")} == {*pyrodrop.__all__, "analysis", "sklearn"}
    with pytest.raises(AttributeError, match="module 'pyrodrop' has no attribute 'fitt'"):
        _ = pyrodrop.fitt


@pytest.mark.parametrize("folder", ["models", "guides", "analysis"])
def test_a_second_copy_under_another_name_is_refused(folder: str) -> None:
    spec = importlib.util.spec_from_file_location(folder, ROOT / folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=f"import pyrodrop.{folder}, not {folder}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    link = ROOT / "pyrodrop" / folder
    assert not link.is_symlink() or link.resolve() == ROOT / folder


def private_names(text: str) -> list[str]:
    """Names of torch and Pyro in a file that begin with an underscore, and Pyro's private attributes by any other name."""
    names: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            names += [chain] if re.fullmatch(r"[\w.]+", chain) else []
    theirs = [name for name in names if name.split(".")[0] in ("torch", "pyro", "fx", "poutine", "Tensor", "store")]
    elsewhere = ("_schema", "_codegen", "_param_to_name", "_PYRO_STACK")
    return [
        name
        for name in {*theirs, *(n for n in names if n.endswith(elsewhere))}
        if not name.startswith("torch.ops.")
        and (any(piece.startswith("_") and piece[:2] != "__" for piece in name.split(".")) or "fx.experimental" in name)
    ]


def test_private_apis_are_used_in_one_file_alone() -> None:
    every = (f for top in ("pyrodrop", "models", "guides", "analysis") for f in (ROOT / top).rglob("*.py"))
    paths = {f.resolve() for f in every}  # pyrodrop/ has links to the others
    used = {str(f.relative_to(ROOT)): names for f in paths if (names := private_names(f.read_text()))}
    assert set(used) == {"pyrodrop/private_apis.py"}
