"""Likelihoods: how an observation scatters about a network's output. One file each."""

from pyrodrop.likelihoods.categorical import Categorical
from pyrodrop.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from pyrodrop.likelihoods.likelihood import Likelihood

__all__ = ["Categorical", "Gaussian", "HeteroscedasticGaussian", "Likelihood"]
