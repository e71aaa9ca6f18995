"""Compressed and drawn chains of any shape are the user's own network at those weights.

The oracles `oracle` and `drawn`, see conftest.py, are `torch.func.functional_call` of the user's own network.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyrodrop import priors
from pyrodrop.compression import compressed_steps, read_network, write_network
from pyrodrop.compression.steps import Affine
from tests.small import Own

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
Lambda = Callable[[Any, Tensor], Tensor]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


def twice() -> nn.Module:
    return Own(
        lambda self, x: self.last(torch.tanh(self.middle(torch.tanh(self.middle(torch.tanh(self.first(x))))))),
        first=nn.Linear(3, 6),
        middle=nn.Linear(6, 6),
        last=nn.Linear(6, 2),
    )


def normalised() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10), nn.BatchNorm1d(10), nn.Tanh(),
        nn.Linear(10, 3),
    )  # fmt: skip
    net(torch.randn(50, 1, 8, 8))  # running statistics of their own
    return net.eval()


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    return net


def sequential(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*copy.deepcopy(layers))


def own(forward: Lambda, **layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Own(forward, **copy.deepcopy(layers))


CONV = {"conv": nn.Conv2d(1, 6, 3), "last": nn.Linear(6 * 9, 2)}
# Networks, the shape of their x, and whether they are a chain.
RIGHT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "divisor of an average": (
        sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.AvgPool2d(2, divisor_override=3), nn.Flatten(), nn.Linear(6 * 9, 2)),
        (1, 8, 8),
    ),
    "divisor of an average, function": (
        own(lambda self, x: self.last(F.avg_pool2d(self.conv(x), 2, divisor_override=1).flatten(1)), **CONV),
        (1, 8, 8),
    ),
    "tokens, flattened": (
        sequential(nn.Linear(3, 5), nn.Tanh(), nn.Flatten(), nn.Linear(5 * 4, 6), nn.ReLU(), nn.Linear(6, 2)),
        (4, 3),
    ),
    "tokens": (sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 2)), (4, 3)),
    "a layer twice": (twice, (3,)),
    "tied": (Tied, (6,)),
    "quiet dropout": (sequential(nn.Linear(3, 9), nn.Tanh(), nn.Dropout(0.0), nn.Linear(9, 2)), (3,)),
    "batch norm": (normalised, (1, 8, 8)),
    "frozen": (frozen, (3,)),
    "in place": (sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)), (3,)),
    "in place, functions": (
        own(lambda self, x: self.b(F.relu(self.a(x), inplace=True).relu_()), a=nn.Linear(3, 6), b=nn.Linear(6, 2)),
        (3,),
    ),
    "ceil mode, by position": (
        own(lambda self, x: self.last(F.max_pool2d(torch.tanh(self.conv(x)), 2, 2, 0, 1, True).flatten(1)), **CONV),
        (1, 7, 7),
    ),
    "ceil mode, average": (
        sequential(nn.Conv2d(1, 6, 3), nn.Softplus(), nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(6 * 9, 2)),
        (1, 7, 7),
    ),
    "dilated pooling": (
        sequential(nn.Conv2d(1, 6, 3), nn.MaxPool2d(2, dilation=3), nn.Flatten(), nn.Linear(6 * 9, 2)), (1, 11, 11)
    ),
    "by keywords": (
        own(
            lambda self, x: self.last(
                torch.flatten(F.avg_pool2d(input=F.elu(input=self.conv(x), alpha=0.3), kernel_size=2), start_dim=1)
            ),
            **CONV,
        ),
        (1, 8, 8),
    ),
    "view of the size": (own(lambda self, x: self.last(_pooled(self, x).view(x.size(0), -1)), **CONV), (1, 8, 8)),
    "view of the shape": (
        own(lambda self, x: self.last((h := _pooled(self, x)).reshape(h.shape[0], -1)), **CONV),
        (1, 8, 8),
    ),
    "view of a number": (own(lambda self, x: self.last(_pooled(self, x).view(-1, 54)), **CONV), (1, 8, 8)),
    "flatten of space": (
        sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(2), nn.Conv1d(6, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(32, 2)
        ),
        (1, 5, 5),
    ),
    "flatten in two": (
        sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(-2), nn.Tanh(), nn.Flatten(1, 2), nn.Linear(54, 2)),
        (1, 5, 5),
    ),
    "global average": (
        sequential(
            nn.Conv2d(1, 6, 3), nn.Softplus(), nn.Conv2d(6, 5, 3), nn.GELU("tanh"), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(5, 2),
        ),
        (1, 8, 8),
    ),
    "bounded": (
        sequential(
            nn.Linear(3, 9), nn.Hardtanh(-0.3, 0.4), nn.Linear(9, 9), nn.CELU(0.4), nn.Linear(9, 9),
            nn.Threshold(0.1, 0.7), nn.Linear(9, 2),
        ),
        (3,),
    ),
    "a function of parameters": (
        own(
            lambda self, x: F.linear(torch.tanh(F.linear(x, self.a.weight, bias=self.a.bias)), self.b.weight),
            a=nn.Linear(3, 9),
            b=nn.Linear(9, 2, bias=False),
        ),
        (3,),
    ),
    "one layer": (lambda: nn.Linear(3, 2), (3,)),
    "length": (
        sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4 * 3, 2)), (2, 8)
    ),
    "volume": (sequential(nn.Conv3d(1, 4, 2), nn.Tanh(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(4, 2)), (1, 3, 3, 3)),
    "output activated": (sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2), nn.Softplus(2.0)), (3,)),
}  # fmt: skip


def _pooled(self: Any, x: Tensor) -> Tensor:
    return F.max_pool2d(torch.tanh(self.conv(x)), 2)


@pytest.mark.few(2)
@pytest.mark.parametrize("layout", ["dense", "picked", "csr"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_chain_of_any_shape(name: str, layout: Any, cut_fit: Any, oracle: Any) -> None:
    build, shape = RIGHT[name]
    net = build()
    x = torch.randn(5, *shape)
    for seed, (share, dead) in enumerate([(0.5, 0.5), (0.0, 0.6), (0.97, 0.2), (1.0, 0.0)]):
        fit = cut_fit(net, seed, share, dead)
        expected = oracle(net, fit, x)
        torch.testing.assert_close(fit.compress(layout=layout, x=x)(x), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            fit.compress(structured=False, layout=layout, x=x)(x), expected, atol=1e-5, rtol=1e-4
        )


@pytest.mark.few(5)
@pytest.mark.parametrize("name", RIGHT)
def test_a_loaded_fit_finds_the_shapes_itself(name: str, cut_fit: Any, oracle: Any) -> None:
    build, shape = RIGHT[name]
    net = build()
    fit, x = cut_fit(net), torch.randn(5, *shape)
    torch.testing.assert_close(fit.compress(layout="dense")(x), oracle(net, fit, x), atol=1e-5, rtol=1e-4)


def test_units_really_go(cut_fit: Any) -> None:
    """Tokens that are flattened: every dead unit is gone from all of its columns."""
    build, shape = RIGHT["tokens, flattened"]
    for seed in range(20):  # of the first layer's 5 units, none or all die with probability 0.09
        fit = cut_fit(build(), seed, share=0.0, dead=0.4)
        steps = compressed_steps(fit.model, fit.guide, layout="dense", x=torch.randn(2, *shape))
        layers = [step for step in steps if isinstance(step, Affine)]
        if len(layers) > 1 and len(layers[0].bias) < 5:
            break
    assert 0 < len(layers[0].bias) < 5
    assert layers[1].weight.shape[1] == 4 * len(layers[0].bias)


_ACTIVATIONS: Sequence[Callable[[], nn.Module]] = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU, nn.SiLU, nn.Identity, lambda: nn.LeakyReLU(0.3, inplace=True),
)  # fmt: skip


def random_chain(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Layers that fit together, of all kinds, and the shape of their x."""
    choose = random.Random(seed)
    dims = choose.choice([0, 0, 1, 2])
    rows = choose.choice([(), (3,)]) if dims == 0 else ()
    width = choose.randint(1, 4)
    shape = (*rows, width) if dims == 0 else (width, *(choose.randint(5, 8),) * dims)
    x, layers = torch.zeros(2, *shape), []

    def add(layer: nn.Module) -> None:
        nonlocal x
        layers.append(layer.eval())
        x = layer(x)

    for _ in range(choose.randint(0, 3) if dims else 0):
        kernel = choose.choice([1, 2, 3])
        if min(x.shape[2:]) < kernel:
            break
        kind: Any = {1: nn.Conv1d, 2: nn.Conv2d}[dims]
        add(
            kind(
                x.shape[1],
                choose.randint(1, 5),
                kernel,
                padding=choose.choice([0, 0, 1, "same"]),
                bias=choose.random() < 0.8,
            )
        )
        if choose.random() < 0.3:
            norm: Any = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}[dims](x.shape[1], affine=choose.random() < 0.5)
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
            add(norm)
        add(choose.choice(_ACTIVATIONS)())
        if choose.random() < 0.5 and min(x.shape[2:]) >= 2:
            maximum, average = {1: (nn.MaxPool1d, nn.AvgPool1d), 2: (nn.MaxPool2d, nn.AvgPool2d)}[dims]
            pad, ceil, stride = choose.choice([0, 1]), choose.random() < 0.5, choose.choice([1, 2])
            pools = [
                maximum(2, stride, pad, ceil_mode=ceil),
                average(2, stride, pad, ceil_mode=ceil, count_include_pad=choose.random() < 0.5),
            ]
            add(choose.choice(pools))
    if dims:
        add(nn.Flatten())
    for _ in range(choose.randint(0, 2)):
        add(nn.Linear(x.shape[-1], choose.randint(1, 6), bias=choose.random() < 0.8))
        add(choose.choice(_ACTIVATIONS)())
        if choose.random() < 0.3:
            add(nn.Flatten())
    add(nn.Linear(x.shape[-1], 2))
    return Own(lambda self, x: self.layers(x), layers=nn.Sequential(*layers)), shape


