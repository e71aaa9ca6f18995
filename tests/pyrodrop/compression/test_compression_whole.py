"""Networks that are no chain are refused with the reason, and given back whole with their weights, drawn or cut.

The oracles `oracle` and `drawn`, see conftest.py, are `torch.func.functional_call` of the user's own network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyrodrop import data, likelihoods
from tests.small import Own

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
Lambda = Callable[[Any, Tensor], Tensor]


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    net[1].register_forward_hook(_twice_as_much)
    return net


def _twice_as_much(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return 2 * output


def sequential(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*copy.deepcopy(layers))


def own(forward: Lambda, **layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: Own(forward, **copy.deepcopy(layers))


CONV = {"conv": nn.Conv2d(1, 6, 3), "last": nn.Linear(6 * 9, 2)}
# Networks, the shape of their x, and a part of the reason.
REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "dense over the length": (
        sequential(nn.Conv1d(2, 8, 3, padding=1), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Flatten(), nn.Linear(48, 2)),
        (2, 8),
        "not always the same unit",
    ),
    "pooling over units": (sequential(nn.Linear(3, 6), nn.MaxPool1d(2), nn.Linear(3, 2)), (3,), "pools over units"),
    "pooling of tokens": (
        sequential(nn.Linear(3, 6), nn.AvgPool1d(2), nn.Linear(3, 2)), (4, 3), "pools over units"
    ),
    "a hook": (hooked, (3,), "not that of its layers in sequence"),
    "softmax": (sequential(nn.Linear(3, 6), nn.Softmax(-1), nn.Linear(6, 2)), (3,), "1 is a Softmax"),
    "slopes": (sequential(nn.Linear(3, 6), nn.PReLU(6), nn.Linear(6, 2)), (3,), "1 is a PReLU"),
    "indices": (
        own(lambda self, x: self.last(F.max_pool2d(self.conv(x), 2, return_indices=True)[0].flatten(1)), **CONV),
        (1, 8, 8),
        "here",
    ),
    "all examples in one": (
        own(lambda self, x: self.b(torch.flatten(self.a(x), 0, 1)).view(-1, 4, 2), a=nn.Linear(3, 5), b=nn.Linear(5, 2)),
        (4, 3),
        "with one row per example",
    ),
    "a transposition": (
        own(lambda self, x: self.b(self.a(x).transpose(1, 2)).flatten(1), a=nn.Linear(3, 4), b=nn.Linear(4, 2)),
        (4, 3),
        "transpose",
    ),
    "a skip connection": (
        own(lambda self, x: self.b(x + torch.tanh(self.a(x))), a=nn.Linear(3, 3), b=nn.Linear(3, 2)),
        (3,),
        "is not fed by",
    ),
    "in place beside the chain": (
        own(lambda self, x: (h := self.a(x), h.relu_(), self.b(h))[-1], a=nn.Linear(3, 4), b=nn.Linear(4, 2)),
        (3,),
        "is not fed by",
    ),
    "norm behind an activation": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)),
        (3,),
        "does not directly follow",
    ),
    "norm of tokens": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)), (4, 3), "does not directly follow"
    ),
    "grouped": (
        sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 2)), (2, 3, 3), "one group and zero padding"
    ),
    "reflected": (
        sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(36, 2)),
        (1, 3, 3),
        "one group and zero padding",
    ),
}  # fmt: skip

# Of these, the networks of which units can be removed nevertheless (`pyrodrop.compression.narrow`).
NARROWED = ("a hook", "in place beside the chain", "norm behind an activation", "reflected")


@pytest.mark.few(2)
@pytest.mark.parametrize("name", REFUSED)
def test_no_chain_is_refused_and_keeps_its_shape(name: str, cut_fit: Any, oracle: Any) -> None:
    build, shape, reason = REFUSED[name]
    net = build()
    fit, x = cut_fit(net, dead=0.2), torch.randn(5, *shape)
    if name in NARROWED:
        torch.testing.assert_close(fit.compress(x=x)(x), oracle(net, fit, x), atol=1e-6, rtol=1e-5)
    refused = {"x": x, "layout": "csr"} if name in NARROWED else {"x": x}
    with pytest.raises(
        TypeError, match=f"compression needs a network that is a chain|one group.*{reason}|{reason}"
    ) as refusal:
        fit.compress(**refused)
    assert reason in str(refusal.value)
    whole = fit.compress(structured=False, x=x)
    torch.testing.assert_close(whole(x), oracle(net, fit, x), atol=1e-6, rtol=1e-5)


def test_if_no_shape_of_x_fits_the_last_failure_is_the_cause(cut_fit: Any) -> None:
    fit = cut_fit(nn.Sequential(nn.Linear(3, 2), nn.Flatten(), nn.Linear(2 * 600, 2)))  # more tokens than are tried
    with pytest.raises(TypeError, match="the shape of the inputs of this one is unknown") as refusal:
        fit.compress()
    assert "(2x1022 and 1200x2)" in str(refusal.value.__cause__)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", REFUSED)
def test_an_ensemble_of_any_other_network(name: str, cut_fit: Any, drawn: Any) -> None:
    """Networks drawn are the user's own at those draws, with the same seed as drawing them by hand."""
    build, shape, _ = REFUSED[name]
    net = build()
    fit, x = cut_fit(net), torch.randn(5, *shape)
    networks = fit.ensemble(3, seed=4, x=x)
    for i in range(3):
        torch.testing.assert_close(networks[i](x), drawn(net, fit, x, seed=4 + i), atol=1e-5, rtol=1e-4)


