"""One call of a network with given values of its parameters, as ``torch.func.functional_call`` makes it."""

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
) -> Tensor:
    """The network's output at x.

    Args:
        network: whose parameters are buffers (`sites.freeze`); those that `values` leave out stay as they are.
        values: by canonical name.
        names: of every parameter one name for each of its places, all of which get its value.
        x: one tensor, or several that are its positional or named arguments.
        attends: whether it has PyTorch's attention layers, whose shortcuts transforms and lazy weights do not know.
    """
    named = {name: value for first, value in values.items() for name in names[first]}
    args, kwargs = arguments(x)
    with _ordinary_attention() if attends else nullcontext():
        if torch.jit.is_tracing():  # functional_call refuses to be traced by Pyro's jitted ELBOs
            with _holding(network, named):
                return network(*args, **kwargs)  # type: ignore[no-any-return]
        return functional_call(network, named, args, kwargs, tie_weights=False)  # type: ignore[no-any-return]


def of_traced_size(x: Inputs) -> Inputs:
    """x, which in a trace of torch.jit has the size that it has now: a plate's scale would stay that of the first batch."""
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
    """Have a network's buffers of these names be these tensors."""
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
    if isinstance(module, nn.RNNBase) and own in module._flat_weights_names:  # recurrent layers keep a list of theirs
        module._flat_weights[module._flat_weights_names.index(own)] = value  # type: ignore[index]


@contextmanager
def _ordinary_attention() -> Iterator[None]:
    """Have PyTorch's attention layers compute by their ordinary operations."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