@pytest.mark.few(1)
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_chains(first: int, cut_fit: Any, oracle: Any) -> None:
    """Nothing is refused, and nothing is wrong."""
    for seed in range(first, first + 20):
        torch.manual_seed(seed)
        net, shape = random_chain(seed)
        fit = cut_fit(net, seed, share=(seed % 5) / 4, dead=(seed % 3) / 3)
        x = torch.randn(3, *shape)
        small = fit.compress(layout=("dense", "picked")[seed % 2], x=x)  # type: ignore[arg-type]
        torch.testing.assert_close(
            small(x), oracle(net, fit, x), atol=1e-5, rtol=1e-4, msg=lambda m, net=net: f"{m}\n{net}"
        )


@pytest.mark.few(5)
@pytest.mark.parametrize("name", RIGHT)
def test_an_ensemble_of_any_chain(name: str, cut_fit: Any, drawn: Any) -> None:
    """Networks drawn are the user's own at those draws, with the same seed as drawing them by hand."""
    build, shape = RIGHT[name]
    net = build()
    fit, x = cut_fit(net), torch.randn(5, *shape)
    networks = fit.ensemble(3, seed=4, x=x)
    for i in range(3):
        torch.testing.assert_close(networks[i](x), drawn(net, fit, x, seed=4 + i), atol=1e-5, rtol=1e-4)


