"""Bad arguments of comparisons, ArviZ trees, calibration and Gaussian processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import analysis, guides
from pyrodrop.analysis import acquire
from pyrodrop.analysis.gp import GaussianProcess, GaussianProcessClassifier, Inducing, Start, from_model
from pyrodrop.analysis.gp.starts import matern, squared_exponential, trend_and_season

from .harness import Call, Case, cases
from .kinds import COUNT, FLAG, INSIDE, NAME, NOT_NEGATIVE, OBJECT, POSITIVE, SEED, Kind, Shows, tensor
from .parts import prediction
from .shared import LABELS, N, X, Y, fit, mlp, model, process, replicates, sampled
from .test_predictions import DATA
from .test_training import NO_LABELS, NO_X, NO_Y

SEEDS = SEED.only("float", "string", "negative", "NaN", "bool")
COUNTS = COUNT.only("zero", "negative", "float", "string", "None", "bool", "infinity")
FITS = OBJECT | {"a fit": fit, "no fits": lambda: {"a": 1.0}, "numbered": lambda: {0: fit()}}
RATIOS = tensor(30).but("number", "bool") | Kind({"few": lambda: torch.zeros(24)})


def compare(x: Any = X, y: Any = Y, **kwargs: Any) -> Any:
    return pyrodrop.compare(**{"fits": {"a": fit()}, "data": (x, y), "num_samples": 2, **kwargs})


def tree(x: Any = X, y: Any = Y, **kwargs: Any) -> Any:
    return pyrodrop.to_arviz(**{"fit": fit(), "train": (x, y), "num_samples": 2, **kwargs})


def loo(y: Any = None, **kwargs: Any) -> Any:
    data = {} if y is None else {"data": (X, y)}
    return analysis.loo(**{"fit": fit(), "num_samples": 25, "force": True, **data, **kwargs})


def density(x: Any = X, y: Any = Y, **kwargs: Any) -> Any:
    return analysis.log_density(**{"run": fit(), "data": (x, y), "num_samples": 2, **kwargs})


def kfold(**kwargs: Any) -> Any:
    defaults = {"model": mlp(), "guide": guides.Point(mlp()), "data": (X, Y), "k": 2, "num_samples": 2}
    return analysis.kfold(**{**defaults, "steps": 1, "engine": "traced", "progress": False, **kwargs})


def reloo(**kwargs: Any) -> Any:
    defaults = {"fit": fit(), "model": mlp(), "guide": guides.Point(mlp()), "num_samples": 25}
    return analysis.reloo(**{**defaults, "steps": 1, "engine": "traced", "progress": False, **kwargs})


def sbc(**kwargs: Any) -> Any:
    defaults = {"model": mlp(), "make_guide": guides.MeanField, "x": X, "count": 2, "num_draws": 2, "steps": 1}
    return analysis.sbc(**{**defaults, "progress": False, **kwargs})


def drawn(x: Any, y: Any, num_draws: int, seed: int) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(num_draws, *value.shape) for name, value in mlp().weight_sites().items()}


def classes(**kwargs: Any) -> dict[str, Any]:
    return {"prediction": prediction(classes=2), **kwargs}


def regression(x: Any = X, y: Any = Y, **kwargs: Any) -> Any:
    defaults = {"data": (x, y), "kernel": "squared-exponential", "learn": False, "progress": False}
    return GaussianProcess(**{**defaults, **kwargs})


def classification(y: Any = LABELS, **kwargs: Any) -> Any:
    defaults = {"data": (X, y), "kernel": "squared-exponential", "learn": False, "progress": False}
    return GaussianProcessClassifier(**{**defaults, **kwargs})


ONES = torch.ones(2, 3, 1)
PREDICTIONS = OBJECT | {
    "moments": lambda: fit().predict(X, 2, keep="moments"),
    "probabilities": lambda: torch.full((2, 3, 2), 0.5),
    "counts": Shows("Poisson", lambda: pyrodrop.Prediction(ONES, dist.Poisson(ONES).to_event(1))),
}
TARGETS = tensor(3, like=lambda shape: torch.ones(shape, dtype=torch.int64)).but(
    "bool", "number", "infinity", "NaN"
) | {
    "floats": lambda: torch.ones(2),
    "mask": lambda: torch.tensor([True, False, True]),
    "number": lambda: 1,
    "negative": lambda: [-1],
    "too large": lambda: [0, 3],
}


def epig(targets: list[int]) -> torch.Tensor:
    torch.manual_seed(0)
    return acquire.epig(prediction(classes=2), targets)


KERNEL = Kind({
    "None": lambda: None, "number": lambda: 1.0, "unknown": lambda: "rbf", "list": list, "numbers": lambda: [1.0],
    "function of numbers": lambda: lambda: [1.0],
})  # fmt: skip
CALLS = [
    Call(
        "compare",
        dict,
        {
            "fits": FITS,
            "data": DATA,
            "x": NO_X.only("three columns", "NaN", "complex", "masked array"),
            "y": NO_Y,
            "by": NAME.but("None") | {"None": lambda: None},
            "reference": OBJECT.but("None"),
            "num_samples": COUNTS,
            "force": FLAG,
            "seed": SEEDS,
            "progress": FLAG.but("None"),
        },
        function=compare,
    ),
    Call(
        "to_arviz",
        dict,
        {
            "fit": OBJECT | {"no fits": dict, "numbered": lambda: {0: fit()}, "a number": lambda: {"a": 1.0}},
            "train": DATA,
            "y": NO_Y.only("two columns", "an axis more", "NaN", "complex", "bools"),
            "num_samples": COUNTS,
            "weights": FLAG,
            "log_likelihood": FLAG.but("None"),
            "seed": SEEDS,
        },
        function=tree,
    ),
    Call(
        "analysis.log_density",
        dict,
        {
            "run": OBJECT,
            "data": DATA,
            "x": NO_X.only("three columns", "NaN", "complex", "masked array"),
            "y": NO_Y,
        },
        function=density,
        works={"y: array": (lambda: Y.numpy(), lambda value: torch.equal(value, density()))},
    ),
    Call(
        "analysis.loo",
        dict,
        {
            "fit": OBJECT | {"replicates": replicates},
            "data": DATA,
            "y": NO_Y.only("two columns", "an axis more", "NaN", "complex"),
        },
        function=loo,
    ),
    Call(
        "analysis.kfold",
        dict,
        {
            "data": DATA,
            "k": COUNT | {"one": lambda: 1, "more than rows": lambda: N + 1},
        },
        function=kfold,
    ),
    Call(
        "analysis.reloo",
        dict,
        {"fit": OBJECT | {"sampled": sampled}, "num_samples": COUNTS | {"few": lambda: 24}, "seed": SEEDS},
        function=reloo,
    ),
    Call("analysis.k_hat", lambda: {"log_ratio": torch.linspace(0, 1, 30)}, {"log_ratio": RATIOS}),
    Call(
        "analysis.sbc",
        dict,
        {
            "model": OBJECT,
            "make_guide": OBJECT,
            "x": NO_X.only("three columns", "NaN", "complex"),
            "points": NO_X.only("three columns", "NaN", "complex"),
            "count": COUNT | {"one": lambda: 1},
            "num_draws": COUNT,
            "steps": COUNT,
            "lr": POSITIVE.only("negative", "zero", "NaN", "string", "bool"),
            "batch_size": COUNT.only("infinity", "zero", "float"),
            "estimator": NAME,
            "starts": NAME,
            "memory": POSITIVE.but("None"),
            "seed": SEEDS,
            "progress": FLAG.but("None"),
        },
        function=sbc,
    ),
    Call(
        "analysis.sbc_of_draws",
        lambda: {"model": mlp(), "draw": drawn, "x": X, "count": 2, "num_draws": 2},
        {"count": COUNT | {"one": lambda: 1}},
    ),
    *(
        Call(f"analysis.acquire.{name}", classes, {"prediction": PREDICTIONS})
        for name in ("entropy", "variance", "bald")
    ),
    Call(
        "analysis.acquire.epig",
        lambda: classes(targets=[0, 2]),
        {"prediction": PREDICTIONS, "targets": TARGETS},
        works={
            "targets: array": (lambda: np.array([0, 2]), lambda result: torch.equal(result, epig([0, 2]))),
            "targets: range": (lambda: range(3), lambda result: torch.equal(result, epig([0, 1, 2]))),
        },
    ),
    Call(
        "analysis.acquire.batch",
        lambda: classes(size=2),
        {"prediction": PREDICTIONS, "size": COUNT | {"more than rows": lambda: 4}},
    ),
    Call(
        "gp.GaussianProcess",
        dict,
        {
            "data": DATA,
            "x": tensor(N, 2).but("number", "bool") | {"two inputs": lambda: (X, X)},
            "y": NO_Y.but("bools") | {"labels": lambda: LABELS, "bools": lambda: Y > 0},
            "kernel": KERNEL,
            "learn": FLAG,
            "inducing": COUNT.but("None"),
            "seed": SEED,
            "progress": FLAG.but("None"),
        },
        function=regression,
        works={"y: vector": (lambda: Y[:, 0].numpy(), lambda gp: gp.log_evidence == regression().log_evidence)},
    ),
    Call(
        "gp.GaussianProcess.predict",
        lambda: {"x": X, "num_samples": 2},
        {
            "x": NO_X,
            "num_samples": COUNT,
            "seed": SEED,
            "joint": FLAG,
        },
        function=lambda **kwargs: process().predict(**kwargs),
    ),
    Call(
        "gp.GaussianProcess.log_density",
        dict,
        {"y": NO_Y | {"labels": lambda: LABELS}, "data": DATA},
        function=lambda y=Y, **kwargs: process().log_density(**{"data": (X, y), **kwargs}),
    ),
    Call(
        "gp.GaussianProcessClassifier",
        dict,
        {
            "y": NO_LABELS.but("too large"),
            "alpha_epsilon": POSITIVE,
            "classes": COUNT.but("None") | {"too few": lambda: 2},
            "learn": FLAG,
            "inducing": COUNTS.but("None"),
            "seed": SEEDS,
        },
        function=classification,
    ),
    Call(
        "gp.Inducing",
        dict,
        {"points": COUNT, "steps": COUNT, "batch_size": COUNT, "lr": POSITIVE, "natural_lr": INSIDE.but("one")},
        function=Inducing,
    ),
    Call(
        "gp.Start",
        lambda: {"kernel": squared_exponential()[0].kernel},
        {
            "kernel": OBJECT,
            "noise": POSITIVE.but("None"),
            "precision": POSITIVE.but("None"),
            "classes": COUNT.but("None"),
        },
        function=Start,
    ),
    Call("gp.squared_exponential", lambda: {"dims": 2}, {"dims": COUNT}, function=squared_exponential),
    Call(
        "gp.matern",
        lambda: {"nu": 0.5, "dims": 2},
        {"nu": POSITIVE | {"2": lambda: 2.0}, "dims": COUNT},
        function=matern,
    ),
    Call("gp.trend_and_season", lambda: {"period": 1.0}, {"period": POSITIVE}, function=trend_and_season),
    Call(
        "gp.from_model",
        lambda: {"model": model(activation="relu")},
        {
            "model": OBJECT,
            "guide": OBJECT.but("None") | {"mean field": lambda: guides.MeanField(model())},
            "tanh_as_erf": FLAG,
        },
        function=from_model,
    ),
    Call(
        "gp.from_model of biases",
        lambda: {"model": model(activation="relu", bias_prior=None), "bias_scale": 1.0},
        {"bias_scale": NOT_NEGATIVE.but("None", "dict")},
        function=from_model,
    ),
]


@pytest.mark.few(7)
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_analysis(case: Case) -> None:
    assert case.wrong() == {}


def test_one_posterior_has_one_data_set() -> None:
    """Trees and importance weights of a fit are of the data that it was trained on, also in another form."""
    other = (X, Y + 1)
    for call in (lambda d: tree(train=d), lambda d: loo(data=d), lambda d: tree(fit=replicates(), train=d)):
        with pytest.raises(ValueError, match=r"must be the data that this fit was trained on|trained on other data"):
            call(other)
        assert call((X.numpy(), Y[:, 0].tolist())) is not None
    with pytest.raises(ValueError, match="train must be the data that this fit was trained on"):
        tree(fit=process(), train=other)


@pytest.mark.few(1)
@pytest.mark.parametrize("y", [torch.ones(N, 2), Y[..., None]])
def test_a_test_set_has_the_y_of_the_predictions(y: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"test must have a y of the shape \[8, 1\] of the predictions; got \[8, "):
        tree(test=(X, y))
    assert tree(test=(X, Y[:, 0])).predictions_constant_data.y_observed.shape == (N,)


def test_points_of_a_tree_may_be_an_array() -> None:
    assert np.array_equal(tree(test=X[:3].numpy()).predictions.f, tree(test=X[:3]).predictions.f)
