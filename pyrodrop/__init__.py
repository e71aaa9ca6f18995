"""Dropout as variational inference in Pyro: models declare priors, guides are dropout posteriors.

The public names of the package are attributes of this module. Each is imported at its first use, so that
``import pyrodrop`` and the command line's help do not wait for PyTorch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from pyrodrop.failed import extras

if TYPE_CHECKING:
    from pyrodrop import compression as compression
    from pyrodrop import data as data
    from pyrodrop import distributions as distributions
    from pyrodrop import divergences as divergences
    from pyrodrop import guides as guides
    from pyrodrop import likelihoods as likelihoods
    from pyrodrop import metrics as metrics
    from pyrodrop import models as models
    from pyrodrop import priors as priors
    from pyrodrop import recipes as recipes
    from pyrodrop import reparam as reparam
    from pyrodrop import schedules as schedules
    from pyrodrop import sklearn as sklearn
    from pyrodrop import zoo as zoo
    from pyrodrop.analysis import compare as compare
    from pyrodrop.analysis import to_arviz as to_arviz
    from pyrodrop.compiled import compile_svi as compile_svi
    from pyrodrop.prediction.predict import predict as predict
    from pyrodrop.prediction.prediction import Prediction as Prediction
    from pyrodrop.reading.last_layer import last_layer as last_layer
    from pyrodrop.reading.read import Reading as Reading
    from pyrodrop.reading.read import read as read
    from pyrodrop.sampling.potential import Potential as Potential
    from pyrodrop.sampling.potential import potential as potential
    from pyrodrop.sampling.sample import sample as sample
    from pyrodrop.sampling.sampled import Sampled as Sampled
    from pyrodrop.training.certificate import Certificate as Certificate
    from pyrodrop.training.checkpoint import Checkpoint as Checkpoint
    from pyrodrop.training.elbo import Elbo as Elbo
    from pyrodrop.training.fit import StepLosses as StepLosses
    from pyrodrop.training.fit import Training as Training
    from pyrodrop.training.fit import fit as fit
    from pyrodrop.training.replicates import Replicates as Replicates
    from pyrodrop.training.replicates import fit_replicates as fit_replicates
    from pyrodrop.training.result import Fit as Fit
    from pyrodrop.training.worth import Worth as Worth

try:
    __version__ = version("pyrodrop")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"

_FILES = {
    "analysis": ("compare", "to_arviz"),
    "prediction.predict": ("predict",),
    "prediction.prediction": ("Prediction",),
    "reading": ("Reading", "last_layer", "read"),
    "sampling": ("Potential", "Sampled", "potential", "sample"),
    "compiled": ("compile_svi",),
    "training.elbo": ("Elbo",),
    "training.fit": ("StepLosses", "Training", "fit"),
    "training.result": ("Fit",),
    "training.replicates": ("Replicates", "fit_replicates"),
    "training.checkpoint": ("Checkpoint",),
    "training.certificate": ("Certificate",),
    "training.worth": ("Worth",),
}
_PLACES = {name: file for file, names in _FILES.items() for name in names}
_MODULES = (
    "compression data distributions divergences guides likelihoods metrics models priors recipes reparam schedules zoo"
)
__all__ = sorted([*_PLACES, *_MODULES.split()])
_SLOW = ("analysis", "sklearn")  # not in ``from pyrodrop import *``: they need an extra, or are slow to import


class _Imports:
    """What importing other modules also does, for `sys.meta_path`.

    After `pyrodrop.distributions`, their KL divergences are registered with `torch.distributions`. A file of this package
    that imports a package of an extra which is not installed raises an error that names the line to install it.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, *_: Any) -> Any:
        if not name.startswith(f"{__name__}."):
            return None
        spec: Any = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            with extras():
                execute(module)
            if name == f"{__name__}.distributions":
                import_module(f"{__name__}.divergences")

        spec.loader.exec_module = executed
        return spec


sys.meta_path.insert(0, _Imports)


def __getattr__(name: str) -> Any:
    if name not in (*__all__, *_SLOW):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    if name not in _PLACES:
        return import_module(f"{__name__}.{name}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SLOW, *(name for name in globals() if name.startswith("__"))})
