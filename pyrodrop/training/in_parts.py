"""The gradient of a minibatch that is evaluated in parts: one after the other (`accumulate`), by several ranks, or both.

    gradient of the step  =  sum over all parts of  weight * gradient of the loss of the part's rows

where the loss is scaled to the data set, and the weight is the part's share of the rows of the minibatch. So the gradient is
unbiased, and the KL divergence counts once. Every part draws its own noise and updates buffers, such as running statistics,
in its turn; afterwards floating-point buffers get their mean over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrodrop.steps import Arguments, Loss
from pyrodrop.training.ranks import Ranks

Gradients = Callable[[Arguments, Tensor], tuple[Tensor, list[Tensor], list[Tensor]]]


class Part(NamedTuple):
    """Some rows of the minibatch of a step.

    Attributes:
        batch: the rows; its ``num_data`` is the size of the whole data set.
        weight: factor of its gradient: its share of the minibatch, times the number of ranks, over which the mean is taken.
    """

    batch: Arguments
    weight: float


class Joint(NamedTuple):
    """The parts of a step's minibatch that this process evaluates, at least one."""

    parts: list[Part]


def backward(loss: Loss, ranks: Ranks, joint: Joint, factors: Any, gradients: Gradients | None = None) -> Tensor:
    """Set the gradients of the parameters to those of a minibatch, part by part; returns nll and kl, ``[2]``.

    Args:
        factors: of nll and of the weights' KL divergence.
        gradients: see `pyrodrop.steps.Loss.gradients`, which is the default.
    """
    leaves = loss.leaves
    scales = torch.tensor(factors, dtype=torch.float64).to(leaves[0])
    total: Tensor | float = 0.0
    for part in joint.parts:
        terms, grads, moved = (gradients or loss.gradients)(part.batch, scales)
        total = total + part.weight * torch.cat([value.reshape(-1) for value in (terms, *grads)])
        loss.moving.take(moved)
    assert isinstance(total, Tensor)
    if ranks.size > 1:
        total = _averaged(total, loss, ranks)
    terms, *grads = total.split([2, *(leaf.numel() for leaf in leaves)])
    for leaf, gradient in zip(leaves, grads, strict=True):
        leaf.grad = gradient.view_as(leaf).to(leaf.dtype)
    return terms


def _averaged(total: Tensor, loss: Loss, ranks: Ranks) -> Tensor:
    """The mean over ranks; floating-point buffers are set to theirs."""
    buffers = [buffer for buffer in loss.buffers if buffer.is_floating_point()]
    flat = torch.cat([total, *(buffer.reshape(-1) for buffer in buffers)])
    ranks.mean(flat)
    total, *means = flat.split([len(total), *(buffer.numel() for buffer in buffers)])
    for buffer, mean in zip(buffers, means, strict=True):
        buffer.copy_(mean.view_as(buffer))
    return total
