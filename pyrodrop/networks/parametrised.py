"""Weights that are computed of other parameters: weight norm, spectral norm, pruning and parametrisations of one's own.

    weight_norm      W = g v / |v|        parameters g, v
    spectral_norm    W = v / sigma(v)     parameter v

A prior on v, or on g, is none on W: what is trained and reported would be the posterior of numbers that no layer multiplies
with, and a dropped input unit of v is not one of W. So such layers are refused until their weight is a parameter again.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def check_parametrised(network: nn.Module) -> None:
    """Raise a ValueError, which names them, if weights to be trained are computed of other parameters.

    Layers whose parameters are all fixed (``requires_grad_(False)``) are accepted: nothing of them is inferred.
    """
    found = [
        f"{f'{name}.{weight}' if name else weight}: {remedy}"
        for name, module in network.named_modules()
        for weight, remedy in _computed(module)
        if any(parameter.requires_grad for parameter in _owners(module))
    ]
    if found:
        raise ValueError(
            "a prior is on a layer's weight itself, so weights must be parameters; this network computes weights of other "
            f"parameters, {'; '.join(found)}"
        )


def _computed(module: nn.Module) -> list[tuple[str, str]]:
    """Weights of one module that are computed of others, and how to make parameters of them."""
    if parametrize.is_parametrized(module):
        call = "torch.nn.utils.parametrize.remove_parametrizations"
        names: Any = module.parametrizations
        return [(name, f"call {call}(layer, {name!r})") for name in names]
    hooks: list[Any] = list(module._forward_pre_hooks.values())
    found = []
    for hook in hooks:
        if isinstance(hook, WeightNorm):
            found.append((hook.name, f"call torch.nn.utils.remove_weight_norm(layer, {hook.name!r})"))
        elif isinstance(hook, SpectralNorm):
            found.append((hook.name, f"call torch.nn.utils.remove_spectral_norm(layer, {hook.name!r})"))
        elif isinstance(hook, BasePruningMethod):
            name = hook._tensor_name
            found.append((name, f"call torch.nn.utils.prune.remove(layer, {name!r})"))
    return found


def _owners(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that a module's weights are computed of."""
    own = list(module.parameters(recurse=False))
    if parametrize.is_parametrized(module):
        parametrised: Any = module.parametrizations
        own += list(parametrised.parameters())
    return own
