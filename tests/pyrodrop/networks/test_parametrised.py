"""Weights that are computed of other parameters are refused by name, and are accepted once they are parameters again.

Those under weight norm are made parameters in the model's copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import pyrodrop
from pyrodrop import likelihoods, models, priors

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


def own(layer: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", Symmetric())


KINDS: dict[str, tuple[Callable[[nn.Module], object], Callable[[nn.Module], object]]] = {
    "spectral norm": (parametrizations.spectral_norm, lambda m: parametrize.remove_parametrizations(m, "weight")),
    "orthogonal": (parametrizations.orthogonal, lambda m: parametrize.remove_parametrizations(m, "weight")),
    "of one's own": (own, lambda m: parametrize.remove_parametrizations(m, "weight")),
    "spectral norm by hook": (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
    "pruned": (lambda m: prune.l1_unstructured(m, "weight", 0.5), lambda m: prune.remove(m, "weight")),
}
NORMS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "parametrisation": (parametrizations.weight_norm, "parametrizations.weight.original"),
    "hook": (nn.utils.weight_norm, "weight_"),
}


def effective(layer: nn.Module) -> Tensor:
    """W = g v / |v| of each output unit."""
    g, v = (p.detach() for n, p in layer.named_parameters() if n.endswith(("original0", "original1", "_g", "_v")))
    return g * v / v.flatten(1).norm(dim=1).reshape(g.shape)


def normed(kind: str, *layers: nn.Module) -> nn.Sequential:
    """Layers under weight norm, as a training leaves them: |v| is not g."""
    net = nn.Sequential(
        *(NORMS[kind][0](layer) if isinstance(layer, nn.Linear | nn.Conv1d) else layer for layer in layers)
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.5 + torch.rand_like(parameter))
    net(torch.randn(2, 3))  # which stores computed weights in the modules
    return net


def model_of(net: nn.Module) -> models.NetworkModel:
    return models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_computed_weights_are_refused_by_name(kind: str) -> None:
    change, restore = KINDS[kind]
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    change(net[2])
    with pytest.raises(
        ValueError, match=r"a prior applies to a layer's weight itself.*2\.weight: call torch\.nn\.utils.*'weight'\)"
    ):
        model_of(net)
    x = torch.randn(5, 3)
    expected = net.eval()(x).detach()
    restore(net[2])
    model = model_of(net)
    assert list(model.weight_sites()) == ["0.weight", "2.weight", "4.weight"]
    torch.testing.assert_close(model.outputs(model.weight_sites(), x).detach(), expected)


@pytest.mark.parametrize("change", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_fixed_layers_may_compute_theirs(change: Callable[[nn.Module], object]) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    change(net[2])
    net[2].requires_grad_(False)
    model = model_of(net.eval())
    x = torch.randn(5, 3)
    assert list(model.weight_sites()) == ["0.weight", "4.weight"]
    torch.testing.assert_close(model.outputs(model.weight_sites(), x).detach(), net(x).detach())


@pytest.mark.parametrize("kind", NORMS)
def test_weights_under_weight_norm_are_parameters_of_the_copy(kind: str) -> None:
    net, x = normed(kind, nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(5, 3)
    before, expected = {name: value.clone() for name, value in net.state_dict().items()}, net(x).detach()
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            assert list(model_of(net).weight_sites()) == ["0.weight", "2.weight", "4.weight"]
    model = model_of(net)
    sites = model.weight_sites()
    for name, value in sites.items():
        torch.testing.assert_close(value, effective(net[int(name[0])]))
    torch.testing.assert_close(model.outputs(sites, x).detach(), expected)
    assert model.in_features == 3
    model.reset_parameters()
    torch.testing.assert_close(net(x).detach(), expected)  # of the user's network, which is as it was
    torch.testing.assert_close(dict(net.state_dict()), before)
    net(x).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize("kind", NORMS)
def test_recurrent_weights_under_weight_norm(kind: str) -> None:
    layer = nn.LSTM(3, 4, batch_first=True)
    for name in ("weight_hh_l0", "weight_ih_l0"):
        NORMS[kind][0](layer, name)
    x = torch.randn(2, 5, 3)
    layer(x)
    model = models.from_module(layer, priors.Gaussian(), likelihoods.Gaussian(1.0), output=lambda out: out[0])
    torch.testing.assert_close(model.outputs(model.weight_sites(), x).detach(), layer(x)[0].detach())
    plain, doubled = nn.LSTM(3, 4, batch_first=True), {n: 2 * w for n, w in model.weight_sites().items()}
    plain.load_state_dict(doubled | {n: p for n, p in layer.named_parameters() if n.startswith("bias")})
    torch.testing.assert_close(model.outputs(doubled, x).detach(), plain(x)[0].detach())


@pytest.mark.parametrize("part", ["v", "tied"])
@pytest.mark.parametrize("kind", NORMS)
def test_weight_norm_that_restricts_weights_is_refused(kind: str, part: str) -> None:
    """With a fixed v a weight has no direction of its own, and with one v of two layers it shares it."""
    net = normed(kind, nn.Linear(3, 3), nn.Linear(3, 3))
    name = f"{NORMS[kind][1]}{'v' if kind == 'hook' else 1}"
    of, _, short = name.rpartition(".")
    v = net[0].get_parameter(name)
    if part == "v":
        v.requires_grad_(False)
    else:
        net[1].get_submodule(of).register_parameter(short, v)
    with pytest.raises(ValueError, match=r"a prior applies to a layer's weight itself.*0\.weight: call torch"):
        model_of(net)


@pytest.mark.parametrize("kind", NORMS)
def test_dropout_beside_weight_norm_is_read(kind: str) -> None:
    """Every draw is a pass by hand with one of the eight masks, at the weights g v / |v|."""
    net, x = normed(kind, nn.Linear(3, 3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, 1)), torch.randn(4, 3)
    settings: Any = {"likelihood": likelihoods.Gaussian(1.0), "num_data": 100}
    reading = pyrodrop.read(net, x, weight_decay=1e-4, **settings)
    masks = torch.cartesian_prod(*3 * [torch.tensor([0.0, 2.0])])
    hidden = (x @ effective(net[0]).T + net[0].bias.detach()).tanh()
    passes = torch.stack([(hidden * mask) @ effective(net[3]).T + net[3].bias.detach() for mask in masks])
    gaps = (reading.predict(x, 200).f[:, None] - passes).abs().amax((2, 3))
    assert float(gaps.amin(1).max()) < 1e-5
    assert len(gaps.argmin(1).unique()) == len(masks)
    with pytest.raises(
        ValueError, match=r"does not train these parameters of the network: 0\.weight, 3\.weight.*number"
    ):
        pyrodrop.read(net, x, weight_decay=torch.optim.SGD(net.parameters(), 0.1, weight_decay=1e-4), **settings)
