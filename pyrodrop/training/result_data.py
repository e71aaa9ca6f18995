"""The data that a method of a fit is computed on: the training data, or data that the user passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyrodrop.checks import mapped, shown
from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.dataset import check_inputs
from pyrodrop.data.loader import Loader, read_for
from pyrodrop.likelihoods.censored import leaves_out_missing
from pyrodrop.steps import Arguments, Call
from pyrodrop.training.rows import arguments_of, none_by_default

TrainingData = Dataset | Loader | Keywords


def data_for(fit: Any, name: str, data: Any, optional: Collection[str] = ()) -> TrainingData:
    """The training data, or `data` if it is not None, which may lack the `optional` arguments of a program."""
    if data is None:
        if fit.data is None:
            raise ValueError(f"a loaded fit or a reading has no training data, which must be passed, {name}(data=...)")
        training: TrainingData = fit.data
        return training
    if "arguments" in fit.settings:
        return Keywords.named(data, fit.settings["arguments"], optional)
    if isinstance(data, Mapping):
        raise TypeError(f"data must be (x, y) or a Dataset, as in training, or None; got {shown(data)}")
    missing = leaves_out_missing(fit.model)
    return read_for(data, missing=missing) or Dataset.of(data, missing=missing)


def arguments_at(fit: Any, x: Any) -> Arguments:
    """The arguments of a fitted program at x, or those of training if x is None; see `Fit.predict`."""
    if x is None or "arguments" in fit.settings:
        optional = none_by_default(fit.model) if isinstance(x, Mapping) else ()
        return arguments_of(data_for(fit, "predict", x, optional), fit.device)
    return Call((mapped(lambda part: part.to(fit.device), check_inputs(x)), None), {})


def rows_of(fit: Any, name: str) -> Dataset | None:
    """The training data of a fit, for the function of this name, which needs rows of x and y.

    None after loading, and where training read them a minibatch at a time.

    Raises:
        TypeError: the fit is of a Pyro program, whose data are keyword arguments.
    """
    if isinstance(fit.data, Keywords):
        raise TypeError(
            f"{name} needs data with rows, (x, y) or a Dataset; this fit is of a Pyro program with the keyword arguments "
            f"{', '.join(fit.data.values)}"
        )
    return None if isinstance(fit.data, Loader) else fit.data