def test_biases_with_a_prior_and_norms_are_cut_and_used(cut_fit: Any, oracle: Any) -> None:
    net = normalised()
    fit = cut_fit(net, bias_prior=priors.ARD())
    x = torch.randn(5, 1, 8, 8)
    assert {"1.weight", "1.bias", "3.bias"} <= set(fit.guide.sites)  # type: ignore[attr-defined]
    torch.testing.assert_close(fit.compress(x=x)(x), oracle(net, fit, x), atol=1e-5, rtol=1e-4)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", ["divisor of an average", "batch norm", "tokens, flattened", "global average", "a layer twice"]
)
def test_files_of_chains(name: str, tmp_path: Any, cut_fit: Any, oracle: Any) -> None:
    build, shape = RIGHT[name]
    net = build()
    fit, x = cut_fit(net), torch.randn(5, *shape)
    file = write_network(tmp_path / "small.safetensors", compressed_steps(fit.model, fit.guide, x=x))
    torch.testing.assert_close(read_network(file)(x), oracle(net, fit, x), atol=1e-5, rtol=1e-4)


def test_operations_of_tokens_are_counted(cut_fit: Any) -> None:
    """2 (3 5 at 4 places + 20 2)."""
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 2))
    fit = cut_fit(net, share=0.0, dead=0.0)
    report = fit.compression_report((torch.randn(30, 4, 3), torch.arange(30) % 2), layout="dense")
    assert report.dense.flops == 2 * (15 * 4 + 40)
