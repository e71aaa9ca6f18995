"""The log-uniform prior, p(log |w|) = const."""

from __future__ import annotations

import warnings

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import distributions
from pyrodrop.priors.prior import Prior


class ImproperPrior(UserWarning):
    """Warning that a prior is improper: its density does not integrate to a finite number."""


class LogUniform(Prior):
    """The improper, scale-invariant prior of variational dropout.

    Its density does not integrate to a finite number. The posterior may therefore not exist, the ELBO is not a bound on the
    evidence, and ELBOs can only be compared with others under this prior. The first instance warns about this with
    `ImproperPrior`. `ARD` is a similar proper prior.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 3.
        Hron, Matthews & Ghahramani (2018), https://arxiv.org/abs/1807.01969.

    The KL divergence from a Gaussian is exact up to 1e-10 per weight in float64 and 2e-6 in float32
    (`pyrodrop.divergences.log_uniform_kl`).
    """

    _warned = False

    def __init__(self) -> None:
        if not LogUniform._warned:
            LogUniform._warned = True
            warnings.warn(
                "the log-uniform prior is improper: its density does not integrate to a finite number, so the posterior may "
                "not exist, and the ELBO is not a bound on the evidence and can only be compared under the same prior "
                "(Hron et al. 2018, arXiv:1807.01969). priors.ARD is a similar proper prior.",
                ImproperPrior,
                stacklevel=2,
            )

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return distributions.LogUniform(shape).to_event(len(shape))

    def describe(self) -> str:
        return "LogUniform(kl=exact)"  # as files have it
