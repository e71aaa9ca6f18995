"""Distance of the dependence between points: covariance and correlation of joint samples of two functions.

    A_nm = Cov[f(x_n), f(x_m)],   B_nm = Cov[g(x_n), g(x_m)]               [N, N], over samples
    covariance    ||A - B||_F / ||B||_F                                    1 if f does not vary
    correlation   ( mean over n != m of (corr(A)_nm - corr(B)_nm)^2 )^(1/2)   0 to 2

g is the reference. The first distance compares the whole covariance, including variances, on the scale of the reference. The
second compares correlations, and so only the dependence. Both are computed for every output of f and averaged. The mean over
the C classes is subtracted from each sample of logits, since softmax does not depend on it.

The norms need no N x N matrix if there are fewer samples than points: tr(F^T F G^T G) = ||F G^T||_F^2 for samples F
``[S, N]`` and G ``[T, N]``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def without_shift(logits: Tensor) -> Tensor:
    """Logits ``[..., classes]`` minus their mean over the classes."""
    return logits - logits.mean(-1, keepdim=True)


def covariance_distance(f: Tensor, g: Tensor) -> float | None:
    """||A - B||_F / ||B||_F, mean over outputs, for joint samples ``[S, N, ...]`` and ``[T, N, ...]``.

    Returns:
        None if some output of g does not vary.
    """
    ratios = []
    for a, b in zip(*_outputs(f, g), strict=True):
        a, b = a / (len(a) - 1) ** 0.5, b / (len(b) - 1) ** 0.5
        whole = _product(b, b)
        if not whole > 0:
            return None
        ratios.append((_distance(a, b) / whole) ** 0.5)
    return sum(ratios) / len(ratios)


def correlation_distance(f: Tensor, g: Tensor) -> float | None:
    """Root mean square difference of the correlations of two points, mean over outputs; arguments of `covariance_distance`.

    Returns:
        None for fewer than two points, or if f or g does not vary at some point.
    """
    points = f.shape[1]
    if points < 2:
        return None
    values = []
    for a, b in zip(*_outputs(f, g), strict=True):
        sd_a, sd_b = torch.linalg.vector_norm(a, dim=0), torch.linalg.vector_norm(b, dim=0)
        if not (sd_a.min() > 0 and sd_b.min() > 0):
            return None
        # the diagonals are equal, so the norm is that of the other elements
        values.append((_distance(a / sd_a, b / sd_b) / (points * (points - 1))) ** 0.5)
    return sum(values) / len(values)


def _outputs(f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Centred samples ``[outputs, S, N]`` in float64; zero at points where all samples are equal."""
    return _centred(f), _centred(g)


def _centred(f: Tensor) -> Tensor:
    f = f.double().flatten(2) if f.dim() > 2 else f.double()[..., None]
    varies = (f != f[:1]).any(0)
    return ((f - f.mean(0)) * varies).movedim(-1, 0)


def _distance(a: Tensor, b: Tensor) -> float:
    """||A - B||_F^2 of A = a^T a and B = b^T b."""
    if a.shape[1] <= max(len(a), len(b)):
        return float((a.mT @ a - b.mT @ b).square().sum())
    return max(0.0, _product(a, a) + _product(b, b) - 2 * _product(a, b))


def _product(a: Tensor, b: Tensor) -> float:
    """tr(A B)."""
    if a.shape[1] <= max(len(a), len(b)):
        return float(((a.mT @ a) * (b.mT @ b)).sum())
    return float((a @ b.mT).square().sum())
