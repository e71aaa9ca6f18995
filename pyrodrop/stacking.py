"""Weights of a mixture by the rows that its components were not trained on.

    sum_n ln sum_c w_c p_c(y_n),   p_c(y_n) = mean_s N(y_n; m_ncs, a_c v_ncs)         largest in w and a

Yao, Vehtari, Simpson & Gelman (2018), Using Stacking to Average Bayesian Predictive Distributions,
https://arxiv.org/abs/1704.02030.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

PRIOR_ROWS = 2.0  # the prior of a factor counts as this many rows with the factor 1, and that of a weight as one row
_ROUNDS = 500  # of expectation maximisation


class Component(NamedTuple):
    """A component of a mixture at n rows: squared errors and variances of its S draws, ``[S, n, T]``, T = 0 of labels, and
    what the log density has besides, ``[n]``."""

    off: Tensor
    variance: Tensor
    besides: Tensor | float = 0.0

    @classmethod
    def of(cls, normals: Sequence[tuple[Tensor, Tensor]], y: Sequence[Tensor]) -> Component:
        """The component from means and variances ``[S, n_k, T]`` and observations y ``[n_k, T]`` of every part k."""
        off = torch.cat([(rows - loc.double().cpu()).square() for (loc, _), rows in zip(normals, y, strict=True)], 1)
        return cls(off, torch.cat([variance.double().cpu() for _, variance in normals], 1))

    @classmethod
    def of_density(cls, logs: Sequence[Tensor], columns: int = 0) -> Component:
        """The component with these log densities of every part k, which no factor changes: its factor stays 1, at which a
        normal distribution of this variance has the density 1."""
        besides = torch.cat([part.double().cpu() for part in logs])
        one = besides.new_full((1, len(besides), columns), 1 / (2 * math.pi * math.e))
        return cls(one, one, besides)

    def density(self, factor: Tensor) -> Tensor:
        """The log density of every draw, ``[S, n]``, less ln S."""
        variance = factor * self.variance
        logs = (self.off / variance + (2 * math.pi * variance).log()).sum(-1) / -2
        return logs + self.besides - math.log(len(self.off))


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
            ((share[..., None] * c.off / c.variance).sum((0, 1)) + PRIOR_ROWS) / (share.sum() + PRIOR_ROWS)
            for share, c in zip(shares, components, strict=True)
        ])  # fmt: skip
        if float((torch.cat([weights[:, None], factors.log()], 1) - before).abs().max()) < 1e-4:
            break
    return weights, factors
