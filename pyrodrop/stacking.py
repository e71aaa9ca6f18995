"""Weights of a mixture by the rows that its components were not trained on.

    sum_n ln sum_c w_c p_c(y_n),   p_c(y_n) = mean_s N(y_n; m_ncs, a_c v_ncs)         largest in w and a

Yao, Vehtari, Simpson & Gelman (2018), Using Stacking to Average Bayesian Predictive Distributions,
https://arxiv.org/abs/1704.02030.

A component mixes K members m_k, each trained without another part of the rows, so that only one of them, m_j, predicts row n
as it predicts new rows. Their mean m has smaller errors than they have,

    mean_k (y - m_k)^2 = (y - m)^2 + mean_k (m_k - m)^2

(Krogh & Vedelsby, 1995, Neural Network Ensembles, Cross Validation, and Active Learning, equation 6), and their differences
are in the mixture by themselves. So the error of m is taken to be that of m_j, shrunk by the share of the differences, and
the members lie around m as they do at this row:

    y_n - m_nck = sqrt(1 - r) (y_n - m_ncj) - (m_nck - m_nc),   r = (mean_nk |m_nck - m_nc| / mean_n |y_n - m_ncj|)^2

where both means are in standard deviations of the noise v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

PRIOR_ROWS = 2.0  # the prior of a factor counts as this many rows with the factor 1, and that of the weights as one row
_MOST_BETWEEN = 0.8  # largest share of the differences between members in their squared errors
_ROUNDS = 500  # of expectation maximisation


class Component(NamedTuple):
    """A component of a mixture at n rows: squared errors and variances of its S draws, ``[S, n, T]``, T = 0 of labels, and
    what the log density has besides, ``[n]``."""

    off: Tensor
    variance: Tensor
    besides: Tensor | float = 0.0

    @classmethod
    def of(cls, loc: Tensor, variance: Tensor, y: Tensor, part: Tensor, *, alone: bool = False) -> Component:
        """The component that mixes K members, at rows of which each was left out of one of them.

        Args:
            loc, variance: of the draws of every member, ``[K, S, n, T]``.
            y: ``[n, T]``.
            part: the member that was not trained on a row, ``[n]``.
            alone: whether the mixture is to err as one member does.
        """
        rows, means = torch.arange(len(y)), loc.mean(1)
        own, noise = (values[part, :, rows].movedim(1, 0) for values in (loc, variance))  # [S, n, T]
        apart, error = (means - means.mean(0)) * (not alone), y - own.mean(0)
        sd = (noise.mean(0) + own.var(0, correction=0)).sqrt()
        between = (apart.abs() / sd).mean((0, 1)) / (error.abs() / sd).mean(0).clamp(min=1e-300)
        left = (1 - between.square().clamp(max=_MOST_BETWEEN)).sqrt()
        draws = torch.arange(len(means) * math.ceil(len(own) / len(means)))
        spread = (own - own.mean(0))[draws % len(own)] + apart[draws % len(means)]
        return cls((left * error - spread).square(), noise[draws % len(own)])

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
    with the factor 1, and that of the weights as one row, in equal shares.
    """
    rows = components[0].off.shape[1]
    weights = torch.full((len(components),), 1 / len(components), dtype=torch.float64)
    factors = torch.ones(len(components), components[0].off.shape[2], dtype=torch.float64)
    sizes = [len(component.off) for component in components]
    for _ in range(_ROUNDS):
        logs = [c.density(a) + w.log() for c, a, w in zip(components, factors, weights, strict=True)]
        shares = torch.cat(logs).softmax(0).split(sizes)
        before = torch.cat([weights[:, None], factors.log()], 1)
        weights = torch.stack([share.sum() + 1 / len(components) for share in shares]) / (rows + 1)
        factors = torch.stack([
            ((share[..., None] * c.off / c.variance).sum((0, 1)) + PRIOR_ROWS) / (share.sum() + PRIOR_ROWS)
            for share, c in zip(shares, components, strict=True)
        ])  # fmt: skip
        if float((torch.cat([weights[:, None], factors.log()], 1) - before).abs().max()) < 1e-4:
            break
    return weights, factors
