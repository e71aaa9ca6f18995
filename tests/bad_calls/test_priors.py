"""Bad arguments of the priors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from pyrodrop import likelihoods, priors

from .harness import Call, Case, cases
from .kinds import DROP_RATE, FLAG, INSIDE, OBJECT, POSITIVE, REAL, SEED, UNCHECKED, Kind, Shows, tensor
from .shared import N, X, Y, fit, model
from .test_predictions import DATA
from .test_training import NO_Y


def from_gp(x: Any = X, y: Any = Y, **kwargs: Any) -> Any:
    return priors.from_gp(**{"model": model(), "data": (x, y), **kwargs})


HYPERPRIOR = OBJECT.but("None") | {
    "whole line": lambda: dist.Normal(0.0, 1.0),
    "student": lambda: dist.StudentT(3.0),
    "below zero": lambda: dist.Uniform(-1.0, 1.0),
    "two": Shows("shape (2,)", lambda: dist.HalfCauchy(1.0).expand((2,))),
    "discrete": lambda: dist.Poisson(1.0),
    "event": Shows("shape (2,)", lambda: dist.InverseGamma(torch.ones(2), 1.0).to_event(1)),
    "of torch": lambda: torch.distributions.HalfCauchy(1.0),
}
DECAY = {"weight_decay": 1e-4, "drop_rate": 0.1, "num_data": 10, "precision": 2.0}


def like(scale: float) -> Any:
    return lambda prior: prior.expand(3).base_dist.scale.allclose(torch.tensor(scale))


CALLS = [
    Call(
        "priors.Gaussian",
        lambda: {"scale": 2.0},
        {"scale": POSITIVE.but("None", "list") | {"huge": lambda: 10**400}, "length_scale": UNCHECKED, "drawn": FLAG},
        works={
            "scale: numpy": (lambda: np.float32(0.5), like(0.5)),
            "scale: tensor": (lambda: torch.tensor(0.5), like(0.5)),
            "scale: int": (lambda: 3, like(3.0)),
            "scale: None": (lambda: None, like(1.0)),
        },
    ),
    Call(
        "priors.Gaussian",
        lambda: {"length_scale": 2.0},
        {"length_scale": POSITIVE.but("None", "list"), "scale": Kind({"both": lambda: 2.0})},
    ),
    Call(
        "priors.Gaussian.from_weight_decay",
        lambda: DECAY,
        {"weight_decay": POSITIVE, "drop_rate": DROP_RATE, "precision": POSITIVE},
    ),
    Call(
        "priors.Gaussian.weight_decay",
        lambda: {name: value for name, value in DECAY.items() if name != "weight_decay"},
        {"drop_rate": DROP_RATE, "precision": POSITIVE},
        function=lambda **kwargs: priors.Gaussian().weight_decay(**kwargs),
    ),
    Call(
        "priors.Anchored", dict, {"scale": POSITIVE}, works={"scale: int": (lambda: 2, lambda prior: prior.scale == 2)}
    ),
    Call(
        "priors.Informative",
        lambda: {"loc": torch.zeros(2, 3), "scale": 0.5},
        {"loc": tensor(2, 3).but("another axis"), "scale": POSITIVE, "factor": tensor(6, 2).but("None")},
    ),
    Call("priors.from_posterior", lambda: {"fit": fit()}, {"fit": OBJECT}),
    Call("priors.Laplace", lambda: {"scale": 2.0}, {"scale": POSITIVE}, works={"scale: int": (lambda: 2, like(2.0))}),
    Call("priors.StudentT", lambda: {"df": 3.0, "scale": 1.0}, {"df": POSITIVE, "scale": POSITIVE}),
    Call("priors.ScaleMixture", dict, {"wide": POSITIVE, "narrow": POSITIVE, "mix": INSIDE}),
    Call("priors.SpikeAndSlab", dict, {"slab": POSITIVE, "spike": POSITIVE, "mix": INSIDE}),
    Call("priors.Horseshoe", dict, {"scale": POSITIVE}),
    Call("priors.LogUniform"),
    Call(
        "priors.from_gp",
        dict,
        {
            "model": OBJECT | {"labels": lambda: model(2, 3, 3, likelihood=likelihoods.Categorical())},
            "data": DATA,
            "x": tensor(N, 2).but("number", "bool") | {"two inputs": lambda: (X, X)},
            "y": NO_Y.but("bools"),
            "learn_noise": FLAG,
            "seed": SEED,
        },
        function=from_gp,
    ),
    Call("priors.TruncatedLogUniform", dict, {"low": REAL | {"above": lambda: 1.0}}),
    Call(
        "priors.ARD",
        dict,
        {"hyperprior": HYPERPRIOR},
        works={
            "hyperprior: half Cauchy": (lambda: dist.HalfCauchy(0.1), lambda prior: "HalfCauchy" in prior.describe()),
            "hyperprior: half normal": (lambda: dist.HalfNormal(0.1), lambda prior: "HalfNormal" in prior.describe()),
            "hyperprior: log normal": (lambda: dist.LogNormal(0.0, 1.0), lambda prior: "LogNormal" in prior.describe()),
            "hyperprior: gamma": (lambda: dist.Gamma(1.0, 1.0), lambda prior: "Gamma" in prior.describe()),
        },
    ),
]


@pytest.mark.few(6)
@pytest.mark.filterwarnings("ignore:the log-uniform prior is improper")
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_prior(case: Case) -> None:
    assert case.wrong() == {}
