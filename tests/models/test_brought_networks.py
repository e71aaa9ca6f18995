"""Networks as users bring them: parameters that are shared, fixed or without a prior, and outputs of any form."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from tests.small import brought, normal

X = normal(30, 4, seed=1)
Y = normal(30, 4, seed=2)


def test_two_parameters_in_one_memory_are_refused() -> None:
    """The weights of an autoencoder, tied by ``.data``: copies of them have memory of their own."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))
    net[2].weight.data = net[0].weight.data.T
    with pytest.raises(
        ValueError, match=r"tied must be one parameter; got 0.weight and 2.weight, two with the same memory"
    ):
        brought(net)


@pytest.mark.parametrize("name", ["data", "y"])
def test_a_weight_with_the_name_of_a_site_of_the_data_is_refused(name: str) -> None:
    net = nn.Linear(4, 4)
    net.register_parameter(name, nn.Parameter(torch.ones(4, 4)))
    model = brought(net)
    with pytest.raises(RuntimeError, match=f"Multiple sample sites named '{name}'"):
        poutine.trace(model).get_trace(X)
    assert name in brought(net, prior={name: None, "*": priors.Gaussian()}).free


def test_a_network_without_anything_to_infer_is_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="prior must give at least one weight a prior"):
        brought(net, prior={"*": None})
    with pytest.raises(ValueError, match="needs a trained parameter"):
        brought(net.requires_grad_(False))
    with pytest.raises(ValueError, match="Call it once on a batch"):
        brought(nn.Sequential(nn.LazyLinear(4)))


def test_all_layers_that_see_x_are_found_and_a_residual_is_not_x() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x) * self.b(F.layer_norm(x, (4,)))
            return self.c(x + h)

    assert brought(Two()).first_weights() == ("a.weight", "b.weight")


def test_a_first_layer_that_cannot_be_found_is_asked_for_by_name() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if x.sum() > 0 else self.a(-x)

    with pytest.raises(ValueError, match="set its rate by name"):
        guides.BernoulliDropout(brought(Branches()), 0.2, mask_input=False)


class Raw(nn.Module):
    """A weight of one's own, used as ``x @ w``."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def test_a_weight_of_ones_own_says_which_axis_its_inputs_are() -> None:
    with pytest.raises(ValueError, match="'w'"):
        guides.BernoulliDropout(brought(Raw()), 0.3)
    with pytest.raises(ValueError, match=r"the network itself \(Raw\)"):
        brought(Raw()).reset_parameters()
    model = brought(Raw(), input_axes={"w": 0})
    run = pyrodrop.fit(model, guides.BernoulliDropout(model, 0.3), (X, Y), steps=1, lr=1e-6)
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    f = run.predict(x, 500).f[:, 0]  # the first input alone: its row of w, whole or not at all
    row = run.guide.loc["w"][0].detach()
    kept = (f - row).abs().amax(1) < 1e-6
    assert (kept | (f.abs().amax(1) == 0)).all()
    assert abs(kept.double().mean() - 0.7) < 4.5 * (0.21 / 500) ** 0.5
    with pytest.raises(ValueError, match="input_axes: no parameter is called 'v'"):
        brought(Raw(), input_axes={"v": 0})
    with pytest.raises(ValueError, match=r"an axis in 0 \.\.\. 1 for 'w', or None; got 2"):
        brought(Raw(), input_axes={"w": 2})


def test_weights_of_16_bits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"network\.float\(\).*got 0\.weight, torch\.bfloat16"):
        brought(nn.Sequential(nn.Linear(4, 4)).to(torch.bfloat16))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_network_whose_training_diverged_is_refused(value: float) -> None:
    """In a model, by its weights; `last_layer` also where finite weights give features that are not finite."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))
    with torch.no_grad():
        net[0].weight[1, 2] = value
    with pytest.raises(ValueError, match=r"0.weight of this Sequential must be finite; got 1 NaN .* index \[1, 2\]"):
        brought(net)
    steep = nn.Sequential(nn.Linear(4, 3), nn.Threshold(1e9, value), nn.Linear(3, 4))
    with pytest.raises(ValueError, match="the inputs of the last layer of net must be finite"):
        pyrodrop.last_layer(steep, (X, Y))


