"""Weights that are computed of other parameters are refused by name, and are accepted once they are parameters again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

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
    "weight norm": (parametrizations.weight_norm, lambda m: parametrize.remove_parametrizations(m, "weight")),
    "weight norm by hook": (nn.utils.weight_norm, nn.utils.remove_weight_norm),
    "spectral norm by hook": (nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
    "pruned": (lambda m: prune.l1_unstructured(m, "weight", 0.5), lambda m: prune.remove(m, "weight")),
}


def model_of(net: nn.Module) -> models.NetworkModel:
    return models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_computed_weights_are_refused_by_name(kind: str) -> None:
    change, restore = KINDS[kind]
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    change(net[2])
    with pytest.raises(
        ValueError, match=r"a prior applies to a layer's weight itself.*2\.weight from other parameters"
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
