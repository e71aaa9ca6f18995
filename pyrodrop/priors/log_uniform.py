"""Log-uniform priors.

    p(log |w|) = const                      LogUniform, improper
    p(log |w|) = 1 / (high - low)           TruncatedLogUniform, on [low, high]

Kingma, Salimans & Welling (2015), section 3; Molchanov, Ashukha & Vetrov (2017); on its impropriety Hron, Matthews &
Ghahramani (2018), arXiv:1807.01969.
"""

from __future__ import annotations

import warnings
from typing import Literal

from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import distributions
from pyrodrop.names import known
from pyrodrop.priors.prior import Prior


class ImproperPrior(UserWarning):
    """A prior without an integral."""


class LogUniform(Prior):
    """The scale-invariant prior of variational dropout. It is improper.

    Its density has no integral, so there may be no posterior behind a fit, the ELBO bounds no evidence, and ELBOs compare
    only with others under this prior. It warns of that once. Proper relatives: `ARD`, `Horseshoe`.

    Args:
        kl: form of the divergence from a Gaussian: ``exact``, evaluated by a minimax rational approximation whose error per
            weight is below 1e-10 in float64 and 2e-6 in float32 (`pyrodrop.divergences.log_uniform_kl`); or the published
            approximations ``molchanov`` (error .0094 per weight) and ``kingma`` (alpha <= 1 only, error .041).
    """

    _warned = False

    def __init__(self, kl: Literal["exact", "molchanov", "kingma"] = "exact") -> None:
        self.kl = known(kl, ("exact", "molchanov", "kingma"), "form of the log-uniform divergence")
        if not LogUniform._warned:
            LogUniform._warned = True
            warnings.warn(
                "the log-uniform prior is improper: it has no integral, there may be no posterior behind the fit, and its "
                "ELBO is no bound on the evidence and comparable only under the same prior (Hron et al. 2018). "
                "priors.ARD is a proper relative.",
                ImproperPrior,
                stacklevel=2,
            )

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return distributions.LogUniform(shape, self.kl).to_event(len(shape))

    def describe(self) -> str:
        return f"LogUniform(kl={self.kl})"


class TruncatedLogUniform(Prior):
    """Log-uniform between two sizes: proper, but of bounded support.

    The divergence from it of any posterior with probability outside, a Gaussian's among them, is infinite and refused; it
    is for drawing from, and for posteriors of one's own within the bounds.

    Args:
        low, high: bounds of ln |w|.
    """

    def __init__(self, low: float = -20.0, high: float = 0.0) -> None:
        distributions.TruncatedLogUniform(low, high)  # checks
        self.low, self.high = low, high

    def expand(self, *shape: int, like: Tensor | None = None) -> TorchDistribution:
        return distributions.TruncatedLogUniform(self.low, self.high, shape).to_event(len(shape))

    def describe(self) -> str:
        return f"TruncatedLogUniform(low={self.low:g}, high={self.high:g})"
