"""Which weights share a number of noise, by layer: against masks on the layer's input, which need no layout of a weight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.distributions import HalfCauchy, Normal
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyrodrop import priors
from pyrodrop.distributions import (
    BernoulliMixture,
    CorrelatedNormal,
    InputUnits,
    PooledNormal,
    RelaxedBernoulliMixture,
)
from pyrodrop.guides import (
    BernoulliDropout,
    ConcreteDropout,
    GaussianDropout,
    LogNormalDropout,
    VariationalDropout,
)
from pyrodrop.networks.assignment import input_units

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(4, 3), (2, 4)),
    "conv1d": (nn.Conv1d(4, 6, 3), (2, 4, 5)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4), (2, 4, 5, 5)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5)),
    "transposed in groups": (nn.ConvTranspose1d(4, 6, 3, groups=2), (2, 4, 5)),
}


def layer(kind: str) -> tuple[nn.Module, Tensor, Tensor, InputUnits]:
    """A layer without bias, an input, its weight in double precision and where its units are."""
    module, shape = LAYERS[kind]
    torch.manual_seed(3)
    module = module.double()
    module.bias = None
    units = input_units(module)["weight"]
    return module, torch.randn(shape).double(), torch.randn(module.weight.shape).double(), units  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", LAYERS)
def test_unit_noise_on_a_weight_is_noise_on_the_input_channels(kind: str) -> None:
    """f(x, M diag(s)) = f(x s, M): one number per input channel, whatever the layer's groups and layout."""
    module, x, loc, units = layer(kind)
    q = BernoulliMixture(loc, 0.5, units=units)
    assert q.noise_shape == (4,)
    s = torch.randn(7, 4).double()
    by_weight = [torch.func.functional_call(module, {"weight": w}, (x,)) for w in q.over_units(s) * loc]
    channel = -1 if kind == "linear" else 1
    by_input = [
        torch.func.functional_call(
            module, {"weight": loc}, (x * scales.reshape(-1, *(1,) * (x.dim() - 1 - channel % x.dim())),)
        )
        for scales in s
    ]
    torch.testing.assert_close(torch.stack(by_weight), torch.stack(by_input))


def test_a_unit_of_an_embedding_is_a_word() -> None:
    ids, loc = torch.tensor([0, 2, 2, 4]), torch.randn(5, 3)
    q = BernoulliMixture(loc, 0.5, units=input_units(nn.Embedding(5, 3))["weight"])
    s = torch.randn(5)
    torch.testing.assert_close(F.embedding(ids, q.over_units(s) * loc), F.embedding(ids, loc) * s[ids, None])


@pytest.mark.parametrize("kind", LAYERS)
def test_sums_over_units_are_adjoint_to_the_layout(kind: str) -> None:
    """sum_k s_k sum_units(V)_k = sum_ij over_units(s)_ij V_ij."""
    _, _, loc, units = layer(kind)
    q = CorrelatedNormal(loc, 0.0, units=units).expand((2,))
    v, s = torch.randn(2, *loc.shape).double(), torch.randn(2, 4).double()
    left, right = (s * q.sum_units(v)).sum(-1), (q.over_units(s) * v).flatten(1).sum(1)
    torch.testing.assert_close(left, right)
    assert q.fan_out * 4 == loc.numel()


@pytest.mark.parametrize("kind", [k for k in LAYERS if k != "linear"])
@pytest.mark.parametrize(
    "distribution",
    [
        lambda m, u: BernoulliMixture(m, 0.3, units=u),
        lambda m, u: RelaxedBernoulliMixture(m, torch.tensor(-0.5).double(), units=u),
        lambda m, u: CorrelatedNormal(m, -0.5, units=u),
    ],
    ids=["Bernoulli", "concrete", "type A"],
)
def test_draws_scale_whole_channels(kind: str, distribution: Callable[[Tensor, InputUnits], BernoulliMixture]) -> None:
    """Every draw is M with one factor per channel, and channels have different ones; also of a batch and after `at`."""
    _, _, loc, units = layer(kind)
    for q in (distribution(loc, units).expand((5,)), distribution(loc, units).at(loc.expand(5, *loc.shape))):
        ratio = q.sample() / loc
        means = q.sum_units(ratio) / q.fan_out
        torch.testing.assert_close(q.over_units(means).expand_as(ratio), ratio)
        assert means.std() > 0.1


