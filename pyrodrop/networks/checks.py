"""What must hold of a network before it is trained or predicts; each check says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from pyrodrop.inputs import Inputs, parts


def check_width(x: Inputs, in_features: int | tuple[int, ...] | None) -> None:
    """Raise a ValueError unless x has the width that a network's first layer says, or the shape of its images."""
    if in_features is None:
        return
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be one tensor, which is what this network takes; got a {type(x).__name__} of tensors")
    if isinstance(in_features, tuple):
        if x.shape[1:] != in_features or x.dim() != 1 + len(in_features):
            sizes = ", ".join(map(str, in_features))
            raise ValueError(f"x must have shape [N, {sizes}], images of the network's size; got {tuple(x.shape)}")
    elif x.dim() < 2 or x.shape[-1] != in_features:
        raise ValueError(
            f"x must have shape [N, {in_features}], the width of the network's input; got {tuple(x.shape)}"
        )


def runs(call: Callable[[], object], x: Inputs, what: str) -> None:
    """Call it; what torch raises becomes a ValueError that says what the network was called on.

    Args:
        call: runs the network.
        x: what it is called on.
        what: could not be done, such as "be trained".
    """
    try:
        call()
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith("the network of a model"):
            raise
        text = (str(error).strip().splitlines() or [""])[0]
        shapes = ", ".join(str(tuple(part.shape)) for part in parts(x))
        raise ValueError(f"the network cannot {what} on x of shape {shapes}: {type(error).__name__}: {text}") from error


def check_weights_kept(call: Callable[[Mapping[str, Tensor]], object], weights: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if a call of the network changes the weights that it is given, whose density is another then."""
    given = {name: value.detach().clone() for name, value in weights.items()}
    before = {name: value._version for name, value in given.items()}
    call(given)
    changed = [name for name, value in given.items() if value._version != before[name]]
    if changed:
        raise ValueError(
            "the network of a model leaves its weights as they are when it is called; this one changes "
            f"{', '.join(changed)} in place, as nn.Embedding(max_norm=...) does: the weight that predicts would not be the "
            "one that was drawn. Leave max_norm out, or scale a copy of the weight in the forward"
        )


def unused_weights(call: Callable[[Mapping[str, Tensor]], Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """The weights that a network's output does not depend on."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    with torch.enable_grad():
        total = call(leaves).sum()
    if not total.requires_grad:
        return list(leaves)
    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return [name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None]


def say_unused(network: nn.Module, weights: list[str]) -> str:
    """What to say of weights that the network computes without."""
    text = (
        "every weight with a prior must have a part in the network's output; this network computes without "
        f"{', '.join(weights)}. A layer that is not called can be left out of it, or its weights fixed "
        "(requires_grad_(False)); a layer that keeps a copy of its weights does not see the ones that are drawn"
    )
    owners = {network.get_submodule(name.rpartition(".")[0]) for name in weights}
    recurrent = sorted({type(owner).__name__ for owner in owners if isinstance(owner, nn.RNNBase)})
    return text + "".join(f"; in place of nn.{name} call nn.{name}Cell step by step" for name in recurrent)
