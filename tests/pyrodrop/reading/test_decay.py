"""The prior that a weight decay is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pyrodrop
from pyrodrop import likelihoods, priors


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 2))


def sds(net: nn.Module, x: Tensor | None = None, **settings: Any) -> dict[str, float]:
    """The prior sd by layer."""
    settings = {"likelihood": likelihoods.Categorical(), "num_data": 100} | settings
    reading = pyrodrop.read(net, torch.randn(4, 3) if x is None else x, **settings)
    return {name: prior.scale for name, prior in reading.model.priors.items()}  # type: ignore[attr-defined]


DROPPED = 1 / math.sqrt(0.8)


@pytest.mark.parametrize(
    ("decay", "want"),
    [
        (1e-2, {"0.weight": 1.0, "0.bias": 1.0, "3.weight": DROPPED, "3.bias": 1.0}),
        ({"*.bias": 0.0, "0.*": 4e-2, "*": 1e-2}, {"0.weight": 0.5, "3.weight": DROPPED}),  # 0 is no prior
    ],
    ids=["a number", "patterns of names"],
)
def test_the_prior_of_a_decay(decay: Any, want: dict[str, float]) -> None:
    assert sds(network(), weight_decay=decay) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_decay": 1e-2, "loss": "mse"}, "belongs to likelihoods.Gaussian"),
        ({"prior": priors.Gaussian(), "loss": "mse"}, "loss belongs to weight_decay"),
    ],
)
def test_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sds(network(), **settings)


def test_tokens_count_one_by_one_in_a_mean_over_them() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.dropout1d(self.words(x).mT, 0.2, self.training).mT)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    by_name = sds(Tagger(), torch.randint(9, (4, 5)), weight_decay=1e-2)
    assert by_name["words.weight"] == pytest.approx(1 / math.sqrt(100 * 5 * 1e-2))
    assert by_name["head.weight"] == pytest.approx(1 / math.sqrt(100 * 5 * 1e-2 * 0.8))


def test_a_classifier_needs_no_precision() -> None:
    """lambda of Gal's loss for a weight behind nn.Dropout is keep^2 decay / 2."""
    prior = priors.Gaussian(sds(network(), weight_decay=1e-2)["3.weight"])
    assert prior.weight_decay(drop_rate=0.2, num_data=100) == pytest.approx(0.8**2 * 1e-2 / 2)
