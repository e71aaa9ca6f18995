"""One network for many weights at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def for_each(
    call: Callable[[dict[str, Tensor]], Tensor],
    weights: Mapping[str, Tensor],
    *,
    mapped: bool = True,
    randomness: Literal["error", "different"] = "error",
) -> Tensor:
    """The results for all weights, stacked: by `torch.vmap`, or one after the other where torch has no way to map a network.

    Args:
        call: from weights of one network to its result.
        weights: with the networks along the first axis.
        mapped: False to go one by one without trying.
        randomness: what random numbers in a call are, as of `torch.vmap`.
    """
    if mapped:
        try:
            with sdpa_kernel(SDPBackend.MATH):  # the form of attention that vmap has rules for
                return torch.vmap(call, randomness=randomness)(dict(weights))
        except RuntimeError:  # such as a change in place of what is one for all by what is not; alone it may go well
            pass
    count = len(next(iter(weights.values())))
    return torch.stack([call({name: value[i] for name, value in weights.items()}) for i in range(count)])
