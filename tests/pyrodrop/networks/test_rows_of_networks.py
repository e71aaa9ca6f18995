"""Networks whose examples have rows: every estimator's objective and every prediction is that of one weight per draw.

The oracle draws weights by ``posterior(name).sample()`` and calls `torch.func.functional_call` on the user's own network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.elbo import elbo_terms
from pyrodrop.reparam import STRATEGIES, reparameterize

pytestmark = pytest.mark.usefixtures("float64")
TAU, COPIES, PASSES, DRAWS = 2.0, 10, 200, 20_000


class Tokens(nn.Module):
    """Rows of an example through one layer, and their mean through another."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.out = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:  # [N, T, 3]
        return self.out(torch.tanh(self.row(x)).mean(1))


class TimeFirst(Tokens):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.row(x.transpose(0, 1))).mean(0))


class Merged(Tokens):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.row(x.flatten(0, 1))).reshape(*x.shape[:2], 4).mean(1))


class Own(nn.Module):
    """``x @ weight`` with [in, out], and a token that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.token = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(1, 1, 4))
        self.out = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(x @ self.weight + self.token).mean(1))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth, self.up = nn.Conv1d(3, 6, 2, groups=3), nn.ConvTranspose1d(6, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(torch.tanh(self.depth(x.mT))).mean((1, 2))[:, None]


class Words(nn.Module):
    """An embedding that is tied to the head, as of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x.argmax(2)))).mean(1)[:, :1]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tokens": Tokens,
    "time first": TimeFirst,
    "merged": Merged,
    "x @ W": Own,
    "depthwise": Depthwise,
    "words": Words,
}
GUIDES: dict[str, Callable[[Any], Any]] = {
    "Bernoulli": lambda m: guides.BernoulliDropout(m, by_rows(m)),
    "DropConnect": lambda m: guides.DropConnect(m, 0.4),
    "mean field": lambda m: guides.MeanField(m, 0.5),
    "low rank": lambda m: guides.LowRank(m, init_scale=0.5),
}


def by_rows(model: Any) -> dict[str, float]:
    """Rates that drop what the rows of an example go through alone: there it matters that rows share a mask."""
    return {name: 0.0 if name in ("token", "out.weight") else 0.4 for name in model.weight_sites()}


def made(network: str, guide: str) -> tuple[nn.Module, Any, Any, Tensor]:
    """A network, its model and guide, and one example ``[1, 4, 3]``."""
    torch.manual_seed(2)
    net = NETWORKS[network]().double()
    axes = {"weight": 0} if network == "x @ W" else None
    likelihood = likelihoods.Gaussian(TAU)
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihood, input_axes=axes).double()
    return net, model, GUIDES[guide](model).double(), torch.randn(1, 4, 3)


def oracle(net: nn.Module, guide: Any, x: Tensor) -> Tensor:
    """``[DRAWS]`` outputs at one example, each of a weight draw."""
    with torch.no_grad():
        drawn = {name: guide.posterior(name).expand((DRAWS,)).sample() for name in guide.sites}
        if "words.weight" in drawn:
            drawn["head.weight"] = drawn["words.weight"]
        return torch.vmap(lambda w: functional_call(net, w, (x,), tie_weights=False))(drawn)[:, 0, 0]


