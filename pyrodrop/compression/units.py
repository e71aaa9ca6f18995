"""Cutting dead units out of a chain of layers.

    unit k of layer l:  a_k = g(b_k + sum_j W_l[k, j] a_j),      layer l + 1:  b + sum_k W_{l+1}[:, k] a_k

    W_{l+1}[:, k] = 0      nobody listens: k goes
    W_l[k, :] = 0          a_k = g(b_k) is a constant: b <- b + W_{l+1}[:, k] g(b_k), and k goes

until neither is left; either may make another unit dead, before or behind. Of a convolution a unit is a map, whose constant
has the same value everywhere; behind it W[:, k] is summed over the kernel. There zero padding must not meet it: a constant
other than 0 in front of a padded convolution stays, since at the border it counts less.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.compression.layers import POOLS
from pyrodrop.compression.steps import Affine, Picked, Plain, Step


def without_dead_units(steps: Sequence[Step]) -> list[Step]:
    """The same function with fewer units. Inputs, outputs and what a layer computes of a unit that stays are as before."""
    affine = [i for i, step in enumerate(steps) if isinstance(step, Affine)]
    layers = [_copy(steps[i]) for i in affine]
    between = [list(steps[a + 1 : b]) for a, b in itertools.pairwise(affine)]
    while _fold(layers, between) or _silence(layers):
        pass
    alive = [_used(layers, i) for i in range(len(layers) - 1)]
    for i, keep in enumerate(alive):
        if not keep.any() and not (layers[i + 1].dense and layers[i + 1].input_dim == 2):
            keep[0] = (
                True  # PyTorch has no convolution of nothing, and rows within an example are counted by it: one of zeros
            )
    empty = max((i + 1 for i, keep in enumerate(alive) if not keep.any()), default=0)
    for i, keep in enumerate(alive):
        layers[i] = replace(layers[i], weight=layers[i].weight[keep], bias=layers[i].bias[keep])
        layers[i + 1] = _narrowed(layers[i + 1], keep)
    done: list[Step] = [] if empty else list(steps[: affine[0]])
    if empty:  # no unit of some layer is left: what comes before it does not count
        before = steps[: affine[empty]]
        flat = all(step.dense for step in before if isinstance(step, Affine)) and not any(_reshapes(s) for s in before)
        done = [] if flat else [Plain(nn.Flatten, {"start_dim": 1, "end_dim": -1})]
        done.append(Picked(torch.empty(0, dtype=torch.long, device=layers[0].weight.device)))
    for i in range(empty, len(layers)):
        done += [layers[i], *(between[i] if i < len(between) else steps[affine[-1] + 1 :])]
    return done


def _reshapes(step: Step) -> bool:
    return isinstance(step, Plain) and (step.kind is nn.Flatten or step.kind in POOLS)


def used_columns(layer: Affine) -> Tensor:
    """Which inputs of a layer have a weight."""
    return layer.weight.flatten(2).any(-1).any(0) if not layer.dense else layer.weight.any(0)


def _fold(layers: list[Affine], between: Sequence[Sequence[Step]]) -> bool:
    """Move every constant unit into the next bias; whether there was one."""
    moved = False
    for i, steps in enumerate(between):
        layer, following = layers[i], layers[i + 1]
        constant = ~layer.weight.flatten(1).any(1) & _used(layers, i)
        values = _activation(layer.bias, steps)
        if values is None:
            continue
        if not following.dense and any(_padding(following)):
            constant &= values == 0
        if not constant.any():
            continue
        columns = constant[_feeds(following)]
        listening = (
            following.weight[:, columns].flatten(2).sum(2) if not following.dense else following.weight[:, columns]
        )
        added = listening.double() @ values[_feeds(following)[columns]].double()
        following.bias.add_(added.to(following.bias))
        following.weight[:, columns] = 0
        moved = True
    return moved


def _silence(layers: list[Affine]) -> bool:
    """Set the weights of units that nobody listens to to 0; whether there was one."""
    moved = False
    for i in range(len(layers) - 1):
        idle = ~_used(layers, i) & layers[i].weight.flatten(1).any(1)
        if idle.any():
            layers[i].weight[idle] = 0
            moved = True
    return moved


def _used(layers: Sequence[Affine], i: int) -> Tensor:
    """Which units of layer i the next one listens to."""
    used = torch.zeros(len(layers[i].bias), dtype=torch.bool, device=layers[i].bias.device)
    used[_feeds(layers[i + 1])[used_columns(layers[i + 1])]] = True
    return used


def _feeds(layer: Affine) -> Tensor:
    """The unit before that each input comes from: flattening makes several inputs of a map."""
    assert layer.feeds is not None
    return layer.feeds.to(layer.weight.device)


def _narrowed(layer: Affine, keep: Tensor) -> Affine:
    feeds = _feeds(layer)
    columns = keep[feeds]
    return replace(layer, weight=layer.weight[:, columns], feeds=(keep.cumsum(0) - 1)[feeds[columns]])


def _activation(constant: Tensor, steps: Sequence[Step]) -> Tensor | None:
    """What activations make of constant maps; None where pooling averages padding into them."""
    for step in steps:
        if isinstance(step, Plain) and step.kind is not nn.Flatten:
            if step.kind not in POOLS:
                constant = step.module()(constant)
            elif _averages_padding(step.options):
                return None
    return constant


def _averages_padding(options: Mapping[str, Any]) -> bool:
    """Whether an average over a constant map is another number, somewhere."""
    averages = "count_include_pad" in options
    padded = averages and (torch.as_tensor(options["padding"]).any() or options["ceil_mode"])
    return bool(padded) or options.get("divisor_override") is not None


def _padding(layer: Affine) -> tuple[int, ...]:
    padding = layer.options["padding"]
    if isinstance(padding, str):  # "same" pads unless the kernel is 1 wide
        return (0,) if padding == "valid" else tuple(size - 1 for size in layer.weight.shape[2:])
    return tuple(padding)


def _copy(step: Step) -> Affine:
    assert isinstance(step, Affine)
    return replace(step, weight=step.weight.detach().clone().contiguous(), bias=step.bias.detach().clone())
