"""Without the extras, the package and the first page work, and what needs an extra says how to install it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pyrodrop.failed import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({sum(EXTRAS.values(), ())!r}))\n"


def blocked(code: str, *, kept: str = "-") -> subprocess.CompletedProcess[str]:
    """Run code in a process in which no package of an extra can be imported, but those of the extra `kept`."""
    freed = f"for name in {EXTRAS.get(kept, ())!r}: del sys.modules[name]\n"
    return subprocess.run(
        [sys.executable, "-P", "-c", f"{_BLOCKED}{freed}{code}"], capture_output=True, text=True, cwd=ROOT
    )


@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.more) for n in (0, 3))])
def test_the_readme_needs_no_extra(number: int) -> None:
    """But its third block, whose data are scikit-learn's; its scores are computed too."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)[number]
    assert "sklearn" not in code
    scores = (
        "import pyro.distributions as dist, torch; from pyrodrop import Prediction, metrics; f = torch.randn(5, 4, 2)\n"
        "metrics.regression_scores(Prediction(f, dist.Normal(f, 0.5).to_event(1)), torch.zeros(4, 2))\n"
    )
    done = blocked(scores + code)
    assert not done.returncode, done.stderr


NEEDS = (
    ("analysis", "import pyrodrop; pyrodrop.compare"),
    ("analysis", "from pyrodrop import to_arviz"),
    ("analysis", "from pyrodrop.analysis import gp"),
    ("analysis", "from pyrodrop.analysis.gp.exact import Exact"),
    ("analysis", "import pyrodrop.analysis.plots"),
    (
        "analysis",
        "from pathlib import Path; from pyrodrop.data import files; "
        "files.located = lambda *_: Path('a.h5'); files.numbers(next(iter(files.FILES)))",
    ),
    ("sklearn", "from pyrodrop.sklearn import NetworkRegressor"),
    ("cli", "from pyrodrop import cli"),
    (None, "import pyrodrop.no_such_file"),
)


def test_a_missing_extra_is_named_by_its_install_line() -> None:
    done = blocked(
        f"for _, code in {NEEDS!r}:\n"
        "    try: exec(code)\n"
        "    except ModuleNotFoundError as error: print(error)\n"
        "from pyrodrop.__main__ import main\n"
        "sys.argv[1:] = ['list']; print(main())\n"
    )
    *lines, status = done.stdout.splitlines()
    assert status == "1", done.stderr
    assert len(lines) == len(NEEDS)
    line = r"this part of pyrodrop needs \w+, which is not installed: pip install 'pyrodrop\[(\w+)\]'"
    for (extra, code), said in zip(NEEDS, lines, strict=True):
        match = re.fullmatch(line, said)
        assert (match and match[1]) == extra, (code, said)
    assert re.fullmatch(f"pyrodrop: {line}\n", done.stderr)


@pytest.mark.more
def test_the_command_line_needs_its_extra_alone() -> None:
    code = (
        "from pyrodrop.__main__ import main\nfor words in (['list'], ['show', 'uci/yacht'], ['cite', 'uci/yacht']):\n"
    )
    done = blocked(code + "    sys.argv[1:] = words; print(main())", kept="cli")
    assert done.stdout.splitlines()[-1] == "0", done.stderr + done.stdout


def test_the_table_is_that_of_the_project() -> None:
    """Every package of it is in its extra, or comes with one that is: ArviZ's three and GPyTorch's one."""
    brought = {"arviz_base": "arviz", "arviz_plots": "arviz", "linear_operator": "gpytorch", "h5py": "h5netcdf[h5py]"}
    brought["sklearn"] = "scikit-learn"
    core = " ".join(PROJECT["dependencies"])
    for extra, packages in EXTRAS.items():
        listed = PROJECT["optional-dependencies"][extra]
        for package in packages:
            name = brought.get(package, package)
            assert any(line.startswith(name) for line in listed), package
            assert not re.search(rf"\b{package}\b(?!-)", core), package
