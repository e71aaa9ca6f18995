"""One distribution of y per example, whatever shape an observation has.

    batch shape [..., N, H, W], event shape E    ->    batch shape [..., N], event shape [H, W, *E]

The log density of an example is then the sum over its H x W parts, which are independent given the network's output.
"""

from __future__ import annotations

from typing import Any

from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, Independent


def per_row(law: TorchDistribution, dims: int) -> TorchDistribution:
    """The distribution with its first `dims` batch dimensions kept, and the others as event dimensions.

    Args:
        law: what a likelihood gave for the outputs of a network.
        dims: number of dimensions up to the examples: 1 for outputs ``[N, ...]``, 2 for ``[S, N, ...]``.

    Raises:
        TypeError: no Pyro distribution.
        ValueError: fewer batch dimensions, so that there is none for the examples.
    """
    if not hasattr(law, "to_event"):
        got: Any = law
        raise TypeError(
            "a likelihood's forward(output, targets) returns a distribution of pyro.distributions; got a "
            f"{type(got).__module__}.{type(got).__name__}"
        )
    further = len(law.batch_shape) - dims
    if further < 0:
        raise ValueError(
            "the distribution of y must have a batch dimension for the examples: a network's outputs have shape "
            f"[N, outputs], and a likelihood gives one distribution per example; got batch shape {tuple(law.batch_shape)} "
            f"and event shape {tuple(law.event_shape)} where {dims} batch dimensions are needed. A network that returns "
            "[N] needs a last axis, output.unsqueeze(-1)"
        )
    return law.to_event(further) if further else law


def elements(law: Distribution) -> Distribution:
    """The distribution of one part of an observation, its dimensions as batch dimensions."""
    while isinstance(law, Independent):
        law = law.base_dist
    return law


def aligned(y: Tensor, law: TorchDistribution, rows: int | None = None) -> Tensor:
    """y with the shape of the distribution's draws, ``[N, *event]``: ``[N]`` becomes ``[N, 1]`` where that is their shape.

    Args:
        y: observations, one per row.
        law: as `per_row` gives it, its last batch dimension the examples.
        rows: N, where the distribution is that of some examples only.

    Raises:
        ValueError: y of another shape; nothing is broadcast.
    """
    want = (law.batch_shape[-1] if rows is None else rows, *law.event_shape)
    if y.dim() == 1 and want == (len(y), 1):
        return y[:, None]
    if y.shape != want:
        raise ValueError(f"y must have the shape {list(want)} of the network's predictions; got {list(y.shape)}")
    return y
