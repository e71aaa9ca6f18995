"""The closed form on networks of any make: the moments over all masks of the user's own network, or a refusal.

The oracle enumerates the 2^K masks of the last layer's inputs and calls `torch.func.functional_call`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from tests.small import Own

pytestmark = pytest.mark.usefixtures("float64")
K, RATE = 4, 0.3
Forward = Callable[[Any, Tensor], Tensor]


def hidden(self: Any, x: Tensor) -> Tensor:
    return F.relu(self.a(x), inplace=True)


def scaled_in_place(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    h.mul_(2.0)
    return self.b(h.tanh_())


def input_changed_afterwards(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    out = self.b(h)
    h.zero_()
    return out


def through_a_view(self: Any, x: Tensor) -> Tensor:
    out = self.b(hidden(self, x))
    out.view(-1).relu_()
    return out


def through_data(self: Any, x: Tensor) -> Tensor:
    out = self.b(hidden(self, x))
    out.data.mul_(3.0)
    return out


def a_column_set(self: Any, x: Tensor) -> Tensor:
    out = self.b(hidden(self, x))
    out[:, 0] = 0.0
    return out


def added_in_place(self: Any, x: Tensor) -> Tensor:
    h = hidden(self, x)
    out = self.b(h)
    out += h
    return out


RIGHT: dict[str, tuple[Forward, tuple[int, ...]]] = {
    "in place": (lambda self, x: self.b(hidden(self, x)), (3,)),
    "methods in place": (scaled_in_place, (3,)),
    "input changed afterwards": (input_changed_afterwards, (3,)),
    "tokens": (lambda self, x: self.b(hidden(self, x)), (2, 3)),
    "flattened to what it is": (lambda self, x: self.b(hidden(self, x)).flatten(1).double().contiguous(), (3,)),
    "product": (lambda self, x: hidden(self, x) @ self.b.weight.T, (3,)),
    "skip before": (lambda self, x: self.b(hidden(self, x) + x.sum(-1, keepdim=True)), (3,)),
}
REFUSED: dict[str, tuple[Forward, tuple[int, ...], str]] = {
    "in place behind": (lambda self, x: F.relu(self.b(hidden(self, x)), inplace=True), (3,), "changes in place"),
    "in place through a view": (through_a_view, (3,), "changes in place"),
    "in place through data": (through_data, (3,), "changes in place"),
    "a column set": (a_column_set, (3,), "changes in place"),
    "added in place": (added_in_place, (3,), "changes in place"),
    "activated": (lambda self, x: F.elu(self.b(hidden(self, x))), (3,), "whose output the network returns"),
    "scaled": (lambda self, x: 2 * self.b(hidden(self, x)), (3,), "whose output the network returns"),
    "sliced": (lambda self, x: self.b(hidden(self, x))[:, :2], (3,), "whose output the network returns"),
    "flattened tokens": (
        lambda self, x: self.b(hidden(self, x)).flatten(1),
        (2, 3),
        "whose output the network returns",
    ),
    "another type": (lambda self, x: self.b(hidden(self, x)).float(), (3,), "whose output the network returns"),
    "skip connection": (lambda self, x: (h := hidden(self, x)) + self.b(h), (3,), "whose output the network returns"),
    "used twice": (lambda self, x: self.b(self.b(hidden(self, x))), (3,), "used once"),
    "the other way": (lambda self, x: hidden(self, x) @ self.b.weight, (3,), "in another operation"),
    "transposed": (lambda self, x: F.linear(hidden(self, x), self.b.weight.T), (3,), "in another operation"),
}


def fit_of(forward: Forward) -> tuple[nn.Module, Any]:
    torch.manual_seed(3)
    net = Own(forward, a=nn.Linear(3, K), b=nn.Linear(K, K))
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    guide = guides.BernoulliDropout(model, {"a.*": 0.0, "*": RATE})
    return net, pyrodrop.Fit(model, guide, None, torch.zeros(1, 3), {})


@pytest.mark.parametrize("name", RIGHT)
def test_the_moments_are_those_of_all_masks(name: str) -> None:
    forward, shape = RIGHT[name]
    net, fit = fit_of(forward)
    x = torch.randn(5, *shape)
    before = x.clone()
    free = {n: fit.model.free[n].detach() for n in fit.model.free}
    means = {n: fit.guide.loc[n].detach() for n in fit.guide.sites}
    f, p = [], []
    for mask in itertools.product([0.0, 1.0], repeat=K):
        weights = {**means, "b.weight": means["b.weight"] * torch.tensor(mask)}
        f.append(functional_call(copy.deepcopy(net), {**free, **weights}, (x.clone(),)))
        p.append((1 - RATE) ** sum(mask) * RATE ** (K - sum(mask)))
    functions, chances = torch.stack(f), torch.tensor(p).reshape(-1, *(1,) * (f[0].dim()))
    mean = (chances * functions).sum(0)
    spread = (chances * (functions - mean) ** 2).sum(0)
    got = fit.predict(x, method="analytic")
    torch.testing.assert_close(got.mean, mean)
    torch.testing.assert_close(got.spread**2, spread)
    torch.testing.assert_close(got.variance, spread + 0.25)
    assert torch.equal(x, before)
    with torch.inference_mode():
        torch.testing.assert_close(fit.predict(x, method="analytic").spread ** 2, spread)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_done_to_the_last_layers_output_is_seen(name: str) -> None:
    forward, shape, reason = REFUSED[name]
    _, fit = fit_of(forward)
    with pytest.raises(ValueError, match=f"method='analytic' is the closed form.*{reason}"):
        fit.predict(torch.randn(5, *shape), method="analytic")
