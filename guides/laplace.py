"""Laplace's approximation of the weights of a last layer under class labels.

    f_n = V x_n + o        V [D, M], x_n [M] the inputs of the layer, with a 1 first if its bias has a prior
    ln p(V | y) = sum_n ln p(y_n | f_n) - sum_dm (V_dm - m_dm)^2 / (2 s_dm^2) + const

    q(V) = N(V*, A^-1),     V* the mode,   A = diag(1 / s^2) + sum_n W_n (x) x_n x_n'
    Newton   A V = m / s^2 + sum_n (W_n (f_n - o) + y_n - p_n) x_n'        p_n, W_n of the last f_n

    softmax    p_n = softmax(f_n),   W_n = diag(p_n) - p_n p_n'     y_n one-hot: one matrix of all D M weights
    sigmoid    p_n = sigmoid(f_n),   W_n = diag(p_n (1 - p_n))      y_n of 0 and 1: a matrix for each output

A step of Newton's method needs f_n but not V, so it can start at logits that are near the mode for other inputs x_n. The
longest of several shares of a step that raises the density most is taken. At the mode, the derivative of a step by V is 0,
so that one more step, with gradients, has the derivatives of the mode by x_n and o.

Bishop (2006), Pattern Recognition and Machine Learning, section 4.4; Rasmussen & Williams (2006),
http://gaussianprocess.org/gpml, section 3.5.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

_STEPS, _STEPS_FROM_ZERO = 1, 15
TURN = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
_SHARES = (1.0, 0.5, 0.2, 0.05, 0.0)


class LabelRows(NamedTuple):
    """Rows of labels in float64.

    Attributes:
        phi: inputs of the layer, ``[N, M]``.
        y: one-hot labels, or zeros and ones, ``[N, D]``.
        seen: 0 for what is missing and otherwise 1, ``[N, 1]`` or ``[N, D]``.
        offset: a bias without a prior, ``[D]``, or 0.
        loc, inverse: mean and precision of the prior, ``[D, M]``.
        softmax: whether each row has one label.
        turned: whether outputs and prior are those of `of_two_classes`.
    """

    phi: Tensor
    y: Tensor
    seen: Tensor
    offset: Tensor
    loc: Tensor
    inverse: Tensor
    softmax: bool
    turned: bool = False

    def of_two_classes(self) -> Self:
        """The same for u = TURN V in place of V, if prior precisions are equal: labels depend on the difference alone.

        softmax(f)_0 = sigmoid(sqrt(2) u_1 x),     u_0 = (v_0 + v_1) / sqrt(2),   u_1 = (v_0 - v_1) / sqrt(2)
        """
        turn = TURN.to(self.phi)
        label, nothing = self.y[:, :1], torch.zeros_like(self.y[:, :1])
        return self._replace(
            phi=math.sqrt(2) * self.phi,
            y=torch.cat([nothing, label], 1),
            seen=torch.cat([nothing, self.seen], 1),
            offset=math.sqrt(2) * turn @ self.offset,
            loc=turn @ self.loc,
            softmax=False,
            turned=True,
        )

    def posterior(self, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """The mode ``[D, M]``, and its precision: ``[1, D M, D M]`` of a softmax, ``[D, M, M]`` otherwise.

        Args:
            start: logits ``[N, D]`` at which the search starts; zeros, with more steps, if None.
        """
        with torch.no_grad():
            mode = self._detached().search(start)
        mode = self.newton(self.logits(mode))
        return mode, self.precision(self.logits(mode))

    def elbo(self, normal: Tensor) -> Tensor:
        """E_q[ln p(y, V) - ln q(V)] in nats, by draws V = V* + L^-T e with A = L L' and `normal` e, ``[S, D, M]``."""
        mode, precision = self.posterior(None)
        root = torch.linalg.cholesky(precision)
        columns = normal.reshape(len(normal), *root.shape[:2], 1)
        v = mode + torch.linalg.solve_triangular(root.mT, columns, upper=True).reshape(normal.shape)
        log_joint = self.log_density(v, self.logits(v)) + normal.square().sum((-2, -1)) / 2
        return log_joint.mean() + self.inverse.log().sum() / 2 - root.diagonal(dim1=-2, dim2=-1).log().sum()

    def logits(self, v: Tensor) -> Tensor:
        return self.phi @ v.mT + self.offset

    def search(self, start: Tensor | None) -> Tensor:
        """The mode."""
        shares = torch.tensor(_SHARES, dtype=self.phi.dtype, device=self.phi.device)[:, None, None]
        v = self.newton(torch.zeros_like(self.y) if start is None else start)
        logits = self.logits(v)
        for _ in range(_STEPS_FROM_ZERO if start is None else _STEPS):
            goal = self.newton(logits)
            tried, there = v + shares * (goal - v), logits + shares * (self.logits(goal) - logits)
            best = self.log_density(tried, there).nan_to_num(-torch.inf).argmax(0, keepdim=True)
            v, logits = (each.index_select(0, best).squeeze(0) for each in (tried, there))
        return v

    def log_density(self, v: Tensor, logits: Tensor) -> Tensor:
        """ln p(V | y) up to a constant, for V ``[S, D, M]`` with these logits ``[S, N, D]``."""
        if self.softmax:
            of_rows = (self.y * logits).sum(-1, keepdim=True) - logits.logsumexp(-1, keepdim=True)
        else:
            of_rows = self.y * logits + logsigmoid(-logits)
        return (self.seen * of_rows).sum((-2, -1)) - (self.inverse * (v - self.loc).square()).sum((-2, -1)) / 2

    def newton(self, logits: Tensor) -> Tensor:
        """V after a step of Newton's method from these logits."""
        p, f = self._probs(logits), logits - self.offset
        curved = p * (f - (p * f).sum(1, keepdim=True)) if self.softmax else p * (1 - p) * f
        right = self.inverse * self.loc + (self.seen * (curved + self.y - p)).T @ self.phi
        factor = torch.linalg.cholesky_ex(precision := self.precision(logits))[0]
        return torch.cholesky_solve(right.reshape(*precision.shape[:2], 1), factor).reshape(right.shape)

    def precision(self, logits: Tensor) -> Tensor:
        """A at these logits."""
        p = self._probs(logits)
        if not self.softmax:
            return self._blocks(self.seen * p * (1 - p)) + torch.diag_embed(self.inverse)
        first, second = torch.triu_indices(*[p.shape[1]] * 2, device=p.device)
        block = torch.empty([p.shape[1]] * 2, dtype=torch.long, device=p.device)
        block[first, second] = block[second, first] = torch.arange(len(first), device=p.device)
        curved = p[:, first] * ((first == second).to(p) - p[:, second])  # W_n of each pair of classes
        whole = self._blocks(self.seen * curved)[block].transpose(1, 2).reshape(self.inverse.numel(), -1)
        return (whole + torch.diag(self.inverse.flatten())).unsqueeze(0)

    def _blocks(self, weights: Tensor) -> Tensor:
        """sum_n weights_nk x_n x_n', ``[k, M, M]``."""
        return self.phi.T @ (weights.T.unsqueeze(-1) * self.phi)

    def _probs(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) if self.softmax else logits.sigmoid()

    def _detached(self) -> Self:
        return self._replace(phi=self.phi.detach(), offset=self.offset.detach())