CELLS = [
    *((network, "Bernoulli", estimator) for network in NETWORKS for estimator in ("local", "per_example")),
    *((network, "mean field", "flipout") for network in NETWORKS),
    *((network, "mean field", "per_example") for network in ("tokens", "merged", "depthwise")),
    *((network, "DropConnect", "per_example") for network in ("tokens", "x @ W")),
    ("tokens", "low rank", "per_example"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("network", "guide", "estimator"), CELLS, ids=lambda name: name)
def test_the_objective_is_that_of_weight_draws(network: str, guide: str, estimator: str) -> None:
    """Mean of the estimator's negative log likelihood of copies of one example, within 4.5 standard errors. Its y is the
    mean output, so that it is the variance of the outputs that counts."""
    net, model, posterior, x = made(network, guide)
    f = oracle(net, posterior, x)
    want = TAU / 2 * (f - f.mean()) ** 2 - math.log(TAU / (2 * math.pi)) / 2
    pair = reparameterize(model, posterior, STRATEGIES[estimator])
    model.eval()
    rows, y = x.expand(COPIES, 4, 3), f.mean().expand(COPIES, 1)
    with torch.no_grad():
        nll = torch.stack([elbo_terms(*pair, rows, y).nll / COPIES for _ in range(PASSES)])
    se = math.sqrt(float(want.var()) / DRAWS + float(nll.var()) / PASSES)
    assert abs(float(nll.mean() - want.mean())) < 4.5 * se
    assert se < 0.15 * float(want.std()), "these draws would not see a wrong variance of the outputs"


@pytest.mark.few(2)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("guide", GUIDES)
def test_joint_predictions_are_those_of_weight_draws(network: str, guide: str) -> None:
    net, model, posterior, x = made(network, guide)
    want = oracle(net, posterior, x)
    fit = pyrodrop.Fit(model, posterior, None, torch.zeros(1, 3), {})
    f = fit.predict(x, DRAWS, seed=1).f[:, 0, 0]
    same_moments(f, want)


@pytest.mark.parametrize("network", NETWORKS)
def test_predictions_of_single_points_under_dropout_are_those_of_weight_draws(network: str) -> None:
    """joint=False: all rows of a point see its mask."""
    net, model, posterior, x = made(network, "Bernoulli")
    fit = pyrodrop.Fit(model, posterior, None, torch.zeros(1, 3), {})
    f = fit.predict(x.expand(2, 4, 3), DRAWS, seed=1, joint=False).f[..., 0]
    want = oracle(net, posterior, x)
    same_moments(f[:, 0], want)
    same_moments(f[:, 1], want)
    if network in ("tokens", "time first", "x @ W", "depthwise"):  # noise per point
        assert abs(float(f.T.corrcoef()[0, 1])) < 4.5 / math.sqrt(DRAWS)


def test_points_with_weights_of_any_posterior_alone() -> None:
    """joint=False where whole weights and biases are drawn within the map over draws: merged rows, Gaussian biases."""
    torch.manual_seed(2)
    net = Merged().double()
    model = models.from_module(
        net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(TAU), bias_prior=priors.Gaussian()
    ).double()
    for guide in (guides.MeanField(model, 0.5).double(), guides.LowRank(model, init_scale=0.5).double()):
        x = torch.randn(1, 4, 3)
        fit = pyrodrop.Fit(model, guide, None, torch.zeros(1, 3), {})
        same_moments(fit.predict(x, DRAWS, joint=False).f[:, 0, 0], oracle(net, guide, x))


def same_moments(f: Tensor, want: Tensor) -> None:
    """Mean and variance within 4.5 standard errors."""
    for a, b in ((f, want), ((f - f.mean()) ** 2, (want - want.mean()) ** 2)):
        se = math.sqrt(float(a.var()) / len(a) + float(b.var()) / len(b))
        assert abs(float(a.mean() - b.mean())) < 4.5 * se


def test_layers_are_dropped_by_channel_and_word() -> None:
    """What the guide draws for a depthwise convolution, a transposed one and an embedding: whole input units are 0."""
    torch.manual_seed(0)
    net = nn.ModuleDict(
        {"depth": nn.Conv2d(4, 8, 3, groups=4), "up": nn.ConvTranspose2d(4, 6, 2), "words": nn.Embedding(7, 3)}
    )
    net.forward = lambda x: x  # type: ignore[method-assign, assignment]
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    draw = {name: w != 0 for name, w in guides.BernoulliDropout(model, 0.5).draw(50).items()}
    channels = draw["depth.weight"].reshape(50, 4, 2 * 9)
    for units in (channels, draw["up.weight"].flatten(2), draw["words.weight"]):
        assert bool((units.all(2) | ~units.any(2)).all())
        per_unit = units.any(2).double()
        assert 0.3 < float(per_unit.mean()) < 0.7
        assert bool((per_unit.std(1) > 0).any()), "units are dropped on their own"


def test_a_class_token_is_refused_or_kept() -> None:
    model = made("x @ W", "mean field")[1]
    with pytest.raises(ValueError, match=r"'token' of shape \(1, 1, 4\) belongs to no layer.*drop_rate=\{'token': 0.0"):
        guides.BernoulliDropout(model, 0.4)
    own = models.from_module(Own().double(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match=r"'weight' of shape \(3, 4\) belongs to no layer.*input_axes=\{'weight': 0\}"):
        guides.BernoulliDropout(own, {"token": 0.0, "*": 0.4})
    with pytest.raises(ValueError, match="'token' of shape"):
        guides.GaussianDropout(model, "A", 0.5)
    guides.GaussianDropout(model, "B", 0.5)


def test_the_first_layer_is_the_one_that_sees_x() -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.first = nn.Linear(4, 1), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.relu(self.first(x)))

    model = models.from_module(Reversed(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    assert list(guides.BernoulliDropout(model, 0.5, mask_input=False).rates()) == ["out.weight"]
    assert list(guides.ConcreteDropout(model, mask_input=False).rates()) == ["out.weight"]
