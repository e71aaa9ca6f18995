"""One weight draw per example: independent between examples at the cost of their number of weights.

    y_n = f(x_n, w_n),   w_n ~ q        all rows of an example (tokens, nodes, positions) share its w_n

Kingma, Salimans & Welling (2015), section 2.2, the slow way that the local trick spares. Every example's outputs have the
distribution that a weight draw gives them, all rows together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.maps import LinearMap


class PerExampleReparam(LazyReparam):
    """Draw a whole weight for every example. Works for every posterior that can be drawn."""

    def keeps(self, q: Any) -> bool:
        return True

    def push(self, q: Any, at: LinearMap) -> Tensor:
        if at.examples is None:  # a single vector
            return at.f(at.x, at.once("weight", q.rsample))
        weights = at.once("weight", lambda: q.expand(at.batch).rsample())
        axes = (at.examples, 0)
        return torch.vmap(lambda row, w: at.f(row[None], w)[0], in_dims=axes, out_dims=at.examples)(at.x, weights)
