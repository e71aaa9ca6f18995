"""Likelihoods: the distribution of an observation given the output of the network."""

from pyrodrop.likelihoods.censored import Censored, Missing
from pyrodrop.likelihoods.classes import Bernoulli, Categorical, Ordinal
from pyrodrop.likelihoods.counts import NegativeBinomial, Poisson
from pyrodrop.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian, StudentT
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.likelihoods.positive import Beta, Gamma, HeteroscedasticLogNormal, LogNormal
from pyrodrop.likelihoods.shapes import aligned, check_support, elements, per_row

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Censored",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "HeteroscedasticLogNormal",
    "Likelihood",
    "LogNormal",
    "Missing",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "StudentT",
    "aligned",
    "check_support",
    "elements",
    "per_row",
]
