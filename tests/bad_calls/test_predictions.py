"""Bad arguments of fits and predictions, and of scores of predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import metrics
from pyrodrop.scaling import Standardize

from .harness import Call, Case, cases
from .kinds import COUNT, INSIDE, NAME, OBJECT, SEED, UNCHECKED, Kind, kind, tensor
from .shared import LABELS, N, X, Y, classifier, fit, mlp, replicates, sampled
from .test_training import NO_LABELS, NO_X, NO_Y, OTHER_GUIDES

SAMPLES, FEW_SEEDS = COUNT, SEED.only("float", "string", "negative", "NaN")
NO_POINTS = NO_X
DATA = Kind({
    "one tensor": lambda: torch.ones(2, N), "number": lambda: 1.0, "string": lambda: "x", "dict": lambda: {"x": X, "y": Y},
    "one": lambda: (X,), "three": lambda: (X, Y, Y),
})  # fmt: skip


def on(y: Any, call: Callable[..., Any]) -> Any:
    return call(data=(X, y))


def elbo(x: Any = X, y: Any = Y, **kwargs: Any) -> Any:
    return fit().elbo(**{"num_samples": 2, "data": (x, y), **kwargs})


def predicted() -> pyrodrop.Prediction:
    return fit().predict(X, 4)


def of_classes() -> pyrodrop.Prediction:
    return classifier().predict(X, 4)


def same(call: Callable[[Any], Any], y: Any) -> Callable[[Any], None]:
    """Checks a result against that of a call with a float32 or int64 tensor."""

    def check(result: Any) -> None:
        want = call(y)
        torch.testing.assert_close(torch.as_tensor(result).double(), torch.as_tensor(want).double())

    return check


def density(y: Any) -> Any:
    return predicted().log_density(y)


def label_density(y: Any) -> Any:
    return of_classes().log_density(y)


TENS = torch.arange(2 * N).reshape(N, 2)
Y_WORKS: dict[str, Any] = {
    "vector": lambda: Y[:, 0], "array": lambda: Y.numpy(), "backwards": lambda: Y.numpy()[::-1][::-1],
    "big endian": lambda: Y.numpy().astype(">f4"), "series": lambda: pd.Series(Y[:, 0].numpy(), index=range(N, 0, -1)),
    "frame": lambda: pd.DataFrame({"y": Y[:, 0].numpy()}), "list": lambda: Y.tolist(), "float64": lambda: Y.double(),
    "with gradient": lambda: Y.clone().requires_grad_(),
}  # fmt: skip
LABEL_WORKS: dict[str, Any] = {
    "bytes": lambda: LABELS.byte(), "array": lambda: LABELS.numpy().astype(">u4"), "list": LABELS.tolist,
    "series": lambda: pd.Series(LABELS.numpy(), dtype="Int8"),
}  # fmt: skip


def works(cases: dict[str, Any], call: Callable[[Any], Any], good: Any) -> dict[str, Any]:
    return {f"y: {label}": (value, same(call, good)) for label, value in cases.items()}


P = torch.full((N, 3), 1 / 3)
CALLS = [
    Call(
        "predict",
        lambda: {"run": fit(), "x": X, "num_samples": 2},
        {"run": OBJECT, "x": NO_POINTS},
        works={
            "x: whole numbers": (lambda: TENS, lambda p: torch.equal(p.f, fit().predict(TENS.float(), 2).f)),
            "x: frame": (
                lambda: pd.DataFrame(TENS.numpy(), columns=["a", "b"]),
                lambda p: torch.equal(p.f, fit().predict(TENS.float(), 2).f),
            ),
            "x: float16": (lambda: X.half(), lambda p: torch.equal(p.f, fit().predict(X.half().float(), 2).f)),
            "x: list": (X.tolist, lambda p: torch.equal(p.f, fit().predict(X, 2).f)),
            "x: expanded": (lambda: X[:1].expand(N, 2), lambda p: torch.equal(p.f[:, 0], p.f[:, -1])),
            "x: one row": (lambda: X[:1], lambda p: torch.equal(p.f, fit().predict(X, 2).f[:, :1])),
        },
    ),
    Call(
        "Fit.module",
        lambda: {"draws": 2},
        {"draws": COUNT, "seed": FEW_SEEDS, "keep": NAME, "x": NO_POINTS.only("three columns", "NaN")},
        function=lambda **kwargs: fit().module(**kwargs),
    ),
    Call(
        "Replicates.predict",
        lambda: {"x": X, "num_samples": 2},
        {"x": NO_POINTS.only("three columns", "NaN", "None"), "seed": FEW_SEEDS},
        function=lambda **kwargs: replicates().predict(**kwargs),
    ),
    Call(
        "Sampled.predict",
        lambda: {"x": X, "num_samples": 2},
        {"x": NO_POINTS.only("three columns", "NaN", "None"), "seed": FEW_SEEDS, "keep": NAME},
        function=lambda **kwargs: sampled().predict(**kwargs),
    ),
    Call(
        "Fit.elbo",
        dict,
        {"num_samples": COUNT, "seed": SEED, "data": DATA, "x": NO_X, "y": NO_Y},
        function=elbo,
    ),
    Call(
        "Fit.elbo of labels",
        lambda: {"y": LABELS},
        {"y": NO_LABELS},
        function=lambda y: classifier().elbo(2, (X, y)),
    ),
    Call(
        "Fit.objective",
        lambda: {"num_samples": 2},
        {"seed": FEW_SEEDS, "data": DATA},
        function=lambda **kwargs: fit().objective(**kwargs),
    ),
    Call(
        "Fit",
        lambda: {"model": mlp(), "guide": fit().guide, "data": None, "history": torch.zeros(1, 3), "settings": {}},
        {"guide": OTHER_GUIDES.but("auto"), "model": UNCHECKED, "device": UNCHECKED, "loss": UNCHECKED},
    ),
    Call(
        "Prediction",
        lambda: {"f": torch.zeros(2, 3, 1), "distribution": dist.Normal(torch.zeros(2, 3, 1), 1.0).to_event(1)},
        {
            "f": OBJECT.but("tensor") | {"vector": lambda: torch.ones(3)},
            "distribution": OBJECT
            | {
                "other points": lambda: dist.Normal(torch.zeros(2, 4, 1), 1.0).to_event(1),
                "other samples": lambda: dist.Normal(torch.zeros(3, 3, 1), 1.0).to_event(1),
            },
            "seed": UNCHECKED,
            "joint": UNCHECKED,
            "missing": UNCHECKED,
        },
    ),
    Call(
        "Prediction.of_draws",
        lambda: {"f": torch.zeros(2, 3, 1), "likelihood": pyrodrop.likelihoods.Gaussian(1.0)},
        {
            "f": tensor(2, 3, 1).but("another axis")
            | {"vector": lambda: torch.ones(3), "whole": lambda: torch.ones(2, 3, 1).int()},
            "likelihood": OBJECT
            | {
                "class": lambda: pyrodrop.likelihoods.Gaussian,
                "unknown noise": pyrodrop.likelihoods.Gaussian,
                "two outputs": pyrodrop.likelihoods.HeteroscedasticGaussian,
                "one class": pyrodrop.likelihoods.Categorical,
            },
            "targets": OBJECT.but("None") | {"columns": lambda: Standardize(torch.zeros(2), torch.ones(2))},
        },
        works={
            "f: one column": (lambda: np.zeros((2, 3), np.float16), lambda prediction: prediction.f.shape == (2, 3, 1)),
            "f: backwards": (
                lambda: np.arange(6.0).reshape(2, 3)[::-1],
                lambda prediction: prediction.f[0, 0, 0] == 3,
            ),
        },
    ),
    Call(
        "Prediction.sample_y",
        lambda: {"num_samples": 2},
        function=lambda **kwargs: predicted().sample_y(**kwargs),
    ),
    Call(
        "Prediction.log_density",
        lambda: {"y": Y},
        {"y": NO_Y | {"rows": lambda: Y[:3]}},
        function=density,
        works=works(Y_WORKS, density, Y),
    ),
    Call(
        "Prediction.log_density of labels",
        lambda: {"y": LABELS},
        {"y": NO_LABELS},
        function=label_density,
        works=works(LABEL_WORKS, label_density, LABELS),
    ),
    Call(
        "Prediction.quantile",
        lambda: {"q": 0.5},
        {"q": INSIDE.but("vector", "array", "series", "list") | kind(empty=[], above_one_in_list=[0.5, 1.5]), },
        function=lambda **kwargs: predicted().quantile(**kwargs),
        works={
            "q: list": (lambda: [0.1, 0.9], lambda quantiles: quantiles.shape == (2, N, 1)),
            "q: series": (lambda: pd.Series([0.1]), lambda quantiles: quantiles.shape == (1, N, 1)),
            "q: number of NumPy": (lambda: np.float32(0.5), lambda quantiles: quantiles.shape == (N, 1)),
        },
    ),
    Call(
        "Prediction.interval",
        lambda: {"level": 0.5},
        function=lambda **kwargs: predicted().interval(**kwargs),
    ),
    Call("Prediction.cdf", lambda: {"y": Y}, {"y": NO_Y}, function=lambda y: predicted().cdf(y)),
    Call(
        "metrics.regression_scores",
        lambda: {"y": Y},
        {"y": NO_Y},
        function=lambda y: metrics.regression_scores(predicted(), y),
    ),
    Call(
        "metrics.classification_scores",
        lambda: {"predicted": P, "y": LABELS},
        {"predicted": tensor(N, 3).but("number", "bool", "another axis"), "y": NO_LABELS},
        works={
            "predicted: array": (lambda: P.numpy(), lambda scores: scores["accuracy"] == metrics.accuracy(P, LABELS)),
            "y: bools": (lambda: LABELS > 1, lambda scores: scores["accuracy"] == metrics.accuracy(P, (LABELS > 1).long())),
        },
    ),
    Call(
        "metrics.conformal",
        lambda: {"prediction": predicted(), "y": Y},
        {"y": NO_Y, "groups": kind(word="a", number=3, few=["a"]), "blocks": kind(word="a", few=[1, 2])},
        works={"groups: array": (lambda: np.arange(N) % 2, lambda made: len(made.units) == 2)},
    ),
    Call(
        "metrics.rmse",
        lambda: {"mean": Y, "y": Y},
        {"y": tensor(N, 1), "mean": tensor(N, 1)},
        works={"y: array": (lambda: Y.numpy() + 1, lambda value: abs(value - 1) < 1e-6)},
    ),
    Call("metrics.crps", lambda: {"draws": Y[None], "y": Y}, {"y": tensor(N, 1).but("empty"), "draws": tensor(1, N, 1)}),
]  # fmt: skip


@pytest.mark.few(7)
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_prediction(case: Case) -> None:
    assert case.wrong() == {}


def test_a_guide_of_another_network_predicts_nothing() -> None:
    """Also one that this package does not know: its weights have other shapes."""

    class Own:
        def posterior(self, name: str) -> Any:
            wide = {"layers.1.weight": (8, 3), "layers.1.bias": (8,)}.get(name, tuple(mlp().weight_sites()[name].shape))
            return dist.Normal(torch.zeros(wide), 1.0).to_event(len(wide))

        def __call__(self, *args: Any) -> None:
            raise AssertionError

    run: Any = pyrodrop.Fit(mlp(), Own(), None, torch.zeros(1, 3), {})
    for more in ({}, {"keep": "moments"}, {"joint": False}):
        with pytest.raises(ValueError, match=r"guide must .* 'layers.1.weight' has shape \[1, 3\]; got .* \[8, 3\]"):
            run.predict(X, 2, **more)


def test_labels_of_a_prediction_mean_the_same_in_every_form() -> None:
    """Against the log of the mean probability, by hand."""
    prediction = of_classes()
    by_hand = prediction.f.softmax(-1).mean(0)[torch.arange(N), LABELS].log()
    for y in (LABELS, LABELS.numpy(), LABELS.tolist(), pd.Series(LABELS.numpy(), index=np.arange(N)[::-1])):
        torch.testing.assert_close(prediction.log_density(y), by_hand)


def test_values_that_a_distribution_cannot_have_are_refused() -> None:
    counts = pyrodrop.Prediction(torch.zeros(2, 3), dist.Poisson(torch.ones(2, 3)))
    assert math.isfinite(float(counts.log_density([0, 1, 2]).sum()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in the support of the prediction, of Poisson .*got -1"):
        counts.log_density(torch.tensor([0.0, -1.0, 2.0]))
