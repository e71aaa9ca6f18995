"""The experiment of concrete dropout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyrodrop import zoo
from pyrodrop.analysis.lab.experiments import concrete
from pyrodrop.data import line


def test_concrete_trains_on_the_first_20_40_60_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the notebook's loop, whose ``old_batch`` stays 0; the loss is scaled to all rows."""
    seen = []

    def loss(model: Any, guide: Any, x: torch.Tensor, y: torch.Tensor, num_data: int) -> Any:
        seen.append((len(x), len(y), num_data, float(x[0])))
        return SimpleNamespace(loss=next(guide.parameters()).sum())

    monkeypatch.setattr(concrete, "elbo_terms", loss)
    monkeypatch.setattr("pyrodrop.zoo.entries.CONCRETE_WIDTH", 4)
    monkeypatch.setattr("pyrodrop.zoo.entries.CONCRETE_EPOCHS", {50: 2})
    data = line(50, 3)
    model, guide = zoo.entry("concrete/synthetic").build(data, 0)
    concrete.train(model, guide, (model, guide), data, torch.device("cpu"))
    assert seen == [(rows, rows, 50, float(data.x[0])) for rows in (20, 40, 50, 20, 40, 50)]
