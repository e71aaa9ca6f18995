"""The experiment of simulation-based calibration, and the result that is stored of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pyrodrop import cli
from pyrodrop.analysis.lab import RESULTS
from pyrodrop.analysis.lab.experiments import sbc

REFERENCE = RESULTS / "sbc.json"


@pytest.mark.more
def test_a_short_run_writes_its_files(tmp_path: Path) -> None:
    words = ["run", "sbc", "--count", "60", "--steps", "5", "--posteriors", "exact", "mc-dropout", "--quiet"]
    assert cli.main([*words, "--out", str(tmp_path)]) in (0, None)
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert names == {"exact.json", "mc-dropout.json", "results.json", "run.json", "figure.png"}
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["posteriors"]) == ["exact", "mc-dropout"]
    assert all(sum(counts) == 60 for counts in results["posteriors"]["exact"]["histogram"].values())
    fewer = [word for word in words if word != "mc-dropout"]
    assert cli.main([*fewer, "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "results.json").read_text())["posteriors"] == results["posteriors"]


def test_the_closed_form_is_the_posterior() -> None:
    """Moments of the draws against those of 200,000 prior draws that are weighted by the likelihood of a little data."""
    generator = torch.Generator().manual_seed(0)
    x, y = 0.2 * torch.randn(2, sbc.INPUTS, generator=generator), torch.tensor([[0.3], [-0.2]])
    prior = torch.randn(200_000, sbc.INPUTS, generator=generator) / sbc.INPUTS**0.5
    weights = torch.softmax(-0.5 * sbc.PRECISION * (y.T - prior @ x.T).square().sum(1), 0)[:, None]
    drawn = sbc.in_closed_form(1.0)(x, y, 200_000, 1)["weight"][:, 0].float()
    f, g = drawn @ x.T, prior @ x.T
    torch.testing.assert_close(f.mean(0), (weights * g).sum(0), atol=3e-3, rtol=0)
    torch.testing.assert_close(f.var(0), (weights * g**2).sum(0) - (weights * g).sum(0) ** 2, atol=0, rtol=0.03)


def test_the_reference_has_every_posterior() -> None:
    found = json.loads(REFERENCE.read_text())
    assert list(found["posteriors"]) == [*sbc.CLOSED_FORM, *sbc.GUIDES]
    assert found["posteriors"]["exact"]["p_value"] > 0.05
    assert all("narrow" in words for name, words in found["posteriors"]["halved"]["problems"].items() if name[0] == "f")
    assert found["settings"]["count"] == 1000
    assert found["settings"]["steps"] == 2000
    assert all(own["failed"] == 0 for own in found["posteriors"].values())
    assert all(found["posteriors"][name]["settings"]["starts"] == "new" for name in sbc.GUIDES)
    for own in found["posteriors"].values():  # every quantity is another one: ranks of 3 f[1] are those of f[1]
        assert len({tuple(counts) for counts in own["histogram"].values()}) == len(own["histogram"]) == 4


def test_the_linear_control_has_no_point_twice() -> None:
    """Of a linear f, any two points that are multiples of each other give one quantity."""
    _, points = sbc.inputs(linear=True)
    assert all(torch.linalg.matrix_rank(points[list(pair)]) == 2 for pair in ((0, 1), (0, 2), (1, 2)))
    _, networks = sbc.inputs(linear=False)
    assert torch.equal(networks[2], 3 * networks[1])
