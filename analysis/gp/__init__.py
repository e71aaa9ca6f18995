"""Gaussian processes with the predictive interface of a fit: baselines, and the infinite-width limit of a network's prior.

process = gp.GaussianProcess(data, "matern-5/2")                         y [N, 1]
process = gp.GaussianProcess(data, gp.from_model(model), learn=False)    the model's prior, exact inference
process = gp.GaussianProcessClassifier(data, "squared-exponential")      y [N], integer labels
process.predict(x), process.log_density(data)
priors.from_gp(model, data)                                              priors for training the network itself
"""

from pyrodrop.analysis.gp.classifier import GaussianProcessClassifier
from pyrodrop.analysis.gp.from_model import bias_spread, from_model
from pyrodrop.analysis.gp.inducing import Inducing
from pyrodrop.analysis.gp.latent import EXACT_LIMIT
from pyrodrop.analysis.gp.network_kernel import NetworkKernel
from pyrodrop.analysis.gp.process import GaussianProcess
from pyrodrop.analysis.gp.starts import KERNELS, Start, matern, squared_exponential, trend_and_season

__all__ = [
    "EXACT_LIMIT",
    "KERNELS",
    "GaussianProcess",
    "GaussianProcessClassifier",
    "Inducing",
    "NetworkKernel",
    "Start",
    "bias_spread",
    "from_model",
    "matern",
    "squared_exponential",
    "trend_and_season",
]