def test_standardised_networks_that_are_no_chain(cut_fit: Any, oracle: Any) -> None:
    """x around 2000, y around 300 with a noise of its own: the network is given back between the two units."""
    net = REFUSED["a skip connection"][0]()
    x, y = 2000 + 5 * torch.randn(40, 3), 300 + 20 * torch.randn(40, 1)
    fit: Any = cut_fit(net, likelihood=likelihoods.HeteroscedasticGaussian())
    fit.model.standardize(data.Dataset(x, y).standardized())
    inside = (x - x.mean(0)) / x.std(0, correction=0)
    expected = oracle(net, fit, inside)[:, :1] * y.std(0, correction=0) + y.mean(0)
    for network in (fit.compress(structured=False, x=x), fit.ensemble(1, x=x)[0]):
        assert network(x).shape == (40, 1)
    torch.testing.assert_close(
        (fit.compress(structured=False, x=x)(x) - 300) / 20, (expected - 300) / 20, atol=1e-4, rtol=0
    )
    with pytest.raises(ValueError, match="pass some as x="):
        fit.compress(structured=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0][:, -1])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(7, 5), nn.Linear(5, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.last((self.words(ids) * mask[..., None]).mean(1))


@pytest.mark.parametrize("form", ["recurrent", "tuple", "mapping"])
def test_networks_of_other_kinds_are_given_back_with_their_weights(
    form: str, cut_fit: Any, oracle: Any, drawn: Any
) -> None:
    net = Recurrent() if form == "recurrent" else TwoInputs()
    x: Any = torch.randn(5, 4, 3)
    if form != "recurrent":
        x = torch.randint(7, (5, 4)), torch.rand(5, 4)
    given: Any = dict(zip(("ids", "mask"), x, strict=True)) if form == "mapping" else x
    args = x if isinstance(x, tuple) else (x,)
    fit: Any = cut_fit(net)
    torch.testing.assert_close(fit.compress(structured=False, x=given)(*args), oracle(net, fit, *args))
    torch.testing.assert_close(fit.ensemble(1, seed=2, x=given)[0](*args), drawn(net, fit, *args, seed=2))
    with pytest.raises(TypeError, match="compression needs a network that is a chain"):
        fit.compress(x=given)