@pytest.mark.parametrize("theta", [0.0, 0.4])
def test_the_divergence_of_a_grouped_convolution_is_that_of_its_groups(theta: float) -> None:
    """KL of [out, in / groups, k] in 2 groups = sum of the KLs of each group's own [out / 2, in / 2, k]."""
    loc, rates = torch.randn(6, 2, 3).double(), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    prior = Normal(torch.zeros(()).double(), 0.7)
    whole = kl_divergence(
        BernoulliMixture(loc, rates, theta, units=InputUnits(1, 2)), prior.expand(loc.shape).to_event(3)
    )
    groups = [
        kl_divergence(BernoulliMixture(m, r, theta), prior.expand(m.shape).to_event(3))
        for m, r in zip(loc.chunk(2), rates.chunk(2), strict=True)
    ]
    torch.testing.assert_close(whole, sum(groups))


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", LAYERS)
def test_ard_pools_by_the_units_of_the_layer(kind: str) -> None:
    """The best variance by channel, found entry by entry from which channels a weight's entry connects."""
    module, x, loc, units = layer(kind)
    moment = torch.rand(loc.shape).double()
    connects = _connections(module, x, loc)
    expected = torch.stack([moment[connects == k].mean() for k in connects.flatten().tolist()]).reshape(loc.shape)
    pooled = PooledNormal(loc.shape, "input", units=units).pool(moment)
    torch.testing.assert_close(pooled.expand(loc.shape), expected)


def _connections(module: nn.Module, x: Tensor, loc: Tensor) -> Tensor:
    """The input channel of every entry of a weight, by which channels of x it needs."""
    axis = 1 if x.dim() > 2 else -1
    numbers = torch.empty(loc.shape)
    for place in range(loc.numel()):
        single = torch.zeros(loc.numel(), dtype=x.dtype)
        single[place] = 1.0
        inputs = x.clone().requires_grad_()
        y = torch.func.functional_call(module, {"weight": single.reshape(loc.shape)}, (inputs,))
        y.square().sum().backward()
        channels = inputs.grad.movedim(axis, 0).flatten(1).abs().sum(1).nonzero()  # type: ignore[union-attr]
        assert len(channels) == 1
        numbers.view(-1)[place] = channels[0, 0]
    return numbers


@pytest.mark.parametrize("kind", ["linear", "grouped", "transposed", "transposed in groups"])
def test_ard_with_a_hyperprior_has_one_variance_per_unit(kind: str) -> None:
    _, _, loc, units = layer(kind)
    prior = priors.ARD("input", hyperprior=HalfCauchy(torch.tensor(1.0).double()))
    ((site, start),) = prior.hyper_sites("w", loc, units).items()
    count = units.count(loc.shape)
    assert start.numel() == count
    drawn = torch.rand(start.shape).double() + 0.5
    with poutine.condition(data={site: drawn}), poutine.block():
        scale = prior.for_site("w", loc, units).base_dist.scale
    assert scale.shape == loc.shape
    pool = PooledNormal(loc.shape, "input", units=units)
    torch.testing.assert_close(pool.pool(scale**2).expand(loc.shape), scale**2)  # equal within a unit
    assert len(scale.unique()) == count


class WithUnits:
    """A model with given input units of its weights."""

    def __init__(self, units: dict[str, InputUnits], shapes: dict[str, tuple[int, ...]], first: str = "first") -> None:
        torch.manual_seed(0)
        self.units, self.first = units, first
        self.weights = {name: torch.randn(shape) for name, shape in shapes.items()}

    def weight_sites(self) -> dict[str, Tensor]:
        return self.weights

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]:
        return {}

    def input_units(self) -> dict[str, InputUnits]:
        return self.units

    def first_weights(self) -> tuple[str, ...]:
        return (self.first,)


