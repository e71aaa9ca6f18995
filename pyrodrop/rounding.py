"""Equality up to rounding of what is computed in two ways: in parts, in another order, by another kernel.

    |a - b| <= 1e-4 |b| + 1e-5 max |b|

With the unit roundoff u = 2^-24 of float32, a sum of K terms errs by about sqrt(K) u of their size, and L such sums one
after the other by sqrt(K L) u. For ten thousand terms that is 6e-6, what entries that cancel may differ by, and for a
hundred layers of them 6e-5, what any entry may. Networks in float64 may compute in float32 somewhere, so the bounds do not
depend on the dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one shape and are equal up to rounding; NaN equals NaN."""
    scale = float(b.nan_to_num(0.0, 0.0, 0.0).abs().max()) if b.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)
