"""Predictors that need no training: a constant, and regressions that predict every row from the others.

    constant      p(y_n | c),   c of the largest likelihood: mean and variance, or frequencies
    left out      N(y_n; m_n, s v_n),   m_n = y_n - [A^-1 y]_n / [A^-1]_nn,   v_n = 1 / [A^-1]_nn,   A = K + r I

Rasmussen & Williams (2006), http://gaussianprocess.org/gpml, eq. 5.10 to 5.12. K is 1 + phi phi' / D, where phi are the D
columns of x (ridge regression) or inputs of a network's last layer, or 1 + exp(-|x - x'|^2 / (2 D l^2)), all columns
standardised. l and r, on grids, and s are those of the largest density. Class labels are one-hot in place of y: then r is
that of the smallest squared error, and the probabilities are softmax(b m), with the b on a grid of the largest density.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    LogNormal,
    Poisson,
)

_LENGTHS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_RATIOS = torch.logspace(-6, 3, 19, dtype=torch.float64)
_SLOPES = torch.logspace(-1, 1, 9, dtype=torch.float64)


def constant(likelihood: Likelihood, data: Tensor, y: Tensor) -> Tensor | None:
    """Log densities of rows under the best constant; None if it has no closed form, or a column of y does not vary.

    Args:
        data: y of all rows, for the frequencies of labels.
        y: of the rows whose densities are returned, ``[n, ...]``, for mean and variance.

    Returns:
        ``[n]``, in float64.
    """
    if isinstance(likelihood, Categorical):
        labels = data.detach().long().flatten().cpu()
        return (torch.bincount(labels).double() / len(labels)).log()[y.long()].reshape(len(y), -1).sum(1)
    y = y.double()
    if has_one_value(y):
        return None
    if isinstance(likelihood, LogNormal):
        density = dist.LogNormal(y.log().mean(0), y.log().std(0, correction=0)).log_prob(y)
    elif isinstance(likelihood, Gaussian | HeteroscedasticGaussian):
        density = dist.Normal(y.mean(0), y.std(0, correction=0)).log_prob(y)
    elif isinstance(likelihood, Bernoulli | Poisson):
        density = (dist.Bernoulli if isinstance(likelihood, Bernoulli) else dist.Poisson)(y.mean(0)).log_prob(y)
    else:
        return None
    return density.reshape(len(y), -1).sum(1)


def has_one_value(y: Tensor) -> bool:
    """Whether y are real numbers with a column that has one value in all rows."""
    return y.is_floating_point() and bool((y == y[0]).reshape(len(y), -1).all(0).any())


def by_features(features: Sequence[Tensor], y: Tensor) -> Tensor:
    """Log densities of rows ``[n]``, under the best of several sets of features ``[n, K]``; y as of `left_out`."""
    with_one = (torch.cat([torch.ones_like(phi[:, :1]), _standardised(phi)], 1) for phi in features)
    factors = (torch.linalg.svd(phi, full_matrices=False) for phi in with_one)
    return left_out(((s.square(), u) for u, s, _ in factors), y)


def by_process(x: Tensor, y: Tensor) -> Tensor:
    """Log densities of rows ``[n]`` under a Gaussian process of x ``[n, D]``; y as of `left_out`."""
    square = torch.cdist(_standardised(x), _standardised(x)).square()
    return left_out((torch.linalg.eigh(1 + torch.exp(-square / (2 * length**2))) for length in _LENGTHS), y)


def left_out(kernels: Iterable[tuple[Tensor, Tensor]], y: Tensor) -> Tensor:
    """Log densities of rows ``[n]``, each predicted from the others, under the best of the kernels and ratios.

    Args:
        kernels: eigenvalues ``[k]`` and eigenvectors ``[n, k]`` of each K, in float64; the other eigenvalues are 0.
        y: real numbers ``[n, D]`` in float64, of which every column varies, or class labels ``[n]``.
    """
    labels = None if y.is_floating_point() else y.long()
    target = y if labels is None else F.one_hot(labels).double()
    scale = target.std(0, correction=0) if labels is None else torch.ones_like(target[0])
    target = (target - target.mean(0)) / scale
    densities = []
    for w, u in kernels:
        inverse = 1 / (w.clamp(min=0)[:, None] + _RATIOS)
        inside = u.T @ target
        beyond = (1 - u.square().sum(1)).clamp(min=0)
        diagonal = (u.square() @ inverse + beyond[:, None] / _RATIOS)[..., None]
        solved = torch.einsum("nk,kr,kc->nrc", u, inverse, inside) + (target - u @ inside)[:, None] / _RATIOS[:, None]
        off = solved / diagonal
        if labels is None:
            s = (off.square() * diagonal).mean(0).clamp(min=1e-20)
            densities.append(_best(dist.Normal(0.0, (s / diagonal).sqrt() * scale).log_prob(off * scale).sum(-1)))
        else:
            off = off[:, int(off.square().mean((0, 2)).argmin())]
            logits = (target - off)[:, None] * _SLOPES[:, None]
            chosen = labels[:, None, None].expand(-1, len(_SLOPES), 1)
            densities.append(_best(logits.log_softmax(-1).gather(-1, chosen)[..., 0]))
    return _best(torch.stack(densities, 1))


def _best(densities: Tensor) -> Tensor:
    """The column of ``[n, R]`` with the largest mean."""
    return densities[:, int(densities.mean(0).nan_to_num(-math.inf).argmax())]


def _standardised(x: Tensor) -> Tensor:
    """Columns of mean 0 and standard deviation 1, divided by the root of their number."""
    return (x - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-12) / math.sqrt(x.shape[1])
