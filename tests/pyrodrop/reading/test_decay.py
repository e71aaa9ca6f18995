"""The prior that a weight decay is: the optimum of the penalised loss is that of the log joint density."""

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


def trained_mode(net: nn.Module, x: Tensor, y: Tensor, criterion: Any, optimizer: Any) -> Tensor:
    """The weights at which the optimizer's penalised loss is stationary, by gradient descent without dropout noise."""
    for _ in range(4000):
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
    return torch.cat([value.detach().flatten() for value in net.parameters()])


class Line(nn.Module):
    """A linear classifier or regression whose only dropout almost never drops: the stationary point is that without it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.map = nn.Linear(3, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(F.dropout(x, 1e-9, self.training))  # type: ignore[no-any-return]


CASES: dict[str, Any] = {
    "cross entropy": (nn.CrossEntropyLoss(), likelihoods.Categorical(), None, lambda n: torch.randint(3, (n,)), 3),
    "mse": (nn.MSELoss(), likelihoods.Gaussian(precision=2.5), None, lambda n: torch.randn(n, 2).double(), 2),
    "gaussian nll": (
        lambda f, y: F.gaussian_nll_loss(f, y, torch.full_like(y, 0.4)),
        likelihoods.Gaussian(precision=2.5),
        "mean_nll",
        lambda n: torch.randn(n, 2).double(),
        2,
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_log_joint_is_stationary_where_the_training_ends(case: str) -> None:
    criterion, likelihood, loss, targets, outputs = CASES[case]
    torch.manual_seed(0)
    x, net = torch.randn(40, 3).double(), Line(outputs).double()
    y = targets(40)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, weight_decay=0.05)
    net.eval()
    trained_mode(net, x, y, criterion, optimizer)
    net.train()
    reading = pyrodrop.read(net, x, likelihood=likelihood, weight_decay=0.05, num_data=40, loss=loss)
    model = reading.model
    weights = {n: reading.guide.loc[n].detach().requires_grad_() for n in ("map.weight", "map.bias")}  # type: ignore[attr-defined]
    likelihood_of = model.likelihood(x @ weights["map.weight"].T + weights["map.bias"], model.targets)  # type: ignore[attr-defined]
    log_likelihood = likelihood_of.log_prob(y).sum()
    log_prior = sum(model.priors[n].expand(*w.shape, like=w).log_prob(w) for n, w in weights.items())  # type: ignore[attr-defined]
    slope = torch.autograd.grad(log_likelihood + log_prior, list(weights.values()), retain_graph=True)
    alone = torch.autograd.grad(log_likelihood, list(weights.values()))
    assert float(alone[0].abs().max()) > 0.1  # the prior matters
    assert max(float(value.abs().max()) for value in slope) < 1e-6


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
    prior = priors.Gaussian.from_weight_decay(0.8**2 * 1e-2 / 2, drop_rate=0.2, num_data=100)
    assert prior.scale == pytest.approx(sds(network(), weight_decay=1e-2)["3.weight"])
