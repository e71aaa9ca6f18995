"""Lines in closed form, and by convex optimisation: ridge regression and logistic regression."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

LEAST = 1e-5  # smallest error of a line, in standard deviations of y: float32 resolves no smaller one
_STEPS = 500  # of L-BFGS


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
    return Line(slopes, mean - middle @ slopes, error.sqrt().clamp(min=LEAST))


def logistic(x: Tensor, labels: Tensor, classes: int, penalty: float) -> Line:
    """Multinomial logistic regression: sum_n ln p(y_n) - penalty / 2 |B|^2 is largest in the slopes B and the intercept."""
    with torch.inference_mode(False), torch.enable_grad():
        x, found = x.clone(), torch.zeros(1 + x.shape[1], classes, dtype=x.dtype, requires_grad=True)
        search = torch.optim.LBFGS([found], max_iter=_STEPS, tolerance_grad=1e-8, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            search.zero_grad()
            loss = nn.functional.cross_entropy(x @ found[1:] + found[0], labels)
            loss = loss + penalty / (2 * len(x)) * found[1:].square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        search.step(loss)  # type: ignore[no-untyped-call]
    intercept, slopes = found.detach()[0], found.detach()[1:]
    return Line(slopes, intercept, torch.ones_like(intercept))
