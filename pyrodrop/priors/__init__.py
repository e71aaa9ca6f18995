"""Priors over weights. A prior returns the distribution of a weight, from the weight's name and shape.

`from_gp` chooses Gaussian priors for a network and its data.
"""

from typing import TYPE_CHECKING

from pyrodrop.checks import public
from pyrodrop.priors.ard import ARD
from pyrodrop.priors.gaussian import Gaussian
from pyrodrop.priors.log_uniform import ImproperPrior, LogUniform
from pyrodrop.priors.prior import Prior

__all__ = [
    "ARD",
    "FittedPriors",
    "Gaussian",
    "ImproperPrior",
    "LogUniform",
    "Prior",
    "from_gp",
]

if TYPE_CHECKING:
    from pyrodrop.priors.fitted import FittedPriors, from_gp

public(__name__, __all__, dict.fromkeys(("FittedPriors", "from_gp"), "pyrodrop.priors.fitted"))
