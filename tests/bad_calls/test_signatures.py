"""What signatures say: every argument of every public callable refuses values of other types and beyond its bounds.

Callables and arguments are found by inspection, so that a new one is tested by its name and its annotation.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyrodrop import data, divergences, guides, likelihoods, priors, reparam, zoo
from pyrodrop.checks import Constraint, choice, constraints_of, count, flag, number
from pyrodrop.distributions import MultiplicativeNormal
from pyrodrop.training.settings import Settings

from .judge import raised_here
from .shared import MANY, X, Y, dropout_network, fit, mlp, prediction, sparse

MODULES = [
    "analysis", "analysis.acquire", "analysis.gp", "compression", "data", "distributions", "divergences", "guides",
    "likelihoods", "metrics", "models", "priors", "recipes", "reparam", "schedules", "zoo",
]  # fmt: skip
OTHERS = ["x", True, 1j, [1], np.ones(1), math.nan, math.inf, -math.inf]
REFUSED: dict[Any, list[Any]] = {
    count: [*OTHERS, torch.ones(2), 3.0, 10**30],
    number: [*OTHERS, torch.ones(2)],
    flag: [0, 1, "no", [True], 1.0, torch.tensor(True)],
    choice: ["nosuch", "", 3, ["x"], True, b"x"],
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
    if (name, argument) != ("fit_replicates", "starts")
]


@pytest.mark.few(40)
@pytest.mark.parametrize(("public", "argument", "constraint"), CONSTRAINED)
def test_a_constraint_is_checked(public: Callable[..., Any], argument: str, constraint: Constraint) -> None:
    """Before the function runs: without any other argument."""
    call = functools.partial(public, None) if "self" in inspect.signature(public).parameters else public
    step = 1 if constraint.check is count else 1e-3
    past = {"least": -step, "most": step, "above": 0, "below": 0}
    bad = [*REFUSED[constraint.check], *(end + past[bound] for bound, end in constraint.bounds.items())]
    for value in bad if constraint.optional else [None, *bad]:
        with pytest.raises((TypeError, ValueError)) as raised:
            call(**{argument: value})
        message = str(raised.value)
        assert message.startswith(f"{argument} ")
        assert "; got " in message
        assert all(word in message for word in constraint.allowed().split(" or "))


RECORDS = {  # what functions return, and base classes
    "Elbo", "Potential", "Sampled", "StepLosses", "guides.RateKind", "analysis.KFold",
    "distributions.ConstantLeftOut", "priors.FittedPriors", "analysis.gp.NetworkKernel", "analysis.acquire.Batch",
    "analysis.Loo", "analysis.SBC", "analysis.Comparison", "zoo.Problem", "recipes.Curve", "Certificate",
    "recipes.Recipe",
    "metrics.Uncertainty",
    "metrics.Conformal", "metrics.CalibrationCurve",
    "models.NetworkModel", "zoo.Entry", "models.TrainedNetwork",
}  # fmt: skip
UNCHECKED = {  # what functions return, and what is shown, passed on or registered
    "divergences.Convention", "divergences.convention", "divergences.divergence", "divergences.pair", "divergences.refuse",
    "data.Split.name", "data.Split.source", "x_unit", "y_unit",
    "divergences.worst", "distributions.NoiseForm",
    "guides.FromNoise", "guides.from_noise",
    "likelihoods.aligned", "likelihoods.check_support", "likelihoods.elements", "likelihoods.per_row.dims",
    "Fit", "predict", "Reading", "Replicates", "Worth", "Prediction.seed", "Prediction.f_sd", "Prediction.joint",
    "analysis.kfold", "analysis.reloo", "analysis.gp.Start", "analysis.gp.from_model.bias_scale",
    "compression.compress.x", "reparam.LazyWeight", "log_alpha_range",
    "distributions.LogUniform", "distributions.BernoulliMixture", "distributions.CorrelatedNormal",
    "distributions.CutNormal",
    "distributions.LowRankNormal", "distributions.MultiplicativeNormal", "distributions.PooledNormal",
    "distributions.RelaxedBernoulliMixture", "distributions.WeightDistribution", "recipes.Curve", "zoo.Problem",
}  # fmt: skip


@functools.cache
def arguments() -> dict[str, Any]:
    """A value of each required argument, by its name or by callable and argument."""
    rates, weight, labels, net = torch.rand(3), torch.ones(3, 2), torch.arange(8) % 3, torch.nn.Linear(2, 1)
    return {
        "activation": "relu", "confidence": rates, "conventions": [divergences.EXACT], "count": 2, "data": (X, Y),
        "degrees": torch.zeros(2), "density": lambda w, m: 0.0, "df": 3.0, "diagonal": torch.ones(6), "dims": 1,
        "distance": rates, "distribution": dist.Normal(torch.zeros(2, 8, 1), 1.0).to_event(1), "draw": lambda: None,
        "draws": Y.expand(2, 8, 1), "drop_rate": 0.5, "epochs": 3, "f": torch.zeros(2, 8, 1), "factor": torch.ones(6,
        1),
        "fit": fit(), "fits": {"a": fit()}, "g": lambda m, e: m * e, "group": "layer", "guide": guides.Point(mlp()),
        "guides": guides.Point(mlp()), "high": 0.0, "images": torch.rand(2, 1, 4, 4), "increment": 0.1, "inside": rates,
        "keep": weight > 0, "kernel": "squared-exponential", "kind": "exact", "level": 0.5,
        "likelihood": likelihoods.Gaussian(1.0), "load": list, "loc": weight, "log_alpha": torch.zeros(2),
        "log_ratio": torch.linspace(0, 1, 30), "logit": torch.zeros(2), "loss": rates, "low": -1.0,
        "make_guide": guides.MeanField, "mean": Y, "model": mlp(), "models": mlp(), "n": 3, "name": "a", "net": net,
        "network": net, "noise": lambda m: dist.Normal(m, 1.0), "nu": 0.5, "optim": pyro.optim.Adam({}),
        "outside": rates,
        "p": rates, "path": "never written", "period": 1.0, "pit_values": rates, "precision": 1.0,
        "predicted": torch.full((2, 8, 3), 1 / 3), "prediction": prediction(), "prior": priors.Gaussian(), "bits": 8,
        "q": MultiplicativeNormal(weight, 0.0), "reason": "none", "regularizer": None, "rows": [([0, 1], [2])],
        "run": fit(), "scale": 0.5, "seed": 0, "settings": {}, "shape": (3, 2), "size": 2, "source": "", "start": 0.0,
        "strategy": reparam.LocalReparam(), "summary": "", "tag": divergences.EXACT, "after": 0.0, "target": "price",
        "targets": [0], "temperature": 1.0, "test": data.Dataset(X, Y), "threshold": 3.0, "train": data.Dataset(X, Y),
        "validation": (X, Y), "value": weight, "values": {"x": X}, "weight_decay": 1e-3, "widths": [2, 3, 1], "x": X,
        "x_unit": "", "y": Y, "y_unit": "", "classes": 3, "what": "it", "num_data": 9, "steps": 1, "history": rates,
        "compile_svi.loss": pyro.infer.Trace_ELBO(),
        "fit.guide": guides.Point(mlp()),
        "fit.data": (X, Y),
        "fit.steps": 1,
        "models.Neighbours.rows": 3,
        "compression.compress.guide": sparse(),
        "recipes.curve.data": (MANY, MANY[:, 0]),
        "distributions.NoiseForm.loc": abs, "zoo.load.name": zoo.names()[0],
        "divergences.divergence.q": dist.Normal(0.0, 1.0), "divergences.divergence.p": dist.Normal(0.0, 1.0),
        "divergences.refuse.p": dist.Normal, "divergences.pair.q": dist.Normal, "divergences.refuse.q": dist.Normal,
        "divergences.pair.p": dist.Normal,
        "analysis.gp.GaussianProcessClassifier.data": (X, labels), "read.weight_decay": 1e-3, "compare.data": (X, Y),
        "analysis.compare.data": (X, Y), "sample.engine": "traced", "read.net": dropout_network(),
        "recipes.regressor.data": (MANY, MANY[:, 0]), "recipes.classifier.data": (MANY, torch.arange(20) % 3),
        "distributions.CorrelatedNormal.log_alpha": torch.zeros(3), "distributions.CorrelatedNormal.loc": weight,
    }  # fmt: skip


def required(name: str, public: Callable[..., Any]) -> dict[str, Any] | None:
    """Arguments of a call by name; None for records, whose arguments are not in the list."""
    values = {}
    for argument, parameter in inspect.signature(public).parameters.items():
        of = f"{name}.{argument}" if f"{name}.{argument}" in arguments() else argument
        if (
            parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and parameter.default is parameter.empty
        ):
            if of not in arguments():
                return None
            values[argument] = arguments()[of]
        elif "." in of:
            values[argument] = arguments()[of]
    return values


def taking() -> dict[str, Any]:
    return {
        name: public
        for name, public in objects().items()
        if not (isinstance(public, type) and issubclass(public, Exception))
    }


@pytest.mark.few(40)
@pytest.mark.parametrize(("name", "public"), taking().items(), ids=taking())
def test_no_argument_takes_just_any_object(name: str, public: Callable[..., Any]) -> None:
    """The error is this package's, and names the argument."""
    named = required(name, public)
    assert named is not None or name in RECORDS, "a callable without arguments to call it with"
    wrong = {}
    for argument, parameter in inspect.signature(public).parameters.items():
        open_ended = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if named is None or open_ended or {name, argument, f"{name}.{argument}"} & UNCHECKED:
            continue
        said = rf"\b{argument}\b|called <object"
        try:
            public(**{**named, argument: object()})
            wrong[argument] = "accepted"
        except Exception as error:
            if not (isinstance(error, ValueError | TypeError) and raised_here(error) and re.search(said, str(error))):
                wrong[argument] = repr(error)
    assert wrong == {}
