"""The contract of networks sees faults: each is put in by hand, and its cell is wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides
from pyrodrop.analysis.lab.networks import THIN, Bench, Case, Cell, Refused, load
from pyrodrop.analysis.lab.networks.__main__ import main

MLP = Case(
    network=lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)),
    x=lambda: torch.randn(6, 3),
)
DRAWS = dataclasses.replace(THIN, predict=4000)


def kind(cell: Cell, case: Case = MLP) -> tuple[str, str]:
    result = Bench(case, DRAWS).check(cell)
    return result.kind, result.note


@pytest.mark.parametrize("factor", [1.15, 1.0])
def test_a_wrong_variance_is_seen(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    def posterior(self: Any, name: str) -> Any:
        loc = self.loc[name]
        return dist.Normal(loc, factor * torch.exp(self.log_variance[name] / 2)).to_event(loc.dim())

    monkeypatch.setattr(guides.MeanField, "posterior", posterior)
    found, note = kind(Cell("MeanField", "joint"))
    assert (found, "variance" in note) == (("wrong", True) if factor > 1 else ("right", False))


def test_draws_that_are_no_functions_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise by point has the right mean and variance and no covariance between points."""
    plain = pyrodrop.Fit.predict

    def shuffled(*args: Any, **options: Any) -> Any:
        prediction = plain(*args, **options)
        points = [f[torch.randperm(len(f))] for f in prediction.f.unbind(1)]
        return dataclasses.replace(prediction, f=torch.stack(points, 1))

    monkeypatch.setattr(pyrodrop.Fit, "predict", shuffled)
    found, note = kind(Cell("MeanField", "joint"))
    assert found == "wrong"
    assert note.startswith("covariance")


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrodrop.analysis.lab.networks.posteriors.MeanField.guide", _steeper)
    found, note = kind(Cell("MeanField", "loss", "shared", "traced"))
    assert found == "wrong"
    assert note.startswith("gradient is")


def _steeper(self: Any, model: Any, case: Case) -> Any:
    """A guide whose values are right and whose gradient with respect to the means is twice what it should be."""
    guide = guides.MeanField(model, init_scale=0.2)

    class Steeper(guides.MeanField):
        def posterior(self, name: str) -> Any:
            loc = 2 * self.loc[name] - self.loc[name].detach()
            return dist.Normal(loc, torch.exp(self.log_variance[name] / 2)).to_event(loc.dim())

    guide.__class__ = Steeper
    return guide


def test_a_refusal_must_be_stated_and_kept() -> None:
    cell = Cell("MeanField", "joint")
    assert kind(cell, dataclasses.replace(MLP, refused=(Refused("too small"),)))[0] == "wrong"
    wide = dataclasses.replace(MLP, x=lambda: torch.randn(6, 3), options={"bias_prior": {"no.*": None}})
    stated = dataclasses.replace(wide, refused=(Refused("bias_prior"),))
    found, note = kind(cell, wide)
    assert found == "wrong"
    assert "which its file does not list" in note
    assert kind(cell, stated)[0] == "refused"


def test_an_error_of_torch_is_a_defect() -> None:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                raise ValueError("not of this package")
            return super().forward(x)

    found, note = kind(Cell("Point", "joint"), dataclasses.replace(MLP, network=lambda: Broken(3, 2)))
    assert found == "wrong"
    assert "not of this package" in note


def test_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command takes a file, checks its network and prints the table."""
    file = tmp_path / "mine.py"
    file.write_text(
        '"""A line."""\nimport torch\nfrom pyrodrop.analysis.lab.networks import Case\n'
        "CASE = Case(network=lambda: torch.nn.Linear(2, 1), x=lambda: torch.randn(4, 2))\n"
    )
    assert load(file)["mine"].about == "A line."
    assert main([str(file), "--cells", "few"]) == 0
    assert "6 cells of 1 networks: 6 right, 0 fallback, 0 other, 0 refused, 0 wrong" in capsys.readouterr().out
    file.write_text("CASE = 3\n")
    with pytest.raises(ValueError, match="CASE"):
        load(file)
