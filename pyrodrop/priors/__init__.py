"""Priors over weights. A prior returns the distribution of a weight, from the weight's name and shape.

`from_gp` chooses Gaussian priors for a network and its data; `from_posterior` makes a posterior the prior for the next data.
"""

from typing import TYPE_CHECKING, Any

from pyrodrop.names import missing
from pyrodrop.priors.anchored import Anchored
from pyrodrop.priors.ard import ARD
from pyrodrop.priors.gaussian import Gaussian
from pyrodrop.priors.heavy_tailed import Horseshoe, Laplace, ScaleMixture, SpikeAndSlab, StudentT
from pyrodrop.priors.informative import Informative, from_posterior
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
else:

    def __getattr__(name: str) -> Any:
        if name not in ("FittedPriors", "from_gp"):  # they import models, which import this package
            missing(__name__, __all__)(name)
        from pyrodrop.priors import fitted

        globals()[name] = getattr(fitted, name)
        return globals()[name]
