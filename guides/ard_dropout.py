"""Variational dropout by automatic relevance determination.

    w_ij ~ N(m_ij, v_ij),    alpha_ij = v_ij / m_ij^2

The posterior of `SparseDropout`, meant for the prior `priors.ARD`, under which its divergence is sum ln(1 + 1/alpha)/2: a
proper prior's, exact. Kharitonov, Molchanov & Vetrov (2018), Variational Dropout via Empirical Bayes.
"""

from __future__ import annotations

from pyrodrop.guides.sparse_dropout import SparseDropout


class ARDDropout(SparseDropout):
    """A variance for every weight, ln alpha clamped to [-10, 10] as in the released code."""

    log_alpha_range = (-10.0, 10.0)
