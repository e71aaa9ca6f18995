"""Likelihoods: the distribution of an observation given the output of the network. One file each."""

from pyrodrop.likelihoods.categorical import Categorical
from pyrodrop.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.likelihoods.missing import Missing
from pyrodrop.likelihoods.shapes import aligned, check_support, elements, per_row

__all__ = [
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Missing",
    "aligned",
    "check_support",
    "elements",
    "per_row",
]
