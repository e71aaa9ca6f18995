"""Priors over weights. A prior returns the distribution of a weight, from the weight's name and shape.

`from_gp` chooses Gaussian priors for a network and its data; `from_posterior` makes a posterior the prior for the next data.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyrodrop.priors.ard import ARD
from pyrodrop.priors.gaussian import Anchored, Gaussian, Informative, from_posterior
from pyrodrop.priors.heavy_tailed import Horseshoe, Laplace, ScaleMixture, SpikeAndSlab, StudentT
from pyrodrop.priors.log_uniform import ImproperPrior, LogUniform, TruncatedLogUniform
from pyrodrop.priors.prior import Prior

__all__ = [
    "ARD",
    "Anchored",
    "FittedPriors",
    "Gaussian",
    "Horseshoe",
    "ImproperPrior",
    "Informative",
    "Laplace",
    "LogUniform",
    "Prior",
    "ScaleMixture",
    "SpikeAndSlab",
    "StudentT",
    "TruncatedLogUniform",
    "from_gp",
    "from_posterior",
]

if TYPE_CHECKING:
    from pyrodrop.priors.fitted import FittedPriors, from_gp


def __getattr__(name: str) -> Any:
    """Names that are imported at their first use, since training needs priors and they need training."""
    if name not in ("FittedPriors", "from_gp"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    return getattr(import_module("pyrodrop.priors.fitted"), name)
