"""Checks of a network before training and prediction; each error states what is wrong and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

from pyrodrop.inputs import Inputs, parts
from pyrodrop.networks.sites import about_casts


def check_width(x: Inputs, in_features: int | tuple[int, ...] | None) -> None:
    """Raise a ValueError unless x has the width of the network's first layer, or the shape of its images."""
    if in_features is None:
        return
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a single tensor for this network; got a {type(x).__name__} of tensors")
    if isinstance(in_features, tuple):
        if x.shape[1:] != in_features or x.dim() != 1 + len(in_features):
            sizes = ", ".join(map(str, in_features))
            hint = ": add the axis of channels, x[:, None]" if x.shape[1:] == in_features[1:] else ""
            raise ValueError(
                f"x must have shape [N, {sizes}], the image shape of the network; got {tuple(x.shape)}{hint}"
            )
    elif x.dim() < 2 or x.shape[-1] != in_features:
        raise ValueError(
            f"x must have shape [N, {in_features}], the width of the network's input; got {tuple(x.shape)}"
        )


def width_of(net: nn.Module) -> int | None:
    """The width of x if the first layer is an nn.Linear."""
    while isinstance(net, nn.Sequential) and len(net):
        net = net[0]
    return net.in_features if type(net) is nn.Linear else None


def cannot_run(x: Inputs, error: Exception, why: str = "", *, doing: str = "be called", together: bool = False) -> str:
    """The error message for a network that raises `error` on x.

    Args:
        x, error: the inputs, and what it raised.
        why: the end of the message.
        doing: what it cannot do.
        together: whether it needs all of its examples at once.
    """
    shapes = ", ".join(str(list(part.shape)) for part in parts(x))
    if together:
        why = ". It needs all of its examples at once: predict at as many as it was trained on."
    return f"the network cannot {doing} on x of shape {shapes}: {type(error).__name__}: {first_line(error)}{why}"


def wrong_inputs(x: Inputs, error: Exception) -> str:
    """The error message for an x that no rows of can be inputs of the network."""
    text = first_line(error)
    flat = isinstance(x, Tensor) and x.dim() == 3 and ("channels" in text or "conv2d" in text)
    hint = ": images need an axis of channels, such as x[:, None]" if flat else about_casts(text)
    return cannot_run(
        x,
        error,
        "; x must have one row per example, [N, ...], or be a tuple or mapping of such tensors, the arguments of the "
        f"network's forward{hint}",
    )


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [""])[0]


def say_unused(
    network: nn.Module,
    call: Callable[[Mapping[str, Tensor]], Tensor],
    weights: Mapping[str, Tensor],
    unused: Collection[str],
) -> str:
    """The error message about weights whose gradient does not exist: those that change the output, if there are any, or
    those that do not.

    Args:
        network, weights: the network and values of all weights.
        call: maps such values to outputs.
        unused: names of the weights without a gradient.
    """
    before = call(weights)
    stepped = [name for name in unused if not torch.equal(call({**weights, name: -weights[name]}), before)]
    if stepped:
        return (
            f"these weights have a prior and change the output, but have no gradient: {', '.join(stepped)}. The network "
            "uses them in steps (argmax, topk, a comparison, rounding) or detaches them, so that training cannot learn "
            "them: fix them (requires_grad_(False)), or make the output depend on them smoothly"
        )
    text = (
        f"these weights have a prior but do not affect the output: {', '.join(unused)}. Remove a layer that is never "
        "called, or fix its weights (requires_grad_(False)); a layer that computes with a copy of its weights ignores the "
        "sampled ones"
    )
    owners = {network.get_submodule(name.rpartition(".")[0]) for name in unused}
    recurrent = sorted({type(owner).__name__ for owner in owners if isinstance(owner, nn.RNNBase)})
    return text + "".join(f"; instead of nn.{name}, call nn.{name}Cell for every step" for name in recurrent)
