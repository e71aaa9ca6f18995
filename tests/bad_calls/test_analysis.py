"""Bad calls of comparisons, ArviZ trees, calibration, acquisition and Gaussian processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import analysis, guides
from pyrodrop.analysis import acquire
from pyrodrop.analysis.gp import GaussianProcess, GaussianProcessClassifier, Start

from .judge import Table, assert_refused, table
from .shared import LABELS, N, X, Y, fit, mlp, of_classes, process, replicates

SETTINGS: dict[str, Any] = {"steps": 1, "engine": "traced", "progress": False}


def compare(fits: Any = None, **more: Any) -> Any:
    return pyrodrop.compare({"a": fit()} if fits is None else fits, (X, Y), num_samples=2, **more)


def tree(of: Any = None, train: Any = (X, Y), **more: Any) -> Any:
    return pyrodrop.to_arviz(fit() if of is None else of, train, num_samples=2, **more)


def loo(of: Any = None, data: Any = None) -> Any:
    return analysis.loo(fit() if of is None else of, data, num_samples=25, force=True)


def kfold(k: int) -> Any:
    return analysis.kfold(mlp(), guides.Point(mlp()), (X, Y), k=k, num_samples=2, **SETTINGS)


def reloo(of: Any, num_samples: int = 25) -> Any:
    return analysis.reloo(of, mlp(), guides.Point(mlp()), num_samples=num_samples, **SETTINGS)


def sbc(**changed: Any) -> Any:
    good = {
        "model": mlp(),
        "make_guide": guides.MeanField,
        "x": X,
        "count": 2,
        "num_draws": 2,
        "steps": 1,
        "progress": False,
    }
    return analysis.sbc(**{**good, **changed})


def gp(y: Any = Y, kernel: Any = "squared-exponential", of: Any = GaussianProcess, **more: Any) -> Any:
    return of((X, y), kernel, learn=False, progress=False, **more)


def counts() -> pyrodrop.Prediction:
    return pyrodrop.Prediction(torch.ones(2, 3, 1), dist.Poisson(torch.ones(2, 3, 1)).to_event(1))


NO_FITS: dict[str, Callable[[], Any]] = {
    "at least one fit by name; got none": dict,
    "must have a method predict, .*got the float 1.0 for 'a'": lambda: {"a": 1.0},
    "the names of fit.* must be str; got the int 0": lambda: {0: fit()},
}
NO_TARGETS: dict[str, Any] = {
    r"vector; got shape \[3, 3\]": torch.ones(3, 3).long(), "list or vector; got torch.float32": torch.ones(2),
    "got torch.bool": torch.tensor([True, False, True]), "got numbers from -1 to -1": [-1],
    "got numbers from 0 to 8": [0, 8],
    "targets must be .*got": 1,
}  # fmt: skip
RATIOS = torch.zeros(30)
REFUSED: Table = {
    "compare": [
        *((lambda make=make: compare(make()), said) for said, make in NO_FITS.items()),
        (lambda: compare(reference=1.0), "reference must have a method predict"),
    ],
    "to_arviz": [
        *((lambda make=make: tree(make()), said) for said, make in NO_FITS.items()),
        (lambda: tree(mlp()), "fit must be a Fit, Replicates that are restarts, or a Gaussian process"),
        *(
            (lambda y=y: tree(test=(X, y)), r"test must have a y of the shape \[8, 1\] of the predictions; got \[8, ")
            for y in (torch.ones(N, 2), Y[..., None])
        ),
    ],
    "one data set": [
        *(
            (call, "must be the data that this fit was trained on|trained on other data")
            for call in (
                lambda: tree(train=(X, Y + 1)),
                lambda: loo(data=(X, Y + 1)),
                lambda: tree(replicates(), train=(X, Y + 1)),
                lambda: tree(process(), train=(X, Y + 1)),
            )
        )
    ],
    "comparisons": [
        (lambda: analysis.log_density(mlp(), (X, Y)), "run must have a method predict"),
        (lambda: loo(replicates()), "fit must be a Fit or a Sampled, whose draws have densities; got"),
        (lambda: analysis.k_hat(RATIOS * torch.nan), "log_ratio must be finite, or minus infinity where p is 0; got"),
        (lambda: analysis.k_hat(RATIOS[:24]), "k-hat needs at least 25 draws; got"),
    ],
    "analysis.sbc": [
        (lambda: sbc(model=fit()), "calibration needs a model of pyrodrop.models"),
        (lambda: sbc(make_guide=1.0), "make_guide must be a function of the model that returns its guide"),
        (lambda: sbc(points=torch.ones(N, 3)), r"points must have the form of x, x \[N, 2\]; got"),
        (lambda: analysis.sbc_of_draws(mlp(), 1.0, X, count=2, num_draws=2), "draw must be a function draw"),
    ],
    "analysis.acquire": [
        *(
            (lambda score=score: score(counts()), "needs a prediction of one label per row .*got Poisson")
            for score in (acquire.entropy, acquire.variance, acquire.bald)
        ),
        (lambda: acquire.bald(fit()), "prediction must be a Prediction"),  # type: ignore[arg-type]
        *((lambda t=targets: acquire.epig(of_classes(), t), said) for said, targets in NO_TARGETS.items()),
        (lambda: acquire.batch(of_classes(), N + 1), "size is the number of rows to pick .*from 1 to 8; got 9"),
    ],
    "gp.GaussianProcess": [
        (lambda: gp(torch.zeros(N, 2)), r"must have shape \[N, 1\] or \[N\]; got \(8, 2\)"),
        (lambda: process().predict(torch.zeros(3, 3)), r"must have shape \[N, 2\]; got \(3, 3\)"),
        (lambda: Start(1.0, 1.0, 1.0), "kernel must be|not both"),
        (lambda: gp(LABELS), "y: GaussianProcess needs floating-point y; .*use GaussianProcessClassifier"),
        *(
            (
                lambda kernel=kernel: gp(kernel=kernel),
                "kernel must be a name, a gpytorch kernel, a Start, .*got|no kernel is called",
            )
            for kernel in (None, 1.0, "rbf", [], [1.0], lambda: [1.0])
        ),
        (lambda: process().log_density((X, Y > 0)), "y of a GaussianProcess must be real numbers; got torch.bool"),
        (lambda: gp(LABELS, of=GaussianProcessClassifier, classes=2), "classes must be at least 3 for these labels"),
        (lambda: Start(1.0), "kernel must be a gpytorch kernel; got"),  # type: ignore[arg-type]
    ],
}


@pytest.mark.few(30)
@table(REFUSED)
def test_a_refusal(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


def test_what_only_looks_bad() -> None:
    """Data in another form are the data of the fit."""
    other = (X.numpy(), Y[:, 0].tolist())
    assert tree(train=other) is not None
    assert tree(test=(X, Y[:, 0])).predictions_constant_data.y_observed.shape == (N,)
    want = acquire.epig(of_classes(), [0, 1, 2])
    for targets in (np.arange(3), range(3)):
        torch.testing.assert_close(acquire.epig(of_classes(), targets), want)
    assert gp(Y[:, 0].numpy()).log_evidence == process().log_evidence
