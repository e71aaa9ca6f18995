"""Removal of dead units from a chain of layers.

    unit k of layer l:  a_k = g(b_k + sum_j W_l[k, j] a_j),      layer l + 1:  b + sum_k W_{l+1}[:, k] a_k

    W_{l+1}[:, k] = 0      unit k is not used: remove it
    W_l[k, :] = 0          a_k = g(b_k) is constant: b <- b + W_{l+1}[:, k] g(b_k), then remove it

Both rules are repeated until no unit is dead, because removing a unit can make another one dead in the layer before or
after. The units of a convolution are its feature maps; a constant map has the same value at all positions, and the
W[:, k] of the next convolution is summed over the kernel. A constant other than 0 before a convolution with zero padding is
not removed, because its contribution is smaller at the border.
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
    """The same function with fewer units. Inputs, outputs and the activations of the remaining units do not change."""
    affine = [i for i, step in enumerate(steps) if isinstance(step, Affine)]
    layers = [_copy(steps[i]) for i in affine]
    between = [list(steps[a + 1 : b]) for a, b in itertools.pairwise(affine)]
    while _fold(layers, between) or _silence(layers):
        pass
    alive = [_used(layers, i) for i in range(len(layers) - 1)]
    for i, keep in enumerate(alive):
        if not keep.any() and not (layers[i + 1].dense and layers[i + 1].input_dim == 2):
            keep[0] = (
                True  # keep one unit of zeros: PyTorch has no convolution without inputs, and the shape must be kept
            )
    empty = max((i + 1 for i, keep in enumerate(alive) if not keep.any()), default=0)
    for i, keep in enumerate(alive):
        layers[i] = replace(layers[i], weight=layers[i].weight[keep], bias=layers[i].bias[keep])
        layers[i + 1] = _narrowed(layers[i + 1], keep)
    done: list[Step] = [] if empty else list(steps[: affine[0]])
    if empty:  # no unit of some layer is left, so the layers before it are not needed
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
    """Boolean mask of the inputs of a layer that have a nonzero weight, ``[in]``."""
    return layer.weight.flatten(2).any(-1).any(0) if not layer.dense else layer.weight.any(0)


def _fold(layers: list[Affine], between: Sequence[Sequence[Step]]) -> bool:
    """Fold every constant unit into the bias of the next layer; return whether there was one."""
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
    """Set the incoming weights of unused units to 0; return whether there was one."""
    moved = False
    for i in range(len(layers) - 1):
        idle = ~_used(layers, i) & layers[i].weight.flatten(1).any(1)
        if idle.any():
            layers[i].weight[idle] = 0
            moved = True
    return moved


def _used(layers: Sequence[Affine], i: int) -> Tensor:
    """Boolean mask of the units of layer i that the next layer uses."""
    used = torch.zeros(len(layers[i].bias), dtype=torch.bool, device=layers[i].bias.device)
    used[_feeds(layers[i + 1])[used_columns(layers[i + 1])]] = True
    return used


def _feeds(layer: Affine) -> Tensor:
    """For each input, the index of the unit of the previous layer; flattening turns one map into several inputs."""
    assert layer.feeds is not None
    return layer.feeds.to(layer.weight.device)


def _narrowed(layer: Affine, keep: Tensor) -> Affine:
    feeds = _feeds(layer)
    columns = keep[feeds]
    return replace(layer, weight=layer.weight[:, columns], feeds=(keep.cumsum(0) - 1)[feeds[columns]])


def _activation(constant: Tensor, steps: Sequence[Step]) -> Tensor | None:
    """The result of the steps for constant maps; None if pooling averages padding, so that the result is not constant."""
    for step in steps:
        if isinstance(step, Plain) and step.kind is not nn.Flatten:
            if step.kind not in POOLS:
                constant = step.module()(constant)
            elif _averages_padding(step.options):
                return None
    return constant


def _averages_padding(options: Mapping[str, Any]) -> bool:
    """Whether average pooling of a constant map changes its value at some position."""
    averages = "count_include_pad" in options
    padded = averages and (torch.as_tensor(options["padding"]).any() or options["ceil_mode"])
    return bool(padded) or options.get("divisor_override") is not None


def _padding(layer: Affine) -> tuple[int, ...]:
    padding = layer.options["padding"]
    if isinstance(padding, str):  # "same" pads unless the kernel size is 1
        return (0,) if padding == "valid" else tuple(size - 1 for size in layer.weight.shape[2:])
    return tuple(padding)


def _copy(step: Step) -> Affine:
    assert isinstance(step, Affine)
    return replace(step, weight=step.weight.detach().clone().contiguous(), bias=step.bias.detach().clone())
