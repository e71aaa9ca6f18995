"""Draws of functions by one noise a draw: the functions of the weights that they stand for, computed once where they can."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.prediction.draws import Cost, Draws, drawn

pytestmark = pytest.mark.usefixtures("float64")
CPU = torch.device("cpu")


class Odd(nn.Module):
    """A network of every kind of use: a tied weight, a product by hand, one that is no plain linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.by_hand, self.last = nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.tied(torch.tanh(self.tied(x))))
        h = h @ self.by_hand.weight.T + (self.by_hand.weight**2).sum(1)
        return torch.einsum("ni,oi->no", h, self.last.weight) + self.last.bias


def conv_net() -> nn.Module:
    inner = nn.Conv2d(4, 6, 3, padding=1, groups=2, padding_mode="circular")
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), inner, nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 2)
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)), (3,)),
    "conv": (conv_net, (2, 6, 6)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)), (3, 5)),
    "odd": (Odd, (3,)),
}
GUIDES: dict[str, Callable[[Any], Any]] = {
    "bernoulli": lambda m: guides.BernoulliDropout(m, 0.3),
    "hidden": lambda m: guides.BernoulliDropout(m, 0.5, mask_input=False),
    "theta": lambda m: guides.BernoulliDropout(m, 0.3, theta=0.2),
    "concrete": lambda m: guides.ConcreteDropout(m, drop_rate=0.3),
    "concrete_input": lambda m: guides.ConcreteDropout(m, "input", drop_rate=0.3),
    "type_a": lambda m: guides.GaussianDropout(m, "A", 0.4),
    "type_a_input": lambda m: guides.VariationalDropout(m, "A", "input", drop_rate=0.3),
    "log_normal": lambda m: guides.LogNormalDropout(m, -0.5),
    "type_b": lambda m: guides.GaussianDropout(m, "B", 0.4),
    "connect": lambda m: guides.DropConnect(m, 0.3),
    "mean_field": lambda m: guides.MeanField(m, 0.3),
    "low_rank": lambda m: guides.LowRank(m, init_scale=0.2),
    "ensemble": lambda m: guides.Ensemble(m, lambda n: guides.BernoulliDropout(n, 0.3), 3),
    "point": guides.Point,
}


def make(net: str, guide: str, *, bias_prior: Any = None) -> tuple[Any, Any]:
    build, _ = NETS[net]
    model = models.from_module(
        build(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0), bias_prior=bias_prior
    )
    return model.double(), GUIDES[guide](model).double()


def fitted(model: Any, guide: Any) -> pyrodrop.Fit:
    return pyrodrop.Fit(model, guide, None, torch.zeros(1, 3), {})


def some(net: str, n: int) -> Tensor:
    return torch.randn(n, *NETS[net][1])


def drawn_weights(block: Draws) -> dict[str, Tensor]:
    """The weights ``[T, ...]`` that a block's noise stands for, by the definition W = M diag(s)."""
    weights = {name: value.expand(block.num_draws, *value.shape) for name, value in block.fixed.items()}
    for name, noise in block.noise.items():
        if name not in block.distributions:
            weights[name] = noise
            continue
        q = block.distributions[name]
        if q.units.groups > 1:  # [groups, outputs of a group, inputs of a group, ...]
            split = q.loc.unflatten(0, (q.units.groups, -1))
            weights[name] = (split * noise.reshape(len(noise), q.units.groups, 1, -1, 1, 1)).flatten(1, 2)
        else:
            weights[name] = q.loc * noise.reshape(block.num_draws, 1, -1, *(1,) * (q.loc.dim() - 2))
    return weights


@pytest.mark.few(10)
@pytest.mark.parametrize("points", [2, 9], ids=["wide", "many"])  # noise on the inputs, noise on the weights
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("guide", ["bernoulli", "hidden", "concrete_input", "type_a", "mean_field", "connect", "point"])
def test_functions_are_those_of_the_weights(net: str, guide: str, points: int) -> None:
    """For one and the same noise: the network run with each weight M diag(s) in turn."""
    model, posterior = make(net, guide, bias_prior=priors.Gaussian() if guide in ("mean_field", "type_a") else None)
    x, T = some(net, points), 4
    with torch.no_grad():
        (block,) = drawn(model, posterior, x, T, CPU)
        got = block(x)
        weights = drawn_weights(block)
        want = torch.stack([model.outputs({n: w[t] for n, w in weights.items()}, x) for t in range(T)])
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(block(x, slice(1, 3)), want[1:3])
    assert bool((got[0] != got[1]).any()) == (guide != "point")


