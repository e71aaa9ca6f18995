"""Priors over weights, one file each. A prior returns the distribution of a weight of a given name and shape."""

from typing import TYPE_CHECKING

from pyrodrop.names import missing
from pyrodrop.priors.anchored import Anchored
from pyrodrop.priors.ard import ARD
from pyrodrop.priors.gaussian import Gaussian
from pyrodrop.priors.heavy_tailed import Horseshoe, Laplace, ScaleMixture, SpikeAndSlab, StudentT
from pyrodrop.priors.log_uniform import ImproperPrior, LogUniform, TruncatedLogUniform
from pyrodrop.priors.prior import Prior

__all__ = [
    "ARD",
    "Anchored",
    "Gaussian",
    "Horseshoe",
    "ImproperPrior",
    "Laplace",
    "LogUniform",
    "Prior",
    "ScaleMixture",
    "SpikeAndSlab",
    "StudentT",
    "TruncatedLogUniform",
]

if not TYPE_CHECKING:
    __getattr__ = missing(__name__, __all__)
