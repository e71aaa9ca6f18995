"""Bad arguments of samplers of the exact posterior."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import guides

from .harness import Call, Case, cases
from .kinds import COUNT, OBJECT, POSITIVE, Kind
from .shared import LABELS, N, X, Y, classifier, mlp, potential, sampled
from .test_predictions import DATA
from .test_training import DEVICE, NO_LABELS, NO_X, NO_Y

DTYPE = Kind({"word": lambda: "float32", "number": lambda: 32, "list": list})
MODELS = OBJECT | {"guide": lambda: guides.Point(mlp()), "class": lambda: pyrodrop.models.MLP}


def sample(x: Any = X, y: Any = Y, **kwargs: Any) -> Any:
    """Never samples: all of these calls are refused, but for the good one."""
    defaults = {
        "chains": 4,
        "draws": 4,
        "tune": 100,
        "engine": "traced",
        "max_steps": 1,
        "progress": False,
        "model": mlp(),
    }
    return pyrodrop.sample(**{**defaults, "data": (x, y), **kwargs})


def energy(x: Any = X, y: Any = Y, **kwargs: Any) -> Any:
    return pyrodrop.potential(**{"model": mlp(), "data": (x, y), "engine": "pyro", **kwargs})


def point() -> dict[str, torch.Tensor]:
    return potential().initial_params(0)


def changed(**values: Any) -> dict[str, Any]:
    return {**point(), **values}


BIAS = "layers.1.bias"
CALLS = [
    Call(
        "sample",
        dict,
        {
            "model": MODELS,
            "data": DATA,
            "x": NO_X,
            "y": NO_Y,
            "likelihood_power": POSITIVE,
            "dtype": DTYPE,
            "device": DEVICE.only("unknown", "number", "other", "None"),
        },
        function=sample,
    ),
    Call(
        "potential",
        dict,
        {
            "model": MODELS,
            "data": DATA,
            "x": NO_X.only("three columns", "NaN", "None", "two inputs"),
            "y": NO_Y.only("two columns", "an axis more", "bools", "complex", "masked array", "NaN"),
            "dtype": DTYPE,
        },
        function=energy,
        works={"y: vector": (lambda: Y[:, 0], lambda p: torch.equal(p(point()), energy()(point())))},
    ),
    Call(
        "potential of labels",
        lambda: {"y": LABELS},
        {"y": NO_LABELS},
        function=lambda y: energy(y=y, model=classifier().model),
    ),
    Call(
        "Potential",
        lambda: {"values": point()},
        {
            "values": OBJECT.but("dict")
            | {
                "missing": lambda: {BIAS: point()[BIAS]},
                "one more": lambda: changed(z=torch.ones(1)),
                "other shape": lambda: changed(**{BIAS: torch.ones(2)}),
                "other dtype": lambda: changed(**{BIAS: torch.ones(1).double()}),
                "a list": lambda: changed(**{BIAS: [1.0]}),
            }
        },
        function=lambda values: potential()(values),
    ),
    Call(
        "Potential.initial_params",
        lambda: {"seed": 0},
        function=lambda seed: potential().initial_params(seed),
    ),
    Call(
        "Sampled.weights",
        lambda: {"num_samples": 2},
        function=lambda num_samples: sampled().weights(num_samples),
    ),
    Call(
        "Sampled.thinned",
        lambda: {"num_samples": 4},
        {"num_samples": COUNT | {"more": lambda: 17, "fewer than chains": lambda: 3}},
        function=lambda num_samples: sampled().thinned(num_samples),
    ),
    Call(
        "Sampled.log_likelihood",
        lambda: {"data": (X, Y)},
        {"data": DATA, "y": NO_Y},
        function=lambda data=(X, Y), y=Y: sampled().log_likelihood((X, y) if y is not Y else data),
    ),
    Call(
        "Sampled.diagnostics",
        dict,
        {"x": NO_X.only("three columns", "NaN", "complex"), "data": DATA},
        function=lambda **kwargs: sampled().diagnostics(**kwargs),
    ),
]


@pytest.mark.few(7)
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_sampling(case: Case) -> None:
    assert case.wrong() == {}


def test_diagnostics_are_of_the_data_of_the_draws() -> None:
    with pytest.raises(ValueError, match="another fingerprint"):
        sampled().diagnostics(data=(X, Y + torch.arange(N)[:, None]))
