"""Dropout as variational inference, in Pyro: models that declare priors, guides that are dropout posteriors."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pyrodrop import (
    data,
    distributions,
    divergences,
    guides,
    likelihoods,
    metrics,
    models,
    priors,
    reparam,
    schedules,
    zoo,
)
from pyrodrop.fitted import Elbo, Fit
from pyrodrop.predictive import Prediction, predict
from pyrodrop.problem import restart
from pyrodrop.replicates import Replicates
from pyrodrop.svi import fit

try:
    __version__ = version("pyrodrop")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"


def to_arviz(*args: Any, **settings: Any) -> Any:
    """A fit as an ArviZ data tree; see `pyrodrop.analysis.arviz_bridge.to_arviz`, imported when this is called."""
    from pyrodrop.analysis.arviz_bridge import to_arviz as bridge

    return bridge(*args, **settings)


def compare(*args: Any, **settings: Any) -> Any:
    """Fits side by side; see `pyrodrop.analysis.comparison.compare`, imported when this is called."""
    from pyrodrop.analysis.comparison import compare as side_by_side

    return side_by_side(*args, **settings)


__all__ = [
    "Elbo",
    "Fit",
    "Prediction",
    "Replicates",
    "compare",
    "data",
    "distributions",
    "divergences",
    "fit",
    "guides",
    "likelihoods",
    "metrics",
    "models",
    "predict",
    "priors",
    "reparam",
    "restart",
    "schedules",
    "to_arviz",
    "zoo",
]
