"""The parameters of a network by role.

    weights     two or more dimensions, trained        a prior, or a point estimate
    vectors     at most one dimension, trained         a prior, or a point estimate (biases, scales)
    fixed       ``requires_grad`` is False             constant

A parameter of several modules (tied weights) is one parameter under its first name; a call sets it under all of its names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from pyrodrop.checks import HasWeights, shown
from pyrodrop.networks.sparse_matrix import is_sparse_matrix

_log = logging.getLogger("pyrodrop")

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
        ValueError: a parameter is uninitialised (``nn.LazyLinear``), complex or sparse; a buffer is sparse and no matrix.
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
    shapeless = [name for name, value in values.items() if isinstance(value, UninitializedParameter)]
    if shapeless:
        raise ValueError(
            f"the network has uninitialised parameters: {', '.join(shapeless)}. Call it once on a batch, network(x[:2]), to "
            "give them their shapes"
        )
    laid_out = dict(network.named_parameters()) | dict(network.named_buffers())
    sparse = [n for n, v in laid_out.items() if v.layout != torch.strided and (n in values or not is_sparse_matrix(v))]
    if sparse:
        raise ValueError(
            "parameters must be dense tensors, and buffers dense tensors or sparse matrices of numbers; others are "
            f"{', '.join(sparse)}: register name.to_dense()"
        )
    complex_ = [name for name, value in values.items() if value.is_complex()]
    if complex_:
        raise ValueError(f"weights must be real; {', '.join(complex_)} are complex")
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
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                "the parameters of a scripted or traced module cannot be replaced; pass the module that it was made from; "
                f"got {name}"
            )
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) or hasattr(module, "_orig_mod"):
            raise TypeError(
                "the network of a model must be the plain module, pyrodrop compiles and moves it itself; pass the wrapped "
                f"module (`module`, or `_orig_mod` after torch.compile); got {name}"
            )


def lengthen(network: nn.Module) -> None:
    """Turn all parameters and buffers of 16 bits into float32, tied ones into one, and log a warning if there are any.

    16 bits are not precise enough for KL divergences, nor for the small steps of training.
    """
    short = [parameter for parameter in network.parameters() if parameter.dtype in SHORT]
    if short:
        _log.warning(
            "the model computes in float32 copies of the network's %s weights, which stay as they are: 16 bits are not "
            "precise enough for KL divergences",
            str(short[0].dtype).removeprefix("torch."),
        )
    for parameter in short:
        parameter.data = parameter.data.float()
    made: dict[int, Tensor] = {}
    for module in network.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.dtype in SHORT:
                module._buffers[name] = made.setdefault(id(buffer), buffer.float())


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
