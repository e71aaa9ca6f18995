"""Conversion of the distribution of y to one distribution per example, for observations of any shape.

    batch shape [..., N, H, W], event shape E    ->    batch shape [..., N], event shape [H, W, *E]

The log density of an example is then the sum over its H x W parts, which are independent given the output of the network.
"""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution

from pyrodrop.checks import shown
from pyrodrop.distributions.weight import elements as elements


def per_row(distribution: TorchDistribution, dims: int) -> TorchDistribution:
    """The distribution with its first `dims` batch dimensions; further batch dimensions become event dimensions.

    Args:
        distribution: the distribution that a likelihood returned for the outputs of a network.
        dims: number of batch dimensions to keep: 1 for outputs ``[N, ...]``, 2 for ``[S, N, ...]``.

    Raises:
        TypeError: `distribution` is not a distribution of ``pyro.distributions``.
        ValueError: `distribution` has fewer than `dims` batch dimensions, so there is none for the examples.
    """
    if not hasattr(distribution, "to_event"):
        got: Any = distribution
        raise TypeError(
            "forward(output, targets) of a likelihood must return a distribution of pyro.distributions; got "
            f"{shown(got)} of {type(got).__module__}"
        )
    further = len(distribution.batch_shape) - dims
    if further < 0:
        raise ValueError(
            f"the distribution of y must have a batch dimension for the examples; got batch shape "
            f"{tuple(distribution.batch_shape)}: if the network returns [N], add a last axis, output.unsqueeze(-1)"
        )
    return distribution.to_event(further) if further else distribution


def aligned(y: Tensor, distribution: TorchDistribution, rows: int | None = None) -> Tensor:
    """Check that y has the shape of a sample of the distribution, ``[N, *event]``; convert ``[N]`` to ``[N, 1]`` if needed.


    Args:
        y: observations, one per row.
        distribution: the distribution as `per_row` returns it; its last batch dimension indexes examples.
        rows: N, if `distribution` has only some of the examples.

    Raises:
        ValueError: y has another shape. It is never broadcast.
    """
    want = (distribution.batch_shape[-1] if rows is None else rows, *distribution.event_shape)
    if y.dim() == 1 and want == (len(y), 1):
        return y[:, None]
    if y.shape != want:
        raise ValueError(f"y must have the shape {list(want)} of the predictions; got {list(y.shape)}")
    return y


def support_of(distribution: Distribution) -> Any:
    """The constraint of one element of y, or None for a user-defined distribution that does not declare it."""
    try:
        return elements(distribution).support
    except NotImplementedError:
        return None


def check_support(y: Tensor, distribution: Distribution, what: str) -> None:
    """Check that the values of y are in the support of a distribution.

    Args:
        y: observations, which broadcast with the distribution.
        distribution: the distribution of y.
        what: a description of the distribution, for messages.

    Raises:
        TypeError: y are bools, and the distribution is one of real numbers.
        ValueError: a value is outside the support.
    """
    support = support_of(distribution)
    if support is None:
        return
    if y.dtype is torch.bool and not support.is_discrete:
        raise TypeError(
            f"y must be numbers in the support of {what}, {support}; got {y.dtype}, which are not measured: convert them "
            "with .float() if 0 and 1 are meant"
        )
    inside = support.check(y)
    if not bool(inside.all()):
        event = y.shape[y.dim() - support.event_dim :]
        wrong = y.expand(inside.shape + event)[~inside].flatten()[0].item()
        raise ValueError(f"values of y must be in the support of {what}, {support}; got {wrong:g}")
