"""The toys: rows, priors and best guide are those of the twenty small problems, and what their files say is true."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyrodrop import priors, zoo
from pyrodrop.analysis.lab.benchmarks import small_fits, small_pages
from pyrodrop.analysis.lab.benchmarks.small_problems import problem
from pyrodrop.analysis.zoo import references
from pyrodrop.zoo import entries

STORED = small_fits.read(small_pages.RESULTS)
NAMES = ("motorcycle", "snelson", "in-between")


def cells(name: str, method: str) -> Any:
    return STORED[name.replace("-", " ")][f"from gp: {method}"]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_small_problem(name: Any) -> None:
    [split], of = zoo.SOURCES[f"toys/{name}"].load(), problem(name.replace("-", " "))
    assert len(split.train) == STORED[name.replace("-", " ")]["constant"]["rows"]
    assert torch.equal(split.train.x, of.train.x)
    assert torch.equal(split.train.y, of.train.y)
    assert torch.equal(split.test.x, torch.cat([of.inside.x, of.away.x]))
    assert torch.equal(split.test.y, torch.cat([of.inside.y, of.away.y]))
    assert split.test.inputs is split.train.inputs
    assert split.test.targets is split.train.targets
    assert torch.equal(split.train.inputs.loc, split.train.x.mean(0))  # type: ignore[union-attr]


@pytest.mark.unshifted
@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_priors_and_noise_are_those_that_fit_the_data(name: Any) -> None:
    train = zoo.SOURCES[f"toys/{name}"].load()[0].train
    model, _ = zoo.entry(f"toys/{name}").build(train)
    fitted: Any = priors.from_gp(model, train).model
    scales = [fitted.priors[f"layers.{n}.{of}"].scale for n in (0, 1) for of in ("weight", "bias")]
    written = zoo.entry(f"toys/{name}").model.keywords["scales"]  # type: ignore[attr-defined]
    assert [*map(float, scales), float(fitted.likelihood.precision)] == pytest.approx(written, rel=2e-3)


@pytest.mark.unshifted
@pytest.mark.parametrize("name", NAMES)
def test_log_density_is_that_of_the_page(name: Any) -> None:
    """Another training: within a twentieth of a nat, and a fifth in the gap, where it is -3."""
    of, cell = problem(name.replace("-", " ")), cells(name, "exact last layer")
    rows = len(of.inside), len(of.away)
    expected = (rows[0] * cell["inside"] + rows[1] * cell["away"]) / sum(rows)
    found = references.scores(f"toys/{name}")["log_density"]
    assert found == pytest.approx(expected, abs=0.2 if name == "in-between" else 0.05)


def test_the_guide_is_the_nearest_of_six_and_no_answer_to_the_gap() -> None:
    def apart(method: str) -> float:
        pairs = [(cells(name, method), cells(name, "exact")) for name in NAMES]
        return sum(abs(a[part] - b[part]) for a, b in pairs for part in ("inside", "away"))

    assert min(small_fits.GUIDES, key=apart) == "exact last layer"
    gap = {
        method: cells("in-between", method)["away"]
        for method in ("exact last layer", "exact", "mean field", "MC dropout")
    }
    assert gap["exact last layer"] > gap["exact"] > 2 * gap["exact"] > max(gap["mean field"], gap["MC dropout"])
    coverage = references.scores("toys/in-between")["coverage_95"]
    assert f"{100 * coverage:.0f} % of the test rows" in " ".join((entries.__doc__ or "").split())
