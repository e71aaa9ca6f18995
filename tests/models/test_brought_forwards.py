"""Forwards of networks as users bring them: random, stateful, in place, or with examples that depend on each other."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from tests.small import brought, normal

X = normal(30, 4, seed=1)
Y = normal(30, 4, seed=2)
torch.manual_seed(0)  # of the networks below; RReLU draws nothing where all of its inputs are positive


class Forward(nn.Module):
    """One layer and something of one's own behind it."""

    def __init__(self, behind: Callable[[Forward, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.behind, self.calls = nn.Linear(4, 4), behind, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self, self.layer(x))


class DropPath(nn.Module):
    """Stochastic depth as image models have it."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * x.new_empty(len(x), 1).bernoulli_(0.9)


@pytest.mark.parametrize(
    "net",
    [
        Forward(lambda net, h: F.dropout(h, 0.3)),
        Forward(lambda net, h: h + 0.1 * torch.rand(4)),
        Forward(lambda net, h: h + random.gauss(0, 1)),
        Forward(lambda net, h: h + float(np.random.standard_normal())),
        nn.Sequential(nn.Linear(4, 4), DropPath(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.RReLU(), nn.Linear(4, 4)),
    ],
    ids=["F.dropout", "torch.rand", "random", "NumPy", "drop path", "RReLU"],
)
def test_noise_of_the_network_itself_is_refused_before_the_first_step(net: nn.Module) -> None:
    model = brought(net)
    with pytest.raises(ValueError, match="draws random numbers itself"):
        pyrodrop.fit(model, guides.Point(model), (X, Y), steps=1)


def count(net: Forward, h: Tensor) -> Tensor:
    net.calls += 1
    return h * min(1.0, net.calls / 400)  # a warm-up


def test_a_forward_with_a_counter_is_trained_by_pyro_and_counts_each_step_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = Forward(count).double()
    model, data = brought(net), (X.double(), Y.double())
    with caplog.at_level("INFO", "pyrodrop"):
        run = pyrodrop.fit(model, guides.Point(model), data, steps=320, lr=0.01)
    assert run.settings["engine"] == "pyro"
    assert "calls" in caplog.text
    assert run.model.network.calls == 320
    hand, other = [p.detach().clone().requires_grad_() for p in net.parameters()], Forward(count).double()
    adam = torch.optim.Adam(hand, lr=0.01)
    for _ in range(320):
        f = functional_call(other, {"layer.weight": hand[0], "layer.bias": hand[1]}, data[:1])
        loss = 2.0 * (f - data[1]).square().sum() + 0.5 * hand[0].square().sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
    torch.testing.assert_close(run.guide.mean()["layer.weight"], hand[0].detach(), rtol=1e-9, atol=1e-9)
    assert model.network.calls == 0


class Graph(nn.Module):
    """A graph network: the adjacency of all nodes is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", (torch.rand(30, 30) > 0.8).float() / 6)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.adjacency @ self.layer(x)


def test_examples_are_found_inside_a_network() -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:  # [N, 7, 3]
            h = self.b(self.a(x).transpose(0, 1))
            return self.c(h.transpose(0, 1).reshape(-1, 5)).reshape(len(x), -1)

    net = models.from_module(Inside(), priors.Gaussian(), likelihoods.Gaussian(1.0))
    found = net.properties(torch.randn(9, 7, 3))
    assert found.axes == {"a.weight": 0, "b.weight": 1, "c.weight": None}
    assert not found.mixes
    assert brought(Graph()).mixes_examples(X)
    mean = brought(Forward(lambda net, h: h - h.mean(0)))
    assert mean.mixes_examples(X)
    assert not mean.properties(X).whole
    assert brought(Forward(lambda net, h: h + torch.arange(len(h))[:, None])).mixes_examples(X)  # places of rows
    assert not brought(nn.Linear(4, 4)).mixes_examples(X)


def test_a_network_is_called_five_times_before_its_first_step() -> None:
    sizes: list[int] = []
    model = brought(Forward(lambda net, h: (sizes.append(len(h)), h)[1]))
    pyrodrop.fit(model, guides.Point(model), (X, Y), steps=1, engine="pyro")
    assert sizes[:6] == [2, 3, 3, 2, 3, 30]


def test_what_rows_that_are_alike_show_is_not_believed_of_others() -> None:
    largest = brought(Forward(lambda net, h: h - h.abs().amax(0)))
    x = X[:1] * 10.0 ** torch.arange(6)[:, None]  # whatever the weights, a later row is the largest
    assert not largest.mixes_examples(x[:1])  # one row cannot show it
    assert largest.mixes_examples(x)
    assert largest.mixes_examples(x[:1])


def test_a_network_that_changes_its_weights_as_it_is_called_is_refused() -> None:
    ids, y = torch.arange(12).reshape(6, 2), torch.zeros(6, 1)
    net = nn.Sequential(nn.Embedding(12, 4, max_norm=0.5), nn.Flatten(), nn.Linear(8, 1))
    model = models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(1.0))
    before = {name: w.clone() for name, w in model.weight_sites().items()}
    guide = guides.MeanField(model)
    with pytest.raises(ValueError, match=r"changes 0\.weight in place, as nn\.Embedding\(max_norm"):
        pyrodrop.fit(model, guide, (ids, y), steps=1)
    with pytest.raises(ValueError, match="in place"):
        model.properties(ids)
    for name, w in model.weight_sites().items():
        assert torch.equal(w, before[name])


@pytest.mark.parametrize(
    ("behind", "message"),
    [
        (lambda net, h: net.layer.weight.mul_(0.9) @ h[0] + h, "changes layer.weight in place"),
        (lambda net, h: h if torch.is_grad_enabled() else 2 * h, r"must not depend on torch.is_grad_enabled\(\)"),
        (lambda net, h: h + F.dropout(h, 0.3), "draws random numbers itself"),
    ],
    ids=["weights", "gradients", "noise"],
)
def test_what_a_network_does_in_training_alone_is_refused(
    behind: Callable[[Forward, Tensor], Tensor], message: str
) -> None:
    def trained(net: Forward, h: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and "weight" not in message):
            return behind(net, h) if net.training else h

    model = brought(Forward(trained))
    assert not model.mixes_examples(X)
    with pytest.raises(ValueError, match=message):
        pyrodrop.fit(model, guides.Point(model), (X, Y), steps=1)


class InPlace(nn.Module):
    """Adds the output of one layer to that of another in place, which torch.vmap cannot do if the second alone is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h += self.b(torch.tanh(x))
        return h


def test_a_change_in_place_of_what_is_not_drawn_by_what_is() -> None:
    net = InPlace()
    model = brought(net)
    run = pyrodrop.fit(model, guides.BernoulliDropout(model, {"a.*": 0.0, "*": 0.5}), (X, Y), steps=1, lr=1e-6)
    f = run.predict(X[:1], 3000).f[:, 0]
    a, b = run.guide.loc["a.weight"].detach(), run.guide.loc["b.weight"].detach()
    terms = b * torch.tanh(X[:1])
    mean = (a @ X[0] + run.model.free["a.bias"] + run.model.free["b.bias"]).detach() + 0.5 * terms.sum(1)
    sd = (0.25 * terms.square().sum(1)).sqrt()
    assert ((f.mean(0) - mean).abs() < 4.5 * sd / 3000**0.5).all()
    torch.testing.assert_close(f.std(0), sd, rtol=0.08, atol=0)


def test_noise_per_example_needs_examples_that_are_apart() -> None:
    for net in (Graph(), Forward(lambda net, h: h - h.mean(0))):
        model = brought(net)
        for estimator in ("local", "per_example"):
            with pytest.raises(ValueError, match="in this network the output .*use estimator='shared'"):
                pyrodrop.fit(model, guides.MeanField(model), (X, Y), steps=1, estimator=estimator)  # type: ignore[arg-type]
        assert len(pyrodrop.fit(model, guides.MeanField(model), (X, Y), steps=2).losses) == 2


def test_noise_per_example_needs_examples_that_are_apart_in_training() -> None:
    """Under BatchNorm in training mode the noise of one example would be in the others' statistics."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    data = (torch.randn(8, 3), torch.randn(8, 1))
    for estimator in ("local", "per_example"):
        model = brought(net.train())
        with pytest.raises(ValueError, match="in training mode.* use estimator='shared'"):
            pyrodrop.fit(model, guides.MeanField(model), data, steps=1, estimator=estimator)  # type: ignore[arg-type]
        model = brought(net.eval())
        assert pyrodrop.fit(model, guides.MeanField(model), data, steps=1, estimator=estimator).history.isfinite().all()  # type: ignore[arg-type]


def test_a_network_of_all_rows_has_no_minibatches() -> None:
    model = brought(Graph())
    with pytest.raises(ValueError, match="batch_size"):
        pyrodrop.fit(model, guides.Point(model), (X, Y), steps=1, batch_size=7)


class Recomputing(nn.Module):
    """A block whose activations are computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last, self.reentrant = nn.Linear(4, 5), nn.Linear(5, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.first, x, use_reentrant=self.reentrant))  # type: ignore[no-any-return]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_network_that_recomputes_activations_is_refused(reentrant: bool) -> None:
    """Recomputed, they would be with the weights that the model was made with."""
    model = brought(Recomputing(reentrant))
    with pytest.raises(ValueError, match="switch gradient checkpointing off"):
        pyrodrop.fit(model, guides.MeanField(model), (X, Y), steps=2)
