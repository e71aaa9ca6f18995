"""Checks of a network before training and prediction; each error states what is wrong and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from pyrodrop.inputs import Inputs, parts
from pyrodrop.networks.call import RECOMPUTES, Unfit


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


def runs(call: Callable[[], object], x: Inputs, what: str) -> None:
    """Run `call` and turn any exception into a ValueError that names the shape of x.

    Args:
        call: runs the network.
        x: the inputs that it runs on.
        what: the action that fails, for the message: "be trained".
    """
    try:
        call()
    except Unfit:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith("the network of a model"):
            raise
        text = (str(error).strip().splitlines() or [""])[0]
        shapes = ", ".join(str(tuple(part.shape)) for part in parts(x))
        raise ValueError(f"the network cannot {what} on x of shape {shapes}: {type(error).__name__}: {text}") from error


def cannot_run(x: Inputs, together: bool, error: Exception) -> str:
    """The error message for a network that raises `error` on x; `together` if it needs all of its examples at once."""
    shapes = ", ".join(str(list(part.shape)) for part in parts(x))
    text = (str(error).strip().splitlines() or [""])[0]
    why = " It needs all of its examples at once: predict at as many as it was trained on." if together else ""
    return f"the network cannot be called on x of shape {shapes}: {type(error).__name__}: {text}.{why}"


def check_weights_kept(call: Callable[[Mapping[str, Tensor]], object], weights: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if the network changes its weights in place: their density would be that of other values."""
    given = {name: value.detach().clone() for name, value in weights.items()}
    before = {name: value._version for name, value in given.items()}
    call(given)
    changed = [name for name, value in given.items() if value._version != before[name]]
    if changed:
        raise ValueError(
            "the network of a model must not change its weights when it is called; this network changes "
            f"{', '.join(changed)} in place, as nn.Embedding(max_norm=...) does, so that its output would not be that of "
            "the sampled weights. Remove max_norm, or scale a copy of the weight in the forward"
        )


def check_no_others(call: Callable[[Mapping[str, Tensor]], Tensor], values: Mapping[str, Tensor], x: Inputs) -> None:
    """Raise a ValueError if parameters besides those of the network take part: nothing would train them.

    Such a parameter is there in every call, unlike what a forward makes to differentiate by.

    Args:
        call: runs the network on x with values of all of its parameters.
        values: of these.
        x: the inputs, which a forward may differentiate by.
    """
    with torch.enable_grad():
        calls = [_leaves(call({name: value.detach() for name, value in values.items()})) for _ in range(2)]
    if any(one is other for one in calls[0] for other in calls[1] if all(one is not part for part in parts(x))):
        raise ValueError(
            "the network of a model must have all parameters that it uses, as nothing would train others; this one uses "
            "some that are not its own, such as those of a layer in a plain list, of another module, or in `output`: "
            "register them in the network, or fix them (requires_grad_(False))"
        )


def _leaves(output: Tensor) -> list[Tensor]:
    """The tensors that the gradient of an output would reach."""
    found, seen, nodes = [], set(), [output.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            found += [node.variable] if hasattr(node, "variable") else []
    return found


def unused_weights(call: Callable[[Mapping[str, Tensor]], Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Names of the weights that do not affect the network's output: their gradient does not exist.

    Raises:
        ValueError: the network has hooks on saved tensors.
    """
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    try:
        with torch.enable_grad():
            total = call(leaves).sum()
        if not total.requires_grad:
            return list(leaves)
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    except RuntimeError as error:
        if str(error) == RECOMPUTES or "use_reentrant" in str(error):
            raise ValueError(RECOMPUTES) from error
        raise
    return [name for name, gradient in zip(leaves, gradients, strict=True) if gradient is None]


def say_unused(
    network: nn.Module,
    call: Callable[[Mapping[str, Tensor]], Tensor],
    weights: Mapping[str, Tensor],
    unused: list[str],
) -> str:
    """The error message about weights whose gradient does not exist: those that change the output, if there are any, or
    those that do not."""
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
