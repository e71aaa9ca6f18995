"""The parameters of a network by role, and new initial values of them.

    weights     two or more dimensions, trained        a prior, or a point estimate
    vectors     at most one dimension, trained         a prior, or a point estimate (biases, scales)
    fixed       ``requires_grad`` is False             constant

A parameter of several modules (tied weights) is one parameter under its first name; a call sets it under all of its names.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from pyrodrop import checks
from pyrodrop.checks import HasWeights, shown
from pyrodrop.devices import seeded

SHORT = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Parameters:
    """A network's parameters, by canonical name in the order of the network.

    Attributes:
        fixed: names of the parameters that do not require a gradient.
        names: all names of every parameter, the canonical one first.
    """

    trained: dict[str, Tensor]
    fixed: tuple[str, ...]
    names: dict[str, tuple[str, ...]]

    @property
    def weights(self) -> list[str]:
        """Names of the trained parameters with two or more dimensions."""
        return [name for name, value in self.trained.items() if value.dim() > 1]

    @property
    def vectors(self) -> list[str]:
        """Names of the other trained parameters."""
        return [name for name, value in self.trained.items() if value.dim() <= 1]


def parameters_of(network: nn.Module) -> Parameters:
    """Read the parameters of a network.

    Raises:
        TypeError: not a module; a model, which has priors already; or a module that is compiled, scripted or distributed
            over devices, whose parameters cannot be replaced.
        ValueError: a parameter is uninitialised (``nn.LazyLinear``), complex, sparse or of 16 bits; a buffer is sparse.
    """
    _check_kind(network)
    canonical: dict[int, str] = {}
    values: dict[str, nn.Parameter] = {}
    names: dict[str, tuple[str, ...]] = {}
    for prefix, module in network.named_modules():  # a module with several names appears once
        for short, value in module._parameters.items():
            if value is not None:
                name = f"{prefix}.{short}" if prefix else short
                first = canonical.setdefault(id(value), name)
                names[first] = (*names.get(first, ()), name)
                values[first] = value
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())
    for name, value in tensors.items():
        if isinstance(value, UninitializedParameter):
            raise ValueError(
                f"the network has uninitialised parameters, such as {name}. Call it once on a batch, network(x[:2]), to "
                "give them their shapes"
            )
        if value.layout != torch.strided or value.dtype in SHORT or (name in names and value.is_complex()):
            raise ValueError(
                "weights and buffers must be dense tensors of float32 or float64, which network.float() and "
                f"tensor.to_dense() make; got {name}, {value.dtype}, {value.layout}"
            )
    return Parameters(
        trained={name: value for name, value in values.items() if value.requires_grad},
        fixed=tuple(name for name, value in values.items() if not value.requires_grad),
        names=names,
    )


def _check_kind(network: nn.Module) -> None:
    value: object = network
    if not isinstance(value, nn.Module):
        raise TypeError(f"the network, net, of a model must be a torch.nn.Module; got {shown(value)}")
    for module in network.modules():
        name = type(module).__name__
        if isinstance(module, HasWeights):
            raise TypeError(
                "the network of a model must be a module without priors, such as a torch.nn.Sequential; got a model, "
                f"{name}, which has priors and a likelihood already"
            )
        wrapped = nn.DataParallel | nn.parallel.DistributedDataParallel | torch.jit.ScriptModule
        if isinstance(module, wrapped) or hasattr(module, "_orig_mod"):
            raise TypeError(
                "the network of a model must be the plain module that it was made from, not one that is scripted, compiled "
                f"or distributed over devices, whose parameters cannot be replaced; got {name}"
            )


def freeze(network: nn.Module) -> None:
    """Turn every parameter into a buffer, tied ones into one, so that a call can set their values."""
    made: dict[int, Tensor] = {}
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                module.register_buffer(name, made.setdefault(id(parameter), parameter.detach().clone()))


def thaw(
    network: nn.Module, names: Mapping[str, tuple[str, ...]], values: Mapping[str, Tensor], fixed: Collection[str]
) -> None:
    """Turn the buffers that `freeze` made back into parameters, tied ones into one.

    Args:
        names: all names of every parameter, by its first name.
        values: values by first name; parameters without an entry keep the value of their buffer.
        fixed: first names of the parameters that do not require a gradient.
    """
    for first, others in names.items():
        value = values[first] if first in values else network.get_buffer(first)
        parameter = nn.Parameter(value.detach().clone(), requires_grad=first not in fixed)
        for name in others:
            prefix, _, short = name.rpartition(".")
            module = network.get_submodule(prefix)
            del module._buffers[short]
            setattr(module, short, parameter)  # recurrent layers update their list of weights in __setattr__


def starting_from(seed: int | None) -> AbstractContextManager[object]:
    """Seed the generators for the initial values that the block draws, and restore the caller's random state afterwards.

    With None the block draws from torch's generator, and changes its state.

    Raises:
        TypeError, ValueError: `seed` is no whole number, or negative.
    """
    return nullcontext() if seed is None else seeded(checks.seed(seed), torch.empty(0).device)


def started_anew(model: Any) -> Any:
    """A copy of a model with new initial values, drawn by its ``reset_parameters()`` from torch's generator.

    Raises:
        TypeError: the model has no such method.
        ValueError: a module of its network has parameters and no ``reset_parameters()``; the message names it.
    """
    if isinstance(model, type) or not callable(getattr(model, "reset_parameters", None)):
        raise TypeError(
            f"new initial weights need a model with a method reset_parameters(); {type(model).__name__} has none: pass "
            "lists of models and guides with initial weights of their own"
        )
    made = copy.deepcopy(model)
    made.reset_parameters()
    return made


def new_values(network: nn.Module, names: dict[str, tuple[str, ...]]) -> dict[str, Tensor]:
    """New values of the parameters from ``reset_parameters()`` of the modules that own them, with torch's generator.

    Args:
        network: a module, whose parameters may be buffers (`sites.freeze`); it is not changed.
        names: all names of every parameter to draw, by its canonical name. A tied parameter takes its first owner's value.

    Raises:
        ValueError: a module that owns one of them has no ``reset_parameters`` method.
    """
    network = copy.deepcopy(network)
    freeze(network)
    thaw(network, {name: (name,) for all_names in names.values() for name in all_names}, {}, fixed=())
    owners = [(name, m, _reset(m)) for name, m in network.named_modules() if [*m.parameters(recurse=False)]]
    silent = sorted(f"{name or 'the network itself'} ({type(m).__name__})" for name, m, reset in owners if not reset)
    if silent:
        raise ValueError(
            "new initial values come from each module's reset_parameters(), which these modules do not have: "
            f"{', '.join(silent)}. Add the method, or build each model yourself and pass lists of models and guides"
        )
    with torch.no_grad():
        for _, module, reset in owners:
            getattr(module, reset)()
    return {first: network.get_parameter(first).detach() for first in names}


def _reset(module: nn.Module) -> str:
    """The name of a module's initialisation method; empty if it has none."""
    return next((n for n in ("reset_parameters", "_reset_parameters") if callable(getattr(module, n, None))), "")
