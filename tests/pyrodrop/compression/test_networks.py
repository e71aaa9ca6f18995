"""Networks of any shape: the compressed network and the whole one are the user's own network at those weights.

The oracle, see conftest.py, is `torch.func.functional_call` of the user's own network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.small import Own

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


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    net[1].register_forward_hook(_twice_as_much)
    return net


def _twice_as_much(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return 2 * output


def sequential(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*copy.deepcopy(layers))


def custom(forward: Lambda, **layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Own(forward, **copy.deepcopy(layers))


CONV = {"conv": nn.Conv2d(1, 6, 3), "last": nn.Linear(6 * 9, 2)}
# Networks, and the shape of their x.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "divisor of an average": (
        sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.AvgPool2d(2, divisor_override=3), nn.Flatten(), nn.Linear(6 * 9, 2)),
        (1, 8, 8),
    ),
    "divisor of an average, function": (
        custom(lambda self, x: self.last(F.avg_pool2d(self.conv(x), 2, divisor_override=1).flatten(1)), **CONV),
        (1, 8, 8),
    ),
    "tokens, flattened": (
        sequential(nn.Linear(3, 5), nn.Tanh(), nn.Flatten(), nn.Linear(5 * 4, 6), nn.ReLU(), nn.Linear(6, 2)),
        (4, 3),
    ),
    "tokens": (sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 2)), (4, 3)),
    "tied": (Tied, (6,)),
    "tied by its weight": (
        custom(
            lambda self, x: self.c(self.b(torch.tanh(self.a(x)))) @ self.c.weight,
            a=nn.Linear(3, 9), b=nn.Linear(9, 5), c=nn.Linear(5, 4),
        ), (3,),
    ),
    "quiet dropout": (sequential(nn.Linear(3, 9), nn.Tanh(), nn.Dropout(0.0), nn.Linear(9, 2)), (3,)),
    "frozen": (frozen, (3,)),
    "in place": (sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)), (3,)),
    "in place, functions": (
        custom(lambda self, x: self.b(F.relu(self.a(x), inplace=True).relu_()), a=nn.Linear(3, 6), b=nn.Linear(6, 2)),
        (3,),
    ),
    "ceil mode, by position": (
        custom(lambda self, x: self.last(F.max_pool2d(torch.tanh(self.conv(x)), 2, 2, 0, 1, True).flatten(1)), **CONV),
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
        custom(
            lambda self, x: self.last(
                torch.flatten(F.avg_pool2d(input=F.elu(input=self.conv(x), alpha=0.3), kernel_size=2), start_dim=1)
            ),
            **CONV,
        ),
        (1, 8, 8),
    ),
    "flatten of space": (
        sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(2), nn.Conv1d(6, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(32, 2)
        ),
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
    "one layer": (sequential(nn.Linear(3, 2)), (3,)),
    "length": (
        sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4 * 3, 2)), (2, 8)
    ),
    "volume": (sequential(nn.Conv3d(1, 4, 2), nn.Tanh(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(4, 2)), (1, 3, 3, 3)),
    "a hook": (hooked, (3,)),
    "reflected": (
        sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(36, 2)), (1, 3, 3)
    ),
    "output activated": (sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2), nn.Softplus(2.0)), (3,)),
}  # fmt: skip


def _pooled(self: Any, x: Tensor) -> Tensor:
    return F.max_pool2d(torch.tanh(self.conv(x)), 2)


def _gradient(self: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():  # which a trace does not have
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.b(torch.tanh(self.a(x))).sum(), x, create_graph=True)[0]


# Networks of which no unit can be removed, and the shape of their x.
REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a function of parameters": (
        custom(
            lambda self, x: F.linear(torch.tanh(self.a(x)), self.b.weight), a=nn.Linear(3, 9), b=nn.Linear(9, 2, bias=False)
        ),
        (3,),
    ),
    "a gradient": (custom(_gradient, a=nn.Linear(3, 6), b=nn.Linear(6, 2)), (3,)),
    "pooling over units": (sequential(nn.Linear(3, 6), nn.MaxPool1d(2), nn.Linear(3, 2)), (3,)),
    "pooling of tokens": (sequential(nn.Linear(3, 6), nn.AvgPool1d(2), nn.Linear(3, 2)), (4, 3)),
    "a softmax that is called relu": (
        custom(lambda self, x: self.b(self.relu(self.a(x))), a=nn.Linear(3, 6), relu=nn.Softmax(-1), b=nn.Linear(6, 2)),
        (3,),
    ),
    "softmax": (sequential(nn.Linear(3, 6), nn.Softmax(-1), nn.Linear(6, 2)), (3,)),
    "batch norm": (normalised, (1, 8, 8)),
    "a view": (custom(lambda self, x: self.last(_pooled(self, x).view(x.size(0), -1)), **CONV), (1, 8, 8)),
    "norm of units": (sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2)), (3,)),
    "slopes": (sequential(nn.Linear(3, 6), nn.PReLU(6), nn.Linear(6, 2)), (3,)),
    "indices": (
        custom(lambda self, x: self.last(F.max_pool2d(self.conv(x), 2, return_indices=True)[0].flatten(1)), **CONV),
        (1, 8, 8),
    ),
    "a transposition": (
        custom(lambda self, x: self.b(self.a(x).transpose(1, 2)).flatten(1), a=nn.Linear(3, 4), b=nn.Linear(4, 2)),
        (4, 3),
    ),
    "a layer twice": (twice, (3,)),
    "a permutation": (
        custom(
            lambda self, x: self.b(self.a(x).relu().permute(0, 2, 3, 1).contiguous()).transpose(1, 3).flatten(1),
            a=nn.Conv2d(2, 5, 3), b=nn.Linear(5, 2),
        ),
        (2, 5, 5),
    ),
    "a skip connection": (
        custom(lambda self, x: self.b(x + torch.tanh(self.a(x))), a=nn.Linear(3, 3), b=nn.Linear(3, 2)), (3,)),
    "a product with the size": (
        custom(lambda self, x: self.b((h := self.a(x)) * h.shape[1]), a=nn.Linear(3, 6), b=nn.Linear(6, 2)), (3,)),
    "grouped": (sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 2)), (2, 3, 3)),
    "norm of tokens": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)), (4, 3)),
    "values": (
        custom(lambda self, x: self.b(self.a(x) if x.sum() > 0 else -self.a(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 2)),
        (3,),
    ),
    "dense over the length": (
        sequential(nn.Conv1d(2, 8, 3, padding=1), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)),
        (2, 8),
    ),
}  # fmt: skip


def size(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_any_shape(name: str, cut_fit: Any, oracle: Any) -> None:
    build, shape = NETWORKS[name]
    x = torch.randn(5, *shape)
    for seed, (share, dead) in enumerate([(0.5, 0.5), (0.0, 0.6), (0.97, 0.2), (1.0, 0.0)]):
        net = build()
        fit = cut_fit(net, seed, share, dead)
        small, whole = fit.compress(x=x), fit.compress(structured=False, x=x)
        torch.testing.assert_close(small(x), oracle(net, fit, x), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(whole(x), oracle(net, fit, x), atol=1e-5, rtol=1e-4)
        assert size(small) < size(whole)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", REFUSED)
def test_a_network_whose_units_end_is_refused_and_keeps_its_shape(name: str, cut_fit: Any, oracle: Any) -> None:
    build, shape = REFUSED[name]
    net = build()
    fit, x = cut_fit(net, dead=0.2), torch.randn(5, *shape)
    with pytest.raises(TypeError, match="structured=False works for every network and keeps its shape"):
        fit.compress(x=x)
    whole = fit.compress(structured=False, x=x)
    torch.testing.assert_close(whole(x), oracle(net, fit, x), atol=1e-6, rtol=1e-5)
    assert [name for name, _ in whole.named_parameters()] == [name for name, _ in net.named_parameters()]


def test_a_network_that_does_not_know_its_inputs_needs_some(cut_fit: Any) -> None:
    with pytest.raises(ValueError, match="shape of the inputs of this network is unknown: pass example inputs as x="):
        cut_fit(nn.Sequential(nn.Linear(3, 2), nn.Flatten(), nn.Linear(2 * 5, 2))).compress()


_ACTIVATIONS: Sequence[Callable[[], nn.Module]] = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU, nn.SiLU, nn.Identity, lambda: nn.LeakyReLU(0.3, inplace=True),
)  # fmt: skip