def test_the_atoms_and_their_probabilities() -> None:
    """Two masked hidden layers of three units: each draw is one of the 2^6 functions, as often as its mask is likely."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 1))
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)).double()
    guide = guides.BernoulliDropout(model, {"2.*": 0.3, "*": 0.6}, mask_input=False).double()
    x, T = torch.randn(4, 2), 20_000
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)))
    with torch.no_grad():
        w, b = guide.loc, model.free
        hidden = torch.tanh(x @ w["0.weight"].T + b["0.bias"]) * masks[:, None, :3]
        hidden = torch.sigmoid(hidden @ w["2.weight"].T + b["2.bias"]) * masks[:, None, 3:]
        atoms = (hidden @ w["4.weight"].T + b["4.bias"])[..., 0]
    keep = torch.tensor([0.7] * 3 + [0.4] * 3)
    likely = torch.where(masks > 0, keep, 1 - keep).prod(1)
    f = fitted(model, guide).predict(x, T).f[..., 0]
    atoms, same = (
        (1e9 * atoms).round().unique(dim=0, return_inverse=True)
    )  # all functions of a closed second layer are one
    assert len(atoms) == 57
    likely = torch.zeros(57).index_add_(0, same, likely)
    distance, which = torch.cdist(1e9 * f, atoms, p=1).min(1)
    assert float(distance.max()) < 1e2
    counts = torch.bincount(which, minlength=57)
    chi2 = float(((counts - T * likely) ** 2 / (T * likely)).sum())
    assert abs(chi2 - 56) < 4 * math.sqrt(2 * 56)


@pytest.mark.parametrize("net", ["mlp", "conv"])
def test_layers_before_the_first_noise_run_once(net: str) -> None:
    """By counting multiplications: the first layer's do not grow with the number of draws."""
    model, guide = make(net, "hidden")
    x = some(net, 2)
    model.properties(x)  # runs the network, once for every shape of x

    def flops(draws: int) -> int:
        (block,) = drawn(model, guide, x, draws, CPU)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            block(x)
        return counter.get_total_flops()

    first = 2 * 2 * (3 * 5 if net == "mlp" else 4 * 2 * 9 * 16)  # two points, multiply and add
    alone = flops(1) - first
    assert flops(40) == first + 40 * alone
    point, _ = make(net, "hidden")
    (block,) = drawn(point, guides.Point(point).double(), x, 40, CPU)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        assert block(x).shape == (40, 2, 2)
    assert counter.get_total_flops() == first + alone


def tiles_seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the outputs of all tiles from now on."""
    tiles, call = list[tuple[int, ...]](), Draws.__call__

    def spied(block: Draws, x: Any, rows: slice = slice(None)) -> Tensor:
        outputs_of_tile = call(block, x, rows)
        tiles.append(tuple(outputs_of_tile.shape))
        return outputs_of_tile

    monkeypatch.setattr(Draws, "__call__", spied)
    return tiles


def test_a_prediction_takes_the_tiles_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 t n + 6 n of at most 1000 elements: of 6 draws at 8 points, 3 draws at 2 points at a time."""
    model = models.MLP([3, 50, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)).double()
    fit = fitted(model, guides.MeanField(model, 0.3).double())
    monkeypatch.setattr("pyrodrop.prediction.draws._TILE_BYTES", {"cpu": 8 * 1000})
    tiles = tiles_seen(monkeypatch)
    fit.predict(torch.randn(8, 3), 6)
    assert tiles == [(3, 2, 1)] * 8


def cost(before: int = 1, after: int = 1) -> Cost:
    cost = Cost([])
    cost.before, cost.after = before, after
    return cost


def test_the_sizes_of_a_points_tensors() -> None:
    """5 units before the noise of the second layer, whose inputs they are; and 4 units after it."""
    model, guide = make("mlp", "hidden")
    (block,) = drawn(model, guide, some("mlp", 1), 4, CPU)
    seen = block.cost(some("mlp", 1))
    assert (seen.before, seen.after) == (5, 5)
    assert cost(20, 10).elements(4, 7) == 3 * 4 * 7 * 10 + 2 * 7 * 20


@pytest.mark.parametrize("most", [1, 1_000, 100_000, 10**9])
def test_tiles_fit_their_budget(most: int) -> None:
    counted = cost(20, 10)
    draws, points = counted.tile(100, 3000, most)
    assert 1 <= draws <= 100
    assert 1 <= points <= 3000
    if most == 1:
        assert (draws, points) == (1, 1)
        return
    assert counted.elements(draws, points) <= most
    larger = (2 * draws - 1, points) if draws > points else (draws, 2 * points - 1)  # before the last halving, at least
    assert (draws, points) == (100, 3000) or counted.elements(*larger) > most
    assert ((draws, points) == (100, 3000)) == (most == 10**9)


@pytest.mark.parametrize("guide", ["bernoulli", "mean_field", "ensemble"])
def test_a_seed_means_the_same_functions_at_any_points(guide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other points with them, or other tiles, change nothing but rounding."""
    model, posterior = make("mlp", guide)
    fit, x = fitted(model, posterior), some("mlp", 11)
    state = torch.get_rng_state()
    whole = fit.predict(x, 13, seed=5).f
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(fit.predict(x[:4], 13, seed=5).f, whole[:, :4])
    for most in (1, 600, 4000):
        monkeypatch.setattr("pyrodrop.prediction.draws._TILE_BYTES", {"cpu": most})
        torch.testing.assert_close(fit.predict(x, 13, seed=5).f, whole)
    monkeypatch.setattr("pyrodrop.prediction.draws.BLOCK_BYTES", 1)  # a block a draw
    of_blocks = fit.predict(x, 13, seed=5).f
    torch.testing.assert_close(fit.predict(x, 5, seed=5).f, of_blocks[:5])
    assert not torch.equal(fit.predict(x, 13, seed=6).f, whole)


def test_any_guide_that_draws_weights() -> None:
    """A guide of the user's own, without posteriors, is run in a plate as before."""
    model, _ = make("mlp", "point")
    starts = model.weight_sites()

    def guide(x: Tensor, *_: Any) -> dict[str, Tensor]:
        assert x.shape == (1, 3)  # one point, since weights do not depend on it
        return {n: pyro.sample(n, dist.Normal(w, 0.1).to_event(2)) for n, w in starts.items()}

    x = some("mlp", 3)
    prediction = fitted(model, guide).predict(x, 4000)
    with torch.no_grad():
        want = model.outputs({n: w + 0.1 * torch.randn(4000, *w.shape) for n, w in starts.items()}, x)
    se = ((prediction.f.var(0) + want.var(0)) / 4000).sqrt()
    assert float(((prediction.f.mean(0) - want.mean(0)) / se).abs().max()) < 4.5
