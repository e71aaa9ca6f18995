"""Run one network for many sets of weights at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def for_each(
    call: Callable[[dict[str, Tensor]], Tensor],
    weights: Mapping[str, Tensor],
    *,
    mapped: bool = True,
    randomness: Literal["error", "different"] = "error",
) -> Tensor:
    """The stacked results for all sets of weights, by `torch.vmap` or, if vmap does not support the network, by a loop.

    Args:
        call: maps one set of weights to its result.
        weights: tensors ``[T, ...]`` by name, one set of weights per row.
        mapped: False to use the loop without trying vmap.
        randomness: behaviour of random operations in `call`, as in `torch.vmap`.

    Returns:
        ``[T, ...]``.
    """
    if mapped:
        try:
            with sdpa_kernel(SDPBackend.MATH):  # the attention kernel that vmap supports
                return torch.vmap(call, randomness=randomness)(dict(weights))
        except (
            RuntimeError
        ):  # such as an in-place change of an unbatched tensor by a batched one, which the loop can do
            pass
    count = len(next(iter(weights.values())))
    return torch.stack([call({name: value[i] for name, value in weights.items()}) for i in range(count)])


def batch_shape(weights: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> torch.Size:
    """The leading dimensions of sampled weights, which `initial` values of the weights do not have."""
    return torch.Size(broadcast_shape(*(weights[n].shape[: weights[n].dim() - w.dim()] for n, w in initial.items())))
