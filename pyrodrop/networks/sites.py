"""The parameters of a network by their roles.

    weights     two or more dimensions, trained        a prior each, or None: trained as points
    vectors     one dimension, trained                 likewise (biases, scales)
    fixed       ``requires_grad`` is False             stay as they are

A parameter of several modules (tied weights) is one, called by its first name; a call of the network is handed it in all of
its places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter


@dataclass(frozen=True)
class Parameters:
    """A network's parameters, by canonical name in the order of the network.

    Attributes:
        trained: those that require a gradient.
        fixed: names of those that do not.
        names: of every parameter one name for each place that it has, the canonical one first.
    """

    trained: dict[str, Tensor]
    fixed: tuple[str, ...]
    names: dict[str, tuple[str, ...]]

    @property
    def weights(self) -> list[str]:
        """Trained parameters of two or more dimensions."""
        return [name for name, value in self.trained.items() if value.dim() > 1]

    @property
    def vectors(self) -> list[str]:
        """The other trained parameters."""
        return [name for name, value in self.trained.items() if value.dim() <= 1]


def parameters_of(network: nn.Module) -> Parameters:
    """Read the parameters of a network.

    Raises:
        TypeError: no module, or one that was compiled or scripted or is spread over devices, whose parameters cannot be
            replaced.
        ValueError: a parameter that has no shape yet (``nn.LazyLinear`` and its kin), or of complex or 16-bit numbers.
    """
    _check_kind(network)
    canonical: dict[int, str] = {}
    values: dict[str, nn.Parameter] = {}
    names: dict[str, tuple[str, ...]] = {}
    for prefix, module in network.named_modules():  # a module that has several names is one place, replaced once
        for own, value in module._parameters.items():
            if value is not None:
                name = f"{prefix}.{own}" if prefix else own
                first = canonical.setdefault(id(value), name)
                names[first] = (*names.get(first, ()), name)
                values[first] = value
    shapeless = [name for name, value in values.items() if isinstance(value, UninitializedParameter)]
    if shapeless:
        raise ValueError(
            f"a network's parameters need shapes before it becomes a model; {', '.join(shapeless)} have none yet: call the "
            "network once on a batch, network(x[:2])"
        )
    complex_ = [name for name, value in values.items() if value.is_complex()]
    if complex_:
        raise ValueError(f"priors and posteriors are of real weights; {', '.join(complex_)} are of complex numbers")
    short = [name for name, value in values.items() if value.dtype in (torch.float16, torch.bfloat16)]
    if short:
        raise ValueError(
            "weights of 16 bits are too short for KL divergences and their sums; train in float32, network.float(), with "
            f"precision='bfloat16' for short matrix products; got {values[short[0]].dtype} for {', '.join(short)}"
        )
    return Parameters(
        trained={name: value for name, value in values.items() if value.requires_grad},
        fixed=tuple(name for name, value in values.items() if not value.requires_grad),
        names=names,
    )


def _check_kind(network: nn.Module) -> None:
    given: object = network
    if not isinstance(given, nn.Module):
        raise TypeError(f"the network of a model is a torch.nn.Module; got {type(given).__name__}")
    for module in network.modules():
        name = type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"a scripted or traced module computes with its own parameters; got {name}: give what it was made of"
            )
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) or hasattr(module, "_orig_mod"):
            raise TypeError(
                f"the network of a model is the plain module, compiled and moved here; got {name}: give what it "
                "wraps (its `module`, or `_orig_mod` after torch.compile)"
            )


def freeze(network: nn.Module) -> None:
    """Turn every parameter into a buffer, one for all of its names: a call gets their values from outside."""
    made: dict[int, Tensor] = {}
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                module.register_buffer(name, made.setdefault(id(parameter), parameter.detach().clone()))
