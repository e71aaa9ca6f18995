"""Dropout as variational inference, in Pyro: models that declare priors, guides that are dropout posteriors."""

from importlib.metadata import PackageNotFoundError, version

from pyrodrop import (
    data,
    distributions,
    divergences,
    guides,
    likelihoods,
    masks,
    metrics,
    models,
    priors,
    reparam,
    schedules,
    zoo,
)
from pyrodrop.fitted import Elbo, Fit
from pyrodrop.moments import Moments
from pyrodrop.predictive import Prediction, predict
from pyrodrop.problem import restart
from pyrodrop.replicates import Replicates
from pyrodrop.svi import fit

try:
    __version__ = version("pyrodrop")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "Elbo",
    "Fit",
    "Moments",
    "Prediction",
    "Replicates",
    "data",
    "distributions",
    "divergences",
    "fit",
    "guides",
    "likelihoods",
    "masks",
    "metrics",
    "models",
    "predict",
    "priors",
    "reparam",
    "restart",
    "schedules",
    "zoo",
]
