"""docs/what-others-compute: the page shows the scripts and what they printed; scripts print it again where they can run."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pyro.distributions import Normal

from pyrodrop import priors
from pyrodrop.analysis.benchmarks import what_others_compute as others
from pyrodrop.divergences import divergence

SCRIPTS = others.scripts()
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def by_name(path: Path) -> str:
    return path.stem


def test_the_page_is_up_to_date() -> None:
    text = others.PAGE.read_text(encoding="utf-8")
    assert SCRIPTS
    assert others.page(text, others.generated(others.stored())) == text


def test_what_the_calls_are_is_counted() -> None:
    kinds = [others.title(script)[1] for script in SCRIPTS]
    counts = [sum(kind.startswith(start) for kind in kinds) for start in ("documented", "default", "neither")]
    ours = sum(kind.endswith(", weights of 1") for kind in kinds)
    assert (
        f"Of the {sum(counts)} rows {counts[0]} are documented and {counts[1]} are defaults, of which {ours} at weights "
        f"that the script sets to 1; {counts[2]} are neither"
    ) in re.sub(r"\s+", " ", others.PAGE.read_text(encoding="utf-8"))
    assert sum(counts) == len(SCRIPTS)


def test_pages_are_of_the_same_versions() -> None:
    """Those that the scripts pin, in the table of packages of the other page."""
    pinned = dict(others.requirement(script) for script in SCRIPTS)
    page = (others.DOCS / "what-mc-dropout-needs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w-]+) (\d[\d.]*) \|", page, flags=re.MULTILINE)
    shared = {name: version for name, version in ((name.lower(), version) for name, version in rows) if name in pinned}
    assert len(shared) == 6
    assert shared == {name: pinned[name] for name in shared}


def test_stored_outputs_are_of_these_scripts() -> None:
    stored = others.stored()
    assert set(stored) == {script.stem for script in SCRIPTS}
    for script in SCRIPTS:
        row = stored[script.stem]
        assert (row["package"], row["version"]) == others.requirement(script)
        assert row["computed"] == others.line(row["printed"], others.COMPUTED)
        assert row["expected"] == others.line(row["printed"], others.EXPECTED)
        assert row["computed"] != row["expected"]


def test_the_versions_of_python_are_those_of_the_runs() -> None:
    runs = {row["package"]: row["python"] for row in others.stored().values()}
    most = max(runs.values(), key=list(runs.values()).count)
    (other,) = (name for name, python in runs.items() if python != most)
    assert other == "blitz-bayesian-pytorch"
    assert f"the runs were made with Python {most}, that of BLiTZ with {runs[other]}." in re.sub(
        r"\s+", " ", others.PAGE.read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=by_name)
def test_scripts_are_short_and_without_our_code(script: Path) -> None:
    code = script.read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 20
    for node in ast.walk(ast.parse(code)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.split(".")[0] == "pyrodrop" for name in names)


RHO = float(F.softplus(torch.tensor(-3.0)))
FACTORS = {  # by script: mean, standard deviation and number of weights; standard deviation of the prior; values per weight
    "bayesian-torch-mean": (0.1, RHO, 620, 1.0, 1),
    "bayesian-torch-prior": (0.1, RHO, 600, 2.0, 600),
    "torch-uncertainty-half": (0.0, 1.0, 400, 1.0, 1),
    "torch-uncertainty-layers": (1.0, float(F.softplus(torch.tensor(-1.0))), 1200, 1.0, 1),
    "torchbnn-mean": (0.1, math.exp(-3), 620, 1.0, 1),
    "torchbnn-last-layer": (0.1, math.exp(-3), 620, 1.0, 1),
    "lightning-uq-box-kl": (0.1, RHO, 641, 1.0, 1),
    "blitz-floor": (1.0, RHO, 400, 0.1, 1),
    "probly-elbo": (0.1, 0.05, 60, 1.0, 1000),
}


@pytest.mark.parametrize("name", FACTORS)
def test_ours_is_what_it_should_be(name: str) -> None:
    mean, scale, count, prior_scale, divisor = FACTORS[name]
    q = Normal(torch.full((count,), mean).double(), torch.tensor(scale).double()).to_event(1)
    ours = divergence(q, priors.Gaussian(prior_scale).expand(count, like=q.mean), q.rsample()) / divisor
    expected = others.stored()[name]["expected"]
    digits = len(expected.partition(".")[2])
    assert float(ours) == pytest.approx(float(expected), abs=0.51 * 10**-digits, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=by_name)
def test_scripts_print_what_is_stored(script: Path) -> None:
    """Where the pinned package is installed; numbers may differ in the last digit, or by the chance of other generators."""
    if reason := others.lacking(script):
        pytest.skip(reason)
    try:
        printed = others.printed(script)
    except RuntimeError as error:
        if "ImportError" in str(error) or "ModuleNotFoundError" in str(error):
            pytest.skip(f"{script.name} does not import here: {str(error).splitlines()[-1]}")
        raise
    stored = others.stored()[script.stem]["printed"]
    assert [NUMBER.sub("#", each) for each in printed] == [NUMBER.sub("#", each) for each in stored]
    for new, old in zip(printed, stored, strict=True):
        found, wanted = ([float(n) for n in NUMBER.findall(each)] for each in (new, old))
        assert found == pytest.approx(wanted, rel=0.02, abs=0.06)
