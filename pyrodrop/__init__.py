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
    from pyrodrop.analysis import compare, to_arviz
    from pyrodrop.compiled import compile_svi
    from pyrodrop.prediction.moments import Moments
    from pyrodrop.prediction.predict import predict
    from pyrodrop.prediction.prediction import Prediction
    from pyrodrop.reading.last_layer import last_layer
    from pyrodrop.reading.read import read
    from pyrodrop.reading.reading import Reading
    from pyrodrop.sampling.potential import Potential, potential
    from pyrodrop.sampling.programs import SampledProgram
    from pyrodrop.sampling.sample import sample
    from pyrodrop.sampling.sampled import Sampled
    from pyrodrop.training.certificate import Certificate
    from pyrodrop.training.checkpoint import Checkpoint
    from pyrodrop.training.early_stopping import EarlyStopping
    from pyrodrop.training.estimates import Elbo, Objective
    from pyrodrop.training.fit import StepLosses, Training, fit
    from pyrodrop.training.problem import restart
    from pyrodrop.training.replicates import Replicates, fit_replicates
    from pyrodrop.training.result import Fit
    from pyrodrop.training.worth import Report, Worth

try:
    __version__ = version("pyrodrop")
except PackageNotFoundError:  # used from a checkout that is not installed
    __version__ = "0+unknown"

__all__ = [
    "Certificate",
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
    "Report",
    "Sampled",
    "SampledProgram",
    "StepLosses",
    "Training",
    "Worth",
    "compare",
    "compile_svi",
    "compression",
    "data",
    "distributions",
    "divergences",
    "fit",
    "fit_replicates",
    "guides",
    "last_layer",
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
    "analysis": ("compare", "to_arviz"),
    "prediction.moments": ("Moments",),
    "prediction.predict": ("predict",),
    "prediction.prediction": ("Prediction",),
    "reading": ("Reading", "last_layer", "read"),
    "sampling": ("Potential", "Sampled", "SampledProgram", "potential", "sample"),
    "compiled": ("compile_svi",),
    "training.estimates": ("Elbo", "Objective"),
    "training.fit": ("StepLosses", "Training", "fit"),
    "training.result": ("Fit",),
    "training.problem": ("restart",),
    "training.replicates": ("Replicates", "fit_replicates"),
    "training.checkpoint": ("Checkpoint",),
    "training.early_stopping": ("EarlyStopping",),
    "training.certificate": ("Certificate",),
    "training.worth": ("Report", "Worth"),
}
_PLACES = {name: file for file, names in _FILES.items() for name in names}
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
