"""Call a network with given values of its parameters, like ``torch.func.functional_call``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pyrodrop.inputs import Inputs, arguments, mapped


def call(
    network: nn.Module,
    values: Mapping[str, Tensor],
    names: Mapping[str, tuple[str, ...]],
    x: Inputs,
    *,
    attends: bool = False,
    recurs: bool = False,
) -> Tensor:
    """The network's output at x.

    Args:
        network: a module whose parameters are buffers (`sites.freeze`). Buffers that `values` omits keep their value.
        values: parameter values by canonical name.
        names: all names of every parameter, by its canonical name; a tied parameter gets its value under each.
        x: a tensor, or a tuple or mapping of tensors that are the positional or keyword arguments.
        attends: whether the network has PyTorch's attention layers; their fast path does not support function transforms
            and lazy weights, so it is disabled.
        recurs: whether it has PyTorch's recurrent layers. cuDNN computes their gradients in training mode alone, in which
            they draw masks, so it is disabled for gradients.

    Raises:
        RuntimeError: with gradients, the network recomputes activations (`torch.utils.checkpoint`). That would happen in the
            backward pass, after this call, with other values of the parameters.
    """
    if not torch.is_grad_enabled():
        return _call(network, values, names, x, attends)
    with torch.autograd.graph.disable_saved_tensors_hooks(RECOMPUTES), _without_cudnn() if recurs else nullcontext():
        return _call(network, values, names, x, attends)


RECOMPUTES = (
    "the network of a model must not recompute its activations (torch.utils.checkpoint), which would happen after the call, "
    "with other weights than the sampled ones: switch gradient checkpointing off"
)


def _call(
    network: nn.Module, values: Mapping[str, Tensor], names: Mapping[str, tuple[str, ...]], x: Inputs, attends: bool
) -> Tensor:
    named = {name: value for first, value in values.items() for name in names[first]}
    args, kwargs = arguments(x)
    with _ordinary_attention() if attends else nullcontext():
        if torch.jit.is_tracing():  # Pyro's jitted ELBOs cannot trace functional_call
            with _holding(network, named):
                return network(*args, **kwargs)  # type: ignore[no-any-return]
        return functional_call(network, named, args, kwargs, tie_weights=False)  # type: ignore[no-any-return]


def of_traced_size(x: Inputs) -> Inputs:
    """Under torch.jit tracing, x with its current sizes as constants, so that a batch of another size is traced again.

    Otherwise the scale of the data plate would stay that of the first batch. Without tracing, x itself.
    """
    if not torch.jit.is_tracing():
        return x

    def fixed(part: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # fixed sizes are what is wanted
            sizes = [int(size) for size in part.shape]
        return part.reshape(sizes)

    return mapped(fixed, x)  # type: ignore[no-any-return]


@contextmanager
def _holding(network: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace the buffers of these names by the given tensors within the block."""
    places = [(network.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in values]
    before = [module._buffers[own] for module, own in places]
    try:
        for (module, own), value in zip(places, values.values(), strict=True):
            _put(module, own, value)
        yield
    finally:
        for (module, own), old in zip(places, before, strict=True):
            _put(module, own, old)


def _put(module: nn.Module, own: str, value: Tensor | None) -> None:
    module._buffers[own] = value
    if isinstance(module, nn.RNNBase) and own in module._flat_weights_names:  # recurrent layers keep a second list
        module._flat_weights[module._flat_weights_names.index(own)] = value  # type: ignore[index]


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Disable cuDNN within the block; without a GPU that changes nothing."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextmanager
def _ordinary_attention() -> Iterator[None]:
    """Disable the fast path of PyTorch's attention layers within the block."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
