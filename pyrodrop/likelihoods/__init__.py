"""Likelihoods: the distribution of an observation given the output of the network."""

from pyrodrop.checks import public
from pyrodrop.likelihoods.classes import Bernoulli, Categorical
from pyrodrop.likelihoods.counts import NegativeBinomial, Poisson
from pyrodrop.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian, HeteroscedasticLogNormal, StudentT
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.likelihoods.shapes import aligned, check_support, elements, per_row

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "HeteroscedasticLogNormal",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "StudentT",
    "aligned",
    "check_support",
    "elements",
    "per_row",
]

public(__name__, __all__)