SHAPES = {"first": (6, 2, 3, 3), "words": (5, 3), "token": (1, 1, 3), "bias": (3,)}
UNITS = {"first": InputUnits(1, 2), "words": InputUnits(0), "token": InputUnits(None), "bias": InputUnits(None)}
UNIT_GUIDES: dict[str, Callable[..., object]] = {
    "Bernoulli": lambda m: BernoulliDropout(m, 0.5),
    "concrete": lambda m: ConcreteDropout(m, drop_rate=0.5),
    "type A": lambda m: GaussianDropout(m, "A", 0.5),
    "log-normal": LogNormalDropout,
    "variational A": lambda m: VariationalDropout(m, "A"),
    "variational B by input": lambda m: VariationalDropout(m, "B", "input"),
}


@pytest.mark.parametrize("guide", UNIT_GUIDES)
def test_unit_noise_refuses_what_is_no_layers_weight(guide: str) -> None:
    with pytest.raises(
        ValueError, match=r"'token' of shape \(1, 1, 3\) belongs to no layer.*input_axes=\{'token': 0\}"
    ):
        UNIT_GUIDES[guide](WithUnits(UNITS, SHAPES))


@pytest.mark.parametrize(
    "make", [BernoulliDropout, lambda m, drop_rate: ConcreteDropout(m, "input", drop_rate=drop_rate)]
)
def test_at_rate_0_it_is_taken(make: Callable[..., BernoulliDropout]) -> None:
    guide = make(WithUnits(UNITS, SHAPES), drop_rate={"token": 0.0, "*": 0.4})
    token = guide.draw(6)["token"]
    torch.testing.assert_close(token, guide.loc["token"].detach().expand(6, 1, 1, 3))
    noise = {name: guide.posterior(name).noise_shape for name in ("first", "words", "bias")}  # type: ignore[attr-defined]
    assert noise == {"first": (4,), "words": (5,), "bias": (3,)}


def test_ard_by_unit_refuses_what_is_no_layers_weight() -> None:
    with pytest.raises(ValueError, match=r"the units of 'token' of shape \(1, 1, 3\) are unknown"):
        priors.ARD("input").for_site("token", torch.ones(1, 1, 3), InputUnits(None))


def test_layers_that_are_known() -> None:
    network = nn.ModuleDict(
        {
            "lstm": nn.LSTM(3, 4),
            "cell": nn.GRUCell(3, 4),
            "attention": nn.MultiheadAttention(4, 2, add_bias_kv=True),
            "cross": nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
            "bag": nn.EmbeddingBag(5, 3),
            "norm": nn.LayerNorm((2, 3)),
            "two": nn.Bilinear(3, 4, 5),
        }
    )
    network.register_parameter("token", nn.Parameter(torch.zeros(1, 1, 3)))
    axes = {n: u.axis for n, u in input_units(network).items() if network.get_parameter(n).dim() > 1}
    none = {"token", "attention.bias_k", "attention.bias_v", "norm.weight", "norm.bias", "two.weight"}
    assert {n for n, axis in axes.items() if axis is None} == none
    assert {n for n, axis in axes.items() if axis == 0} == {"bag.weight"}
    assert {"lstm.weight_hh_l0", "cell.weight_ih", "attention.in_proj_weight", "cross.k_proj_weight"} <= axes.keys()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_flattened_channel_is_one_unit_of_several_columns(axis: int) -> None:
    """Two channels of three pixels: noise, sums and means are those of the channels, column by column."""
    units, shape = InputUnits(axis, size=3), torch.Size((4, 6) if axis else (6, 4))
    q = CorrelatedNormal(torch.randn(shape), 0.0, units=units)
    assert (q.noise_shape, q.fan_out) == ((2,), 12)
    s, v = torch.randn(5, 2), torch.randn(5, *shape)
    channel = torch.tensor([0, 0, 0, 1, 1, 1])
    columns = s[:, channel][:, None, :] if axis else s[:, channel][:, :, None]
    torch.testing.assert_close(q.over_units(s).expand(5, *shape), columns.expand(5, *shape))
    by_column = v.sum(2 - axis)  # over the other axis
    sums = torch.stack([by_column[:, :3].sum(1), by_column[:, 3:].sum(1)], 1)
    torch.testing.assert_close(q.sum_units(v), sums)
    torch.testing.assert_close(units.mean(v, shape)[:, 0, ::5] if axis else units.mean(v, shape)[:, ::5, 0], sums / 12)
