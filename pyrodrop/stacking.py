"""Choose the penalty of a line and the weights of a mixture by predictions for rows that were left out of training.

    sum_n ln sum_c w_c p_c(y_n),   p_c(y_n) = mean_s N(y_n; m_ncs, a_c v_ncs)         largest in w and a

Yao, Vehtari, Simpson & Gelman (2018), Using Stacking to Average Bayesian Predictive Distributions,
https://arxiv.org/abs/1704.02030. p_c is the prediction for a row by a network or line that was not trained on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_ROUNDS = 500  # of expectation maximisation
_LEAST = 1e-5  # smallest error of the line, in standard deviations of y: float32 resolves no smaller one
_PRIOR_ROWS = 2.0  # the prior of a factor counts as this many rows with the factor 1, and that of a weight as one row


class Line(NamedTuple):
    """A line in standardised units: slopes ``[D, T]``, intercept ``[T]``, and its error ``[T]`` in rows left out."""

    slopes: Tensor
    intercept: Tensor
    error: Tensor

    def at(self, x: Tensor) -> Tensor:
        return x @ self.slopes + self.intercept


def ridge(x: Tensor, y: Tensor) -> Line:
    """Ridge regression. Its penalty, one per column of y, minimises the error of rows that are left out one at a time.

    With the singular values d and the left singular vectors U of centred x ``[n, D]``, row i has the leverage h = 1/n +
    sum_j U_ij^2 d_j^2 / (d_j^2 + n lambda), and the error of the line without it is e / (1 - h): Golub, Heath & Wahba
    (1979), https://doi.org/10.1080/00401706.1979.10489751, equation 1.4.
    """
    rows, middle, mean = len(x), x.mean(0), y.mean(0)
    u, d, v = torch.linalg.svd(x - middle, full_matrices=False)
    shares = d.square() / (d.square() + rows * torch.logspace(-8, 6, 29, dtype=x.dtype)[:, None])  # [penalties, D]
    shares = torch.where(d > d[0] * 1e-12 * max(x.shape), shares, 0.0)
    along = u.T @ (y - mean)
    off = (y - mean) - torch.einsum("nd,pd,dt->pnt", u, shares, along)
    leverage = 1 / rows + torch.einsum("nd,pd->pn", u.square(), shares)
    errors = (off / (1 - leverage).clamp(min=1e-6)[..., None]).square().mean(1)  # [penalties, T]
    error, best = errors.min(0)
    slopes = v.T @ (shares[best].T / d.clamp(min=1e-300)[:, None] * along)
    return Line(slopes, mean - middle @ slopes, error.sqrt().clamp(min=_LEAST))


class Component(NamedTuple):
    """A component of a mixture at n rows: squared errors and variances of its S draws, ``[S, n, T]``."""

    off: Tensor
    variance: Tensor

    @classmethod
    def of(cls, normals: Sequence[tuple[Tensor, Tensor]], y: Sequence[Tensor]) -> Component:
        """The component from means and variances ``[S, n_k, T]`` and observations y ``[n_k, T]`` of every part k."""
        off = torch.cat([(rows - loc.double().cpu()).square() for (loc, _), rows in zip(normals, y, strict=True)], 1)
        return cls(off, torch.cat([variance.double().cpu() for _, variance in normals], 1))

    def density(self, factor: Tensor) -> Tensor:
        """The log density of every draw, ``[S, n]``, less ln S."""
        variance = factor * self.variance
        logs = (self.off / variance + (2 * math.pi * variance).log()).sum(-1) / -2
        return logs - math.log(len(self.off))


def stacked(components: Sequence[Component]) -> tuple[Tensor, Tensor]:
    """Weights ``[C]`` and factors of the variances ``[C, T]`` that maximise the density of the rows under the mixture.

    Expectation maximisation; latent are the component and the draw of every row. The prior of a factor counts as two rows
    with the factor 1, and that of a weight as one row.
    """
    rows = components[0].off.shape[1]
    weights = torch.full((len(components),), 1 / len(components), dtype=torch.float64)
    factors = torch.ones(len(components), components[0].off.shape[2], dtype=torch.float64)
    sizes = [len(component.off) for component in components]
    for _ in range(_ROUNDS):
        logs = [c.density(a) + w.log() for c, a, w in zip(components, factors, weights, strict=True)]
        shares = torch.cat(logs).softmax(0).split(sizes)
        before = torch.cat([weights[:, None], factors.log()], 1)
        weights = torch.stack([share.sum() + 1 for share in shares]) / (rows + len(components))
        factors = torch.stack([
            ((share[..., None] * c.off / c.variance).sum((0, 1)) + _PRIOR_ROWS) / (share.sum() + _PRIOR_ROWS)
            for share, c in zip(shares, components, strict=True)
        ])  # fmt: skip
        if float((torch.cat([weights[:, None], factors.log()], 1) - before).abs().max()) < 1e-4:
            break
    return weights, factors


def stacked_densities(logs: Tensor) -> Tensor:
    """The weights ``[C]`` as in `stacked`, for components with fixed log densities ``[C, n]`` and no factors."""
    weights = torch.full((len(logs),), 1 / len(logs), dtype=torch.float64)
    for _ in range(_ROUNDS):
        weights = ((logs + weights.log()[:, None]).softmax(0).sum(1) + 1) / (logs.shape[1] + len(logs))
    return weights
