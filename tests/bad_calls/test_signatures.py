"""What signatures say: every argument of every public callable refuses values of other types and beyond its bounds.

Callables and arguments are found by inspection, so that a new one is tested by its name and its annotation.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyrodrop import data, divergences, guides, likelihoods, priors, reparam
from pyrodrop.constraints import Choice, Constraint, Count, Flag, Real, constraints_of
from pyrodrop.training.settings import Settings

from .shared import X, Y, fit, mlp, prediction

MODULES = [
    "analysis", "analysis.acquire", "analysis.gp", "compression", "data", "distributions", "divergences", "guides",
    "likelihoods", "metrics", "models", "priors", "recipes", "reparam", "schedules", "zoo",
]  # fmt: skip
OTHERS = ["x", True, 1j, [1], np.ones(1), math.nan, math.inf, -math.inf]
REFUSED: dict[Any, list[Any]] = {
    Count: [*OTHERS, torch.ones(2), 3.0, 10**30],
    Real: [*OTHERS, torch.ones(2)],
    Flag: [0, 1, "no", [True], 1.0, torch.tensor(True)],
    Choice: ["nosuch", "", 3, ["x"], True, b"x"],
    int: ["x", True, 1.5, [1], -1, math.nan],
    float: ["x", True, [1], math.nan],
    bool: [0, "no"],
    Literal: ["nosuch", 3, ["x"]],
}


def objects() -> dict[str, Any]:
    """Every public function and class by name, without modules, errors and types of annotations."""
    named = {}
    for module in ["", *MODULES]:
        package = importlib.import_module(f"pyrodrop.{module}".rstrip("."))
        for name in getattr(package, "__all__", None) or vars(package):
            value = getattr(package, name)
            ours = getattr(value, "__module__", "").startswith(f"pyrodrop.{module}".rstrip("."))
            if ours and callable(value) and not name.startswith("_"):
                named[f"{module}.{name}".lstrip(".")] = value
    return named


def methods() -> Iterator[tuple[str, Any]]:
    for name, public in objects().items():
        yield name, public
        if isinstance(public, type):
            for method, function in inspect.getmembers(public, inspect.isfunction):
                if not method.startswith("_") and function.__module__.startswith("pyrodrop"):
                    yield f"{name}.{method}", function


CONSTRAINED = [
    pytest.param(public, argument, constraint, id=f"{name}-{argument}")
    for name, public in [*methods(), ("Settings", Settings)]
    for argument, constraint in constraints_of(public).items()
]


@pytest.mark.parametrize(("public", "argument", "constraint"), CONSTRAINED)
def test_a_constraint_is_checked(public: Callable[..., Any], argument: str, constraint: Constraint) -> None:
    """Before the function runs: without any other argument."""
    call = functools.partial(public, None) if "self" in inspect.signature(public).parameters else public
    step = 1 if isinstance(constraint, Count) else 1e-3
    past = {"least": -step, "most": step, "above": 0, "below": 0}
    bad = [*REFUSED[type(constraint)], *(number + past[bound] for bound, number in constraint.bounds.items())]
    for value in bad if constraint.optional else [None, *bad]:
        with pytest.raises((TypeError, ValueError)) as raised:
            call(**{argument: value})
        message = str(raised.value)
        assert message.startswith(f"{argument} ")
        assert "; got " in message
        assert all(word in message for word in constraint.allowed().split(" or "))


RECORDS = {  # what functions return, without checks of their own
    "Elbo", "Moments", "Objective", "Report", "StepLosses", "Worth", "Replicates", "Sampled", "Reading", "Potential",
    "analysis.Comparison", "analysis.KFold", "analysis.Loo", "analysis.SBC", "analysis.UnreliableLoo",
    "analysis.acquire.Batch", "analysis.gp.FittedPriors", "analysis.gp.NetworkKernel", "compression.CompressionReport",
    "compression.Measured", "distributions.ConstantLeftOut", "divergences.NoDivergence", "guides.RateKind",
    "metrics.CalibrationCurve", "metrics.Conformal", "metrics.Uncertainty", "priors.ImproperPrior", "recipes.Recipe",
    "zoo.ExactPosterior", "priors.Prior", "analysis.to_arviz", "analysis.compare",
}  # fmt: skip


LOC = torch.ones(3, 2)
ARGUMENTS: dict[str, Callable[[], Any]] = {  # a value of each required argument, by its name or by callable and name
    "activation": lambda: "relu", "confidence": lambda: torch.rand(3), "conventions": lambda: [divergences.EXACT],
    "count": lambda: 2, "data": lambda: (X, Y), "degrees": lambda: torch.zeros(2), "density": lambda: lambda w, m: 0.0,
    "df": lambda: frame(), "diagonal": lambda: torch.ones(6), "dims": lambda: 1, "distance": lambda: torch.rand(3),
    "distribution": lambda: dist.Normal(torch.zeros(2, 8, 1), 1.0).to_event(1), "draw": lambda: torch.ones(2),
    "draws": lambda: torch.randn(2, 3), "drop_rate": lambda: 0.5, "dropouts": lambda: Dropouts([]),
    "epochs": lambda: 3, "f": lambda: torch.zeros(2, 8, 1), "factor": lambda: torch.ones(6, 1), "fit": fit,
    "fits": lambda: {"a": fit()}, "g": lambda: lambda m, e: m * e, "group": lambda: "layer", "guide": lambda: guides.Point(mlp()),
    "guides": lambda: guides.Point(mlp()), "high": lambda: 0.0, "history": lambda: torch.zeros(1, 3),
    "images": lambda: torch.rand(2, 1, 4, 4), "increment": lambda: 0.1, "inside": lambda: torch.rand(3),
    "keep": lambda: torch.ones(3, 2) > 0, "kernel": lambda: "squared-exponential", "kind": lambda: "exact", "level": lambda: 0.5,
    "likelihood": lambda: likelihoods.Gaussian(1.0), "load": lambda: list, "loc": lambda: LOC, "log_alpha": lambda: torch.zeros(3, 2),
    "log_ratio": lambda: torch.linspace(0, 1, 30), "logit": lambda: torch.zeros(2), "loss": lambda: torch.rand(3),
    "low": lambda: -1.0, "make_guide": lambda: guides.MeanField, "mean": lambda: Y, "model": mlp, "models": mlp, "n": lambda: 3,
    "name": lambda: "a", "net": dropout_network, "network": dropout_network, "noise": lambda: lambda m: dist.Normal(m, 1.0),
    "nu": lambda: 0.5, "num_data": lambda: 9, "optim": lambda: pyro.optim.Adam({}), "outside": lambda: torch.rand(3),
    "p": lambda: priors.Gaussian().expand(3, 2), "path": lambda: "never written", "period": lambda: 1.0,
    "pit_values": lambda: torch.rand(3), "precision": lambda: 1.0, "predicted": lambda: torch.full((2, 8, 3), 1 / 3),
    "prediction": prediction, "prior": priors.Gaussian, "q": lambda: MultiplicativeNormal(LOC, 0.0), "bits": lambda: 8,
    "reason": lambda: "none", "regularizer": lambda: None, "rows": lambda: [([0, 1], [2])], "run": fit, "scale": lambda: 0.5,
    "seed": lambda: 0, "settings": dict, "shape": lambda: (3, 2), "size": lambda: 2, "source": str, "start": lambda: 0.0,
    "steps": lambda: 1, "strategy": reparam.LocalReparam, "summary": str, "tag": lambda: divergences.EXACT, "after": lambda: 0.0,
    "target": lambda: "price", "targets": lambda: [0], "temperature": lambda: 1.0, "test": lambda: data.Dataset(X, Y),
    "threshold": lambda: 3.0, "train": lambda: data.Dataset(X, Y), "validation": lambda: (X, Y), "value": lambda: LOC,
    "values": lambda: {"x": X}, "weight_decay": lambda: 1e-3, "widths": lambda: [2, 3, 1], "x": lambda: X, "x_unit": str, "y": lambda: Y,
    "y_unit": str, "zoo.Entry.data": lambda: "line", "zoo.Entry.published": dict, "zoo.Entry.model": lambda: mlp,
}  # fmt: skip
