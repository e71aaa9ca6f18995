"""docs/what-others-compute: the page links the scripts and has what they printed; they print it again where they can run."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pyro.distributions import Normal

from pyrodrop import priors
from pyrodrop.analysis.lab import generated
from pyrodrop.analysis.lab.benchmarks import what_others_compute as others
from pyrodrop.divergences import divergence

SCRIPTS = others.scripts()
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def by_name(path: Path) -> str:
    return path.stem


def test_the_page_is_up_to_date() -> None:
    text = others.PAGE.read_text(encoding="utf-8")
    assert SCRIPTS
    assert generated.marked("table", others.table(others.stored())) in text
    sections = dict(re.findall(r"^## ([a-z-]+)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert set(sections) == {script.stem for script in SCRIPTS}
    assert all(f"](what-others-compute/{script.name})" in sections[script.stem] for script in SCRIPTS)


def test_stored_outputs_are_of_these_scripts() -> None:
    stored = others.stored()
    assert set(stored) == {script.stem for script in SCRIPTS}
    for script in SCRIPTS:
        row = stored[script.stem]
        assert (row["package"], row["version"]) == others.requirement(script)
        assert row["computed"] == others.line(row["printed"], others.COMPUTED)
        assert row["expected"] == others.line(row["printed"], others.EXPECTED)
        assert row["computed"] != row["expected"]


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
        got, wanted = ([float(n) for n in NUMBER.findall(each)] for each in (new, old))
        assert got == pytest.approx(wanted, rel=0.02, abs=0.06)


def test_the_table_of_last_layers_has_the_means_of_its_rows() -> None:
    folder = others.PAGE.parent / "last-layers"
    with (folder / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    page = (others.PAGE.parent / "choosing.md").read_text(encoding="utf-8")
    header, _, *lines = [
        line.strip("| ").split(" | ")
        for line in re.findall(r"^\| .*core-seconds \|\n(?:\|.*\n)+", page, flags=re.MULTILINE)[0].splitlines()
    ]
    assert {row["problem"] for row in rows} == set(header[1:-1])
    assert {row["method"].replace("VBLL diagonal, on", "VBLL dense, on") for row in rows} == {
        line[0].replace("VBLL, on", "VBLL dense, on") for line in lines
    }
    for name, *cells in lines:
        own = [
            row
            for row in rows
            if row["method"] == name or (name == "VBLL, on the network" and "on the network" in row["method"])
        ]
        for problem, cell in zip(header[1:-1], cells, strict=False):
            values = [float(row["log_density"]) for row in own if row["problem"] == problem]
            assert float(cell) == pytest.approx(sum(values) / len(values), abs=0.0051)
        assert float(cells[-1]) == pytest.approx(sum(float(row["seconds"]) for row in own) / len(own), abs=0.051)
