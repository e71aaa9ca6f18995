"""The evidence of class labels under Gaussian processes, by Laplace's approximation.

    f_c ~ GP(0, K),   y_n ~ Categorical(softmax(f_n))     c = 1 ... C classes
    evidence = ln p(y | F) - sum_c F_c' K^-1 F_c / 2 - ln det(I + (I x K) W) / 2,     F the mode, W = -d2 ln p(y | F) / dF2

With P the probabilities at F, D_c = diag(P_c), E_c = D_c^1/2 (I + D_c^1/2 K D_c^1/2)^-1 D_c^1/2 and A = I + (I x K) W,

    Newton    K^-1 F = b - E_c (K b_c) + E_c (sum_c E_c)^-1 sum_c E_c K b_c,     b = W F + y - P
    ln det A = sum_c ln det(I + D_c^1/2 K D_c^1/2) + ln det sum_c E_c

Rasmussen & Williams (2006), http://gaussianprocess.org/gpml, sections 3.5 and 5.5.2, algorithm 3.3, whose log evidence
leaves out ln det sum_c E_c. At the mode, the derivative of a Newton step by F is 0, so that one step of the mode, with
gradients, has the derivatives of the mode by the scales of K.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_MOST, _ENOUGH = 100, 1e-9  # Newton steps; nats by which the last of them raises the log density


class Mode(NamedTuple):
    """The mode F and K^-1 F, ``[N, C]``, and the log evidence of the labels in nats."""

    f: Tensor
    dual: Tensor
    evidence: Tensor


def laplace(k: Tensor, labels: Tensor, classes: int, start: Tensor | None = None) -> Mode:
    """The mode, and the evidence with its gradient by K.

    Args:
        k: K, ``[N, N]`` in float64, at which functions may be far larger than 1.
        labels: ``[N]`` in 0 ... `classes` - 1.
        start: K^-1 F at which the search for the mode starts; zeros if None.

    Raises:
        torch.linalg.LinAlgError: a matrix is not positive definite up to rounding.
    """
    y = torch.nn.functional.one_hot(labels, classes).to(k)
    with torch.no_grad():
        dual = torch.zeros_like(y) if start is None else start
        density = _density(k @ dual, dual, y)
        for _ in range(_MOST):
            goal, share = _Curvature(k, k @ dual).newton(y), 1.0
            while share > 1e-6 and not (now := _density(k @ (step := dual + share * (goal - dual)), step, y)) > density:
                share /= 2
            if share <= 1e-6 or now - density < _ENOUGH:
                break
            dual, density = step, now
    dual = _Curvature(k, k.detach() @ dual).newton(y)
    f = k @ dual
    return Mode(f, dual, _density(f, dual, y) - _Curvature(k, f).log_det / 2)


def _density(f: Tensor, dual: Tensor, y: Tensor) -> Tensor:
    """ln p(y | F) - sum_c F_c' K^-1 F_c / 2."""
    return (f.log_softmax(1) * y).sum() - (f * dual).sum() / 2


class _Curvature:
    """W at F, and what its inverse with K needs."""

    def __init__(self, k: Tensor, f: Tensor) -> None:
        self.k, self.f, self.p = k, f, f.softmax(1)
        root = self.p.T.sqrt()  # [C, N]
        factor = torch.linalg.cholesky(torch.eye(len(k)).to(k) + root.unsqueeze(-1) * k * root.unsqueeze(-2))
        half = torch.linalg.solve_triangular(factor, torch.diag_embed(root), upper=False)
        self.e = half.mT @ half  # [C, N, N]
        self.sum = torch.linalg.cholesky(self.e.sum(0))
        self.log_det = 2 * (factor.diagonal(dim1=1, dim2=2).log().sum() + self.sum.diagonal().log().sum())

    def newton(self, y: Tensor) -> Tensor:
        """K^-1 F after a step of Newton's method, ``[N, C]``."""
        b = self.p * (self.f - (self.p * self.f).sum(1, keepdim=True)) + y - self.p
        c = self.e @ (self.k @ b).T.unsqueeze(-1)  # [C, N, 1]
        return b + (self.e @ torch.cholesky_solve(c.sum(0), self.sum) - c).squeeze(-1).T
