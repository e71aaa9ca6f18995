"""One weight sample per example: independent between examples, at the cost of as many weights as there are examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.maps import LinearMap


class PerExampleReparam(LazyReparam):
    """Sample a whole weight for every example. Works for every posterior that can be sampled.

        y_n = f(x_n, w_n),   w_n ~ q        all rows of an example (tokens, nodes, positions) share its w_n

    The expensive estimator that the local reparameterisation trick replaces. The outputs of an example have the joint
    distribution that a weight sample gives them.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 2.2.
    """

    def push(self, q: Any, at: LinearMap) -> Tensor:
        """f(x_n, w_n) for every example n, without bias."""
        weights = q.expand(at.batch).rsample()
        axes = (at.examples, 0)
        return torch.vmap(lambda row, w: at.f(row[None], w)[0], in_dims=axes, out_dims=at.examples)(at.x, weights)
