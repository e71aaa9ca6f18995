"""Call a network with one set of parameter values, like ``torch.func.functional_call``, or with many sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from pyro.distributions.util import broadcast_shape
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.checks import Inputs, arguments, instance
from pyrodrop.devices import products_of_float32

_CUDNN, _ATTENTION = torch.backends.cudnn, torch.backends.mha
Output = Callable[[Any], Tensor]  # from what a network returns to the input of the likelihood


class Unfit(ValueError):
    """The network runs, but does not meet the requirements of a model."""


def call(
    network: nn.Module,
    values: Mapping[str, Tensor],
    names: Mapping[str, tuple[str, ...]],
    x: Inputs,
    output: Output | None = None,
) -> Tensor:
    """The network's output at x.

    The fast path of PyTorch's attention layers, which supports neither function transforms nor lazy weights, is disabled.
    For recurrent layers TensorFloat-32, their default, is disabled, and with gradients cuDNN, too: it computes gradients
    only in training mode, in which the layers draw masks.

    Args:
        network: a module whose parameters are buffers (`sites.freeze`). Buffers that `values` omits keep their value.
        names: all names of every parameter, by its canonical name; a tied parameter gets its value under each.
        x: a tensor, or a tuple or mapping of tensors that are the positional or keyword arguments.
        output: function from the value that the network returns to a tensor; None for a network that returns a tensor.

    Raises:
        Unfit: `output` fails, or the result is not a single tensor.
        RuntimeError: with gradients, the network has hooks on saved tensors.
    """
    gradients, (args, kwargs) = torch.is_grad_enabled(), arguments(x)
    named = {name: value for first, value in values.items() for name in names[first]}
    attends, recurs = (
        any(isinstance(m, kind) for m in network.modules()) for kind in (nn.MultiheadAttention, nn.RNNBase)
    )
    with (
        torch.autograd.graph.disable_saved_tensors_hooks(RECOMPUTES) if gradients else nullcontext(),
        products_of_float32() if recurs else nullcontext(),
        _off(lambda: _CUDNN.enabled, partial(setattr, _CUDNN, "enabled")) if recurs and gradients else nullcontext(),
        _off(_ATTENTION.get_fastpath_enabled, _ATTENTION.set_fastpath_enabled) if attends else nullcontext(),
    ):
        return taken(functional_call(network, named, args, kwargs, tie_weights=False), output)


def check_function(output: Any) -> Output:
    """The function `output` of a model; a TypeError if it cannot be called, or is a module, which would not be trained."""
    if isinstance(output, nn.Module):
        raise TypeError(
            "output must be a function of what the network returns, such as lambda out: out['logits']; got a "
            f"{type(output).__name__}: a module belongs into the network, where its weights have priors and are trained"
        )
    return instance(output, Callable, "output", "a function of what the network returns")  # type: ignore[no-any-return]


def taken(returned: Any, output: Output | None) -> Tensor:
    """The input of the likelihood in the value that a network returns."""
    keys = f" with {', '.join(map(repr, returned))}" if isinstance(returned, Mapping) else ""
    try:
        chosen: Any = returned if output is None else output(returned)
    except (LookupError, AttributeError, TypeError) as error:
        raise Unfit(
            "output must be a function that takes one tensor out of what the network returns, a "
            f"{type(returned).__name__}{keys}; got {type(error).__name__}: {error}"
        ) from error
    if isinstance(chosen, Tensor):
        return chosen
    if output is not None:
        raise Unfit(
            f"output must be a function that returns one tensor, [N, ...]; it returned a {type(chosen).__name__}"
        )
    raise Unfit(
        f"the network of a model must return a single tensor, [N, ...]; got a {type(chosen).__name__}{keys}: pass output=, "
        "a function that takes one tensor out of it, such as lambda out: out[0]"
    )


RECOMPUTES = (
    "the network of a model must not compute activations again (torch.utils.checkpoint), or have other hooks on saved "
    "tensors, which run after the call, with other weights than the sampled ones: switch gradient checkpointing off"
)


@contextmanager
def _off(get: Callable[[], bool], put: Callable[[bool], None]) -> Iterator[None]:
    """Switch a setting of PyTorch off within the block."""
    before = get()
    put(False)
    try:
        yield
    finally:
        put(before)


def for_each(
    call: Callable[[dict[str, Tensor]], Tensor],
    weights: Mapping[str, Tensor],
    *,
    mapped: bool = True,
    randomness: Literal["error", "different"] = "error",
) -> Tensor:
    """The stacked results for all sets of weights, by `torch.vmap` or, if vmap does not support the network, by a loop.

    Args:
        weights: tensors ``[T, ...]`` by name, one set of weights per row.
        mapped: False to use the loop without trying vmap.

    Returns:
        ``[T, ...]``.
    """
    if mapped:
        try:
            with sdpa_kernel(SDPBackend.MATH):
                return torch.vmap(call, randomness=randomness)(dict(weights))
        except RuntimeError:
            pass  # such as an in-place change of an unbatched tensor by a batched one, which the loop can do
    count = len(next(iter(weights.values())))
    return torch.stack([call({name: value[i] for name, value in weights.items()}) for i in range(count)])


def batch_shape(weights: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> torch.Size:
    """The leading dimensions of sampled weights, which `initial` values of the weights do not have."""
    return torch.Size(broadcast_shape(*(weights[n].shape[: weights[n].dim() - w.dim()] for n, w in initial.items())))
