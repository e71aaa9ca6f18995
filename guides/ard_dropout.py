"""Variational dropout by automatic relevance determination.

    w_ij ~ N(m_ij, v_ij),    alpha_ij = v_ij / m_ij^2

This is the posterior of `SparseDropout`, intended for the proper prior ``priors.ARD("weight")``. Under that prior its KL
divergence is exactly sum_ij ln(1 + 1/alpha_ij) / 2. Kharitonov, Molchanov & Vetrov (2018), Variational Dropout via Empirical
Bayes, arXiv:1811.00596, eq. 8.
"""

from __future__ import annotations

from pyrodrop.guides.sparse_dropout import SparseDropout


class ARDDropout(SparseDropout):
    """Gaussians with a learned variance per weight and ln alpha clamped to [-10, 10], as in the released code.

    The arguments are those of `SparseDropout`.
    """

    log_alpha_range = (-10.0, 10.0)
