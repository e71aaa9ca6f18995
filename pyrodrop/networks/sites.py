"""The parameters of a network by role.

    weights     two or more dimensions, trained        a prior, or a point estimate
    vectors     at most one dimension, trained         a prior, or a point estimate (biases, scales)
    fixed       ``requires_grad`` is False             constant

A parameter of several modules (tied weights) is one parameter under its first name; a call sets it under all of its names.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from pyrodrop.arguments import shown


@dataclass(frozen=True)
class Parameters:
    """A network's parameters, by canonical name in the order of the network.

    Attributes:
        trained: the parameters that require a gradient.
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
        TypeError: not a module, or one that is compiled, scripted or distributed over devices, whose parameters cannot be
            replaced.
        ValueError: a parameter is uninitialised (``nn.LazyLinear``), complex, or of a 16-bit dtype.
    """
    _check_kind(network)
    canonical: dict[int, str] = {}
    values: dict[str, nn.Parameter] = {}
    names: dict[str, tuple[str, ...]] = {}
    for prefix, module in network.named_modules():  # a module with several names appears once
        for own, value in module._parameters.items():
            if value is not None:
                name = f"{prefix}.{own}" if prefix else own
                first = canonical.setdefault(id(value), name)
                names[first] = (*names.get(first, ()), name)
                values[first] = value
    shapeless = [name for name, value in values.items() if isinstance(value, UninitializedParameter)]
    if shapeless:
        raise ValueError(
            f"the network has uninitialised parameters: {', '.join(shapeless)}. Call it once on a batch, network(x[:2]), to "
            "give them their shapes"
        )
    complex_ = [name for name, value in values.items() if value.is_complex()]
    if complex_:
        raise ValueError(f"weights must be real; {', '.join(complex_)} are complex")
    short = [name for name, value in values.items() if value.dtype in (torch.float16, torch.bfloat16)]
    if short:
        raise ValueError(
            "weights must be float32 or float64, as 16 bits are not precise enough for KL divergences; use network.float(), "
            f"and precision='bfloat16' for 16-bit matrix products; got {values[short[0]].dtype} for {', '.join(short)}"
        )
    return Parameters(
        trained={name: value for name, value in values.items() if value.requires_grad},
        fixed=tuple(name for name, value in values.items() if not value.requires_grad),
        names=names,
    )


def _check_kind(network: nn.Module) -> None:
    given: object = network
    if not isinstance(given, nn.Module):
        raise TypeError(f"the network, net, of a model must be a torch.nn.Module; got {shown(given)}")
    for module in network.modules():
        name = type(module).__name__
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


def freeze(network: nn.Module) -> None:
    """Turn every parameter into a buffer, tied ones into one, so that a call can set their values."""
    made: dict[int, Tensor] = {}
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                module.register_buffer(name, made.setdefault(id(parameter), parameter.detach().clone()))
