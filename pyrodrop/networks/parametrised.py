"""Weights that are computed from other parameters: weight norm, spectral norm, pruning and custom parametrisations.

    weight_norm      W = g v / |v|        parameters g, v
    spectral_norm    W = v / sigma(v)     parameter v

A prior on v or g is not a prior on W: the posterior would be that of numbers that no layer multiplies with, and dropping an
input unit of v does not drop it in W. Such layers are refused until their weight is a parameter again.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def check_parametrised(network: nn.Module) -> None:
    """Raise a ValueError that names the trained weights that are computed from other parameters.

    Layers whose parameters are all fixed (``requires_grad_(False)``) are accepted.
    """
    found = [
        f"{f'{name}.{weight}' if name else weight}: {remedy}"
        for name, module in network.named_modules()
        for weight, remedy in _computed(module)
        if any(parameter.requires_grad for parameter in _owners(module))
    ]
    if found:
        raise ValueError(
            "a prior applies to a layer's weight itself, so weights must be parameters; this network computes these weights "
            f"from other parameters: {'; '.join(found)}"
        )


def _computed(module: nn.Module) -> list[tuple[str, str]]:
    """The computed weights of one module, each with the call that turns it into a parameter."""
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
    """The parameters that a module's weights are computed from."""
    own = list(module.parameters(recurse=False))
    if parametrize.is_parametrized(module):
        parametrised: Any = module.parametrizations
        own += list(parametrised.parameters())
    return own
