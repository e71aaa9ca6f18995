"""Error by width: cells that are kept, and what they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pyrodrop import zoo
from pyrodrop.data import mnist
from pyrodrop.zoo.entries import METHODS
from pyrodrop.zoo.networks import digits, late

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


def test_methods_start_from_the_published_rates(data_folder: Path) -> None:
    """alpha = rate / (1 - rate): .25 of the inputs and 1 of hidden units; learned ones start from 3 / 7."""
    data = mnist().train.first(10)
    hidden = {}
    for name, method in METHODS.items():
        guide = method.guide(digits(data, width=8, prior=method.prior))
        hidden[name] = [float(guide.rates().get(f"layers.{i}.weight", 0.0)) for i in range(4)]
    assert hidden["none"] == [0, 0, 0, 0]
    assert hidden["binary"] == pytest.approx([0.2, 0.5, 0.5, 0.5])
    assert hidden["gaussian-a"] == hidden["gaussian-b"] == pytest.approx([0.25, 1, 1, 1])
    assert hidden["variational-a"] == hidden["variational-b"] == pytest.approx([3 / 7] * 4)


def test_the_rate_falls_over_the_second_half() -> None:
    assert [late(step, steps=4) for step in (0, 2, 3, 4)] == [1, 1, 0.5, 0]
    data, entry = torch.zeros(1000), zoo.entry("kingma-fig1a/none")
    assert entry.settings(data, epochs=3)["steps"] == 30  # type: ignore[arg-type]
