"""One weight draw an example: independent between examples at the cost of their number of weights.

    y_n = f(x_n, w_n),   w_n ~ q

Kingma, Salimans & Welling (2015), section 2.2, the slow way that the local trick spares.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrodrop.reparam.lazy import LazyReparam
from pyrodrop.reparam.maps import LinearMap


class PerExampleReparam(LazyReparam):
    """Draw a whole weight for every example. Works for every posterior that can be drawn."""

    def push(self, q: Any, at: LinearMap) -> Tensor:
        x = at.x if at.outputs == 1 or at.x.dim() > 1 else at.x[None]
        rows = x.reshape(-1, x.shape[-1]) if at.outputs == -1 else x
        weights = q.expand((len(rows),)).rsample()
        y = torch.vmap(lambda row, w: at.f(row[None], w)[0])(rows, weights)
        return y.reshape(*at.x.shape[:-1], y.shape[-1]) if at.outputs == -1 else y
