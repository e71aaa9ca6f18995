"""Dropout as variational inference in Pyro: models declare priors, guides are dropout posteriors.

What users call is found here, whichever file it lives in. Each part is imported when it is first asked for, so that
``import pyrodrop`` and the command line's help do not wait for PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from xarray import DataTree

    from pyrodrop import (
        compression,
        data,
        distributions,
        divergences,
        guides,
        likelihoods,
        metrics,
        models,
        priors,
        recipes,
        reparam,
        schedules,
        zoo,
    )
    from pyrodrop import sklearn as sklearn
    from pyrodrop.analysis import Comparison
    from pyrodrop.compiled import compile_svi
    from pyrodrop.data import Data
    from pyrodrop.inputs import Inputs
    from pyrodrop.prediction.moments import Moments
    from pyrodrop.prediction.predict import predict
    from pyrodrop.prediction.prediction import Prediction, Predicts
    from pyrodrop.reading.read import read
    from pyrodrop.reading.reading import Reading
    from pyrodrop.sampling.potential import Potential, potential
    from pyrodrop.sampling.sample import sample
    from pyrodrop.sampling.sampled import Sampled
    from pyrodrop.training.alpha_divergence import AlphaDivergence
    from pyrodrop.training.checkpoint import Checkpoint
    from pyrodrop.training.early_stopping import EarlyStopping
    from pyrodrop.training.estimates import Elbo, Objective
    from pyrodrop.training.fit import fit
    from pyrodrop.training.problem import restart
    from pyrodrop.training.replicates import Replicates, fit_replicates
    from pyrodrop.training.result import Fit
    from pyrodrop.training.training import StepLosses, Training

try:
    __version__ = version("pyrodrop")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"


def to_arviz(
    fit: Predicts,
    train: Data | Mapping[str, Any] | None = None,
    test: Data | Inputs | None = None,
    num_samples: int = 1000,
    weights: bool = False,
    *,
    log_likelihood: bool | None = None,
    seed: int = 0,
) -> DataTree:
    """Convert a fit to an ArviZ data tree; see `pyrodrop.analysis.to_arviz` for arguments and errors.

    `pyrodrop.analysis` and ArviZ are imported when this function is called.

    Example:
        >>> import torch, pyrodrop
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = pyrodrop.models.MLP(
        ...     [1, 8, 1], prior=pyrodrop.priors.Gaussian(), likelihood=pyrodrop.likelihoods.Gaussian(precision=10.0)
        ... )
        >>> fit = pyrodrop.fit(model, pyrodrop.guides.MeanField(model), (x, x**2), steps=5)
        >>> tree = pyrodrop.to_arviz(fit, (x, x**2), num_samples=30)
        >>> "log_likelihood" in tree.children, "posterior" in tree.children
        (False, True)
        >>> tree.attrs["log_likelihood_missing"]
        'k-hat of p / q is ..., above 0.7'
    """
    from pyrodrop import analysis

    return analysis.to_arviz(fit, train, test, num_samples, weights, log_likelihood=log_likelihood, seed=seed)


def compare(
    fits: Mapping[str, Predicts],
    data: Data | None = None,
    by: Literal[
        "log_density", "loo", "elbo", "total_variation", "agreement", "wasserstein", "covariance", "correlation"
    ] = "log_density",
    *,
    reference: Predicts | None = None,
    train: Data | None = None,
    num_samples: int = 1000,
    force: bool = False,
    seed: int = 0,
    progress: bool | None = None,
) -> Comparison:
    """Compare fits by their score on the same data, and with a reference such as samples of the exact posterior.

    See `pyrodrop.analysis.compare` for arguments and errors.

    `pyrodrop.analysis` is imported when this function is called.

    Example:
        >>> import torch, pyrodrop
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = pyrodrop.models.MLP(
        ...     [1, 8, 1], prior=pyrodrop.priors.Gaussian(), likelihood=pyrodrop.likelihoods.Gaussian(precision=10.0)
        ... )
        >>> guides = {"mean field": pyrodrop.guides.MeanField(model), "point": pyrodrop.guides.Point(model)}
        >>> fits = {name: pyrodrop.fit(model, guide, (x, x**2), steps=5) for name, guide in guides.items()}
        >>> comparison = pyrodrop.compare(fits, (x, x**2), num_samples=20)
        >>> sorted(comparison.rows)
        ['mean field', 'point']
        >>> sorted(comparison.rows["point"])
        ['difference', 'difference_se', 'log_density', 'log_density_se']
    """
    from pyrodrop import analysis

    return analysis.compare(
        fits,
        data,
        by,
        reference=reference,
        train=train,
        num_samples=num_samples,
        force=force,
        seed=seed,
        progress=progress,
    )


__all__ = [
    "AlphaDivergence",
    "Checkpoint",
    "EarlyStopping",
    "Elbo",
    "Fit",
    "Moments",
    "Objective",
    "Potential",
    "Prediction",
    "Reading",
    "Replicates",
    "Sampled",
    "StepLosses",
    "Training",
    "compare",
    "compile_svi",
    "compression",
    "data",
    "distributions",
    "divergences",
    "fit",
    "fit_replicates",
    "guides",
    "likelihoods",
    "metrics",
    "models",
    "potential",
    "predict",
    "priors",
    "read",
    "recipes",
    "reparam",
    "restart",
    "sample",
    "schedules",
    "to_arviz",
    "zoo",
]

_FILES = {
    "training.alpha_divergence": ("AlphaDivergence",),
    "prediction.moments": ("Moments",),
    "prediction.predict": ("predict",),
    "prediction.prediction": ("Prediction",),
    "reading": ("Reading", "read"),
    "sampling": ("Potential", "Sampled", "potential", "sample"),
    "compiled": ("compile_svi",),
    "training.estimates": ("Elbo", "Objective"),
    "training.fit": ("fit",),
    "training.result": ("Fit",),
    "training.problem": ("restart",),
    "training.replicates": ("Replicates", "fit_replicates"),
    "training.checkpoint": ("Checkpoint",),
    "training.early_stopping": ("EarlyStopping",),
    "training.training": ("StepLosses", "Training"),
}
_PLACES = {name: file for file, names in _FILES.items() for name in names}
_EXTRAS = ("analysis", "sklearn")  # what ``from pyrodrop import *`` leaves out: they need an extra, or import for long


def __getattr__(name: str) -> Any:
    if name not in (*__all__, *_EXTRAS):
        from pyrodrop.names import missing

        missing(__name__, __all__)(name)
    if name not in _PLACES:
        return import_module(f"{__name__}.{name}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_EXTRAS, *(name for name in globals() if name.startswith("__"))})
