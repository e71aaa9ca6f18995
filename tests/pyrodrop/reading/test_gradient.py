"""The gradient of the ELBO of a reading is that of the loss that trained the network, by hand, under the same masks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from torch import Tensor, nn

import pyrodrop
from pyrodrop import likelihoods
from pyrodrop.networks import dropouts
from pyrodrop.training.elbo import elbo_terms

N, DECAY = 700, 3e-3
Hand = Callable[[dict[str, Tensor], Tensor, dict[str, Tensor]], Tensor]


class Images(nn.Module):
    """Channel dropout before a convolution and before a flattening, BatchNorm, element dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.norm, self.c2 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3)
        self.f1, self.f2 = nn.Linear(6 * 4, 5), nn.Linear(5, 3)
        self.d1, self.d2, self.d3 = nn.Dropout2d(0.2), nn.Dropout2d(0.3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.d1(torch.relu(self.norm(self.c1(x))))
        x = self.d2(F.max_pool2d(torch.relu(self.c2(x)), 2))
        return self.f2(self.d3(torch.relu(self.f1(x.flatten(1)))))  # type: ignore[no-any-return]


def images_by_hand(w: dict[str, Tensor], x: Tensor, z: dict[str, Tensor]) -> Tensor:
    mean, variance = (torch.linspace(0.1, 1.0, 4, dtype=x.dtype)[:, None, None] for _ in range(2))
    x = F.conv2d(x, w["c1.weight"], w["c1.bias"])
    x = (x - mean) / (variance + 1e-5).sqrt() * w["norm.weight"][:, None, None] + w["norm.bias"][:, None, None]
    x = x.clamp_min(0) * z["c2.weight"][:, None, None] / 0.8
    x = F.max_pool2d(F.conv2d(x, w["c2.weight"], w["c2.bias"]).clamp_min(0), 2) * z["f1.weight"][:, None, None] / 0.7
    x = (x.reshape(len(x), -1) @ w["f1.weight"].T + w["f1.bias"]).clamp_min(0) * z["f2.weight"] / 0.5
    return x @ w["f2.weight"].T + w["f2.bias"]


class Tokens(nn.Module):
    """A mask that differs between the tokens of an example, which no weight carries."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(11, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.mix(F.dropout(self.words(x), 0.4, self.training))
        return self.head(torch.relu(h).mean(1))  # type: ignore[no-any-return]


def tokens_by_hand(w: dict[str, Tensor], x: Tensor, z: dict[str, Tensor]) -> Tensor:
    h = (w["words.weight"][x] * z["noise"] / 0.6) @ w["mix.weight"].T + w["mix.bias"]
    return h.clamp_min(0).mean(1) @ w["head.weight"].T + w["head.bias"]


def images() -> tuple[nn.Module, Tensor, Hand]:
    net = Images().double()
    for buffer in (net.norm.running_mean, net.norm.running_var):
        assert buffer is not None
        buffer.copy_(torch.linspace(0.1, 1.0, 4, dtype=torch.float64))
    return net, torch.randn(8, 1, 8, 8).double(), images_by_hand


def tokens() -> tuple[nn.Module, Tensor, Hand]:
    return Tokens().double(), torch.randint(11, (8, 5)), tokens_by_hand


@pytest.mark.parametrize("make", [images, tokens])
@pytest.mark.parametrize("loss", ["mean_nll", "sum_nll", "mse"])
def test_gradient_is_that_of_the_loss_with_weight_decay(
    make: Callable[[], tuple[nn.Module, Tensor, Hand]], loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net, x, by_hand = make()
    outputs = next(reversed(list(net.parameters()))).numel()  # the last bias
    y = torch.randn(8, outputs).double() if loss == "mse" else torch.randint(outputs, (8,))
    likelihood = likelihoods.Gaussian(precision=3.0) if loss == "mse" else likelihoods.Categorical()
    reading = pyrodrop.read(
        net,
        x,
        likelihood=likelihood,
        weight_decay=DECAY,
        num_data=N,
        loss=loss,  # type: ignore[arg-type]
    )

    drawn: dict[str, Tensor] = {}

    def keep_noise(keep: Tensor, shape: torch.Size) -> Tensor:
        drawn["noise"] = torch.bernoulli(keep.expand(shape))
        return drawn["noise"]

    monkeypatch.setattr(dropouts, "coins", keep_noise)
    torch.manual_seed(1)
    with poutine.trace() as guide_trace:
        reading.guide(x, y)
    nodes = guide_trace.trace.nodes
    masks = {name: nodes[name]["value"].mask for name in nodes if nodes[name]["type"] == "sample"}
    torch.manual_seed(1)
    terms = elbo_terms(reading.model, reading.guide, x, y, num_data=N)
    locs = {site: reading.guide.loc[site] for site in reading.guide.sites}
    ours = torch.autograd.grad(sum(terms), list(locs.values()))

    weights = {name: value.detach().clone().requires_grad_() for name, value in net.named_parameters()}
    penalty = DECAY / 2 * sum((value**2).sum() for value in weights.values())
    f = by_hand(weights, x, masks | drawn)
    if loss == "mse":
        scale, data_loss = 3.0 * N * outputs / 2, F.mse_loss(f, y)
    elif loss == "mean_nll":
        scale, data_loss = float(N), F.cross_entropy(f, y)
    else:  # the sum over the data set, of which these rows are a sample
        scale, data_loss = 1.0, N * F.cross_entropy(f, y)
    theirs = torch.autograd.grad(scale * (data_loss + penalty), list(weights.values()))
    by_name = dict(zip(weights, theirs, strict=True))
    rates = reading.guide.rates()
    assert rates or "noise" in drawn
    for site, gradient in zip(locs, ours, strict=True):
        keep = 1 - rates.get(site, 0.0)  # W = keep M
        torch.testing.assert_close(gradient, keep * by_name[site], rtol=1e-6, atol=1e-6)