def test_modules_whose_parameters_cannot_be_replaced_are_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(TypeError, match="scripted, compiled"):
        brought(torch.compile(net))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="distributed"):
        brought(nn.DataParallel(net))
    with pytest.raises(TypeError, match="scripted"):
        brought(torch.jit.trace(net, X))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module; got a builtin"):
        brought(torch.relu)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got weight, torch.complex64"):
        brought(nn.Linear(4, 4, dtype=torch.complex64))
    with pytest.raises(TypeError, match="a module without priors.*got a model, Network"):
        brought(brought(net))


class OfAllRows(nn.Module):
    """A network that runs on all of its rows only, and writes into its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        if len(x) != 20:
            raise RuntimeError("a graph of 20 nodes")
        return self.layer(adjacency.add_(1) @ x.mul_(0.5))


def test_a_network_that_writes_into_its_inputs_is_refused_and_the_data_are_as_before() -> None:
    x, adjacency, y = torch.randn(20, 3), torch.eye(20), torch.randn(20, 1)
    before = x.clone(), adjacency.clone()
    model = models.from_module(OfAllRows(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match="outputs change"):
        pyrodrop.fit(model, guides.MeanField(model), ((x, adjacency), y), steps=2, engine="pyro")
    assert torch.equal(x, before[0])
    assert torch.equal(adjacency, before[1])


X = normal(30, 4, seed=1)
TWO = normal(30, 2, seed=2)


class Net(nn.Module):
    """Two outputs and an auxiliary loss, put together by `pack`."""

    def __init__(self, pack: Callable[..., Any]) -> None:
        super().__init__()
        self.body, self.head, self.pack = nn.Linear(4, 6), nn.Linear(6, 2), pack

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.body(x))
        return self.pack(loss=hidden.square().mean(), logits=self.head(hidden))


def test_an_output_that_is_none_is_refused_with_what_the_network_returns() -> None:
    net = Net(dict)
    for output, line in (
        (lambda out: out["logit"], r"network returns, a dict with 'loss', 'logits'; got KeyError: 'logit'"),
        (lambda out: out, r"returns one tensor, \[N, \.\.\.\]; it returned a dict"),
        (lambda out: out["loss"], r"one row per example, \[N, outputs\].*; got shape \(\)"),
    ):
        model = brought(net, output=output)
        with pytest.raises(ValueError, match=line):
            pyrodrop.fit(model, guides.Point(model), (X, TWO), steps=1)
        with pytest.raises(ValueError, match=line):
            pyrodrop.read(
                nn.Sequential(nn.Dropout(0.5), net), X, likelihood=likelihoods.Gaussian(4.0), prior=priors.Gaussian(),
                num_data=30, output=output,
            )  # fmt: skip


def test_parameters_that_are_not_the_networks_are_refused_and_fixed_ones_are_constants() -> None:
    """In a plain list, which registers nothing, or in the output: no step would change them."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.layers = nn.Linear(4, 6), [nn.Linear(6, 2)]

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](torch.tanh(self.body(x)))  # type: ignore[no-any-return]

    head, listed = nn.Linear(2, 2), Listed()
    for model in (brought(Net(dict), output=lambda out: head(out["logits"])), brought(listed)):
        with pytest.raises(
            ValueError, match="uses some that are not its own, such as those of a layer in a plain list"
        ):
            pyrodrop.fit(model, guides.Point(model), (X, TWO), steps=1)
    listed.layers[0].requires_grad_(False)
    model = brought(listed)
    assert pyrodrop.fit(model, guides.Point(model), (X, TWO), steps=1).history.isfinite().all()


def negative(out: Any) -> Tensor:
    return -out["logits"]  # type: ignore[no-any-return]


def test_files_know_which_output_is_taken(tmp_path: Path) -> None:
    net = Net(dict)

    def parts(output: Any) -> tuple[Any, Any]:
        model = brought(net, output=output)
        return model, guides.Point(model)

    for output, again, other in (
        (lambda out: out["logits"], lambda out: out["logits"], negative),
        (operator.itemgetter("logits"), operator.itemgetter("logits"), operator.itemgetter("loss")),
    ):
        run = pyrodrop.fit(*parts(output), (X, TWO), steps=1)
        path = run.save(tmp_path / "fit.safetensors")
        assert torch.equal(pyrodrop.Fit.load(path, *parts(again)).predict(X, 1).f, run.predict(X, 1).f)
        for wrong in (other, None):
            with pytest.raises(ValueError, match=r"model\.output"):
                pyrodrop.Fit.load(path, *parts(wrong))
