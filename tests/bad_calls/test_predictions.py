"""Bad calls of predictions and of their scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import metrics

from .judge import Table, assert_refused, table
from .shared import X, Y, mlp, prediction

ONES, P = torch.ones(3, 2), torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
CLASSES = torch.tensor([0, 1, 1])
EACH = torch.full((2, 3, 2), 0.5)
SCORES: dict[str, Callable[..., Any]] = {
    name: getattr(metrics, name)
    for name in (
        "accuracy", "brier", "classification_scores", "ece", "calibration_curve",
    )
}  # fmt: skip
ENTROPIES = {name: getattr(metrics, name) for name in ("mutual_information", "entropy_split")}
NO_PROBABILITIES: dict[str, Any] = {
    r"must lie in \[0, 1\] and sum to 1 .*got values from -1 to 2": torch.tensor([[2.0, -1.0]] * 3),
    r"must have shape \[N, C\], or \[T, N, C\] .*got \(3,\)": torch.ones(3),
    "a prediction of class labels or a tensor of class probabilities, .*got a Prediction of Normal": prediction,
    "predicted must be a tensor, .*got the str 'x'": "x",
    "predicted must be .*complex": P + 0j,
    "predicted must be finite|which are already averaged": P * torch.nan,
    "predicted must contain at least one observation": P[:0],
}
NO_CLASSES: dict[str, Any] = {
    "y must be a tensor, .*got the str 'x'": "x",
    "y: class labels must be whole numbers .*got torch.float32": torch.zeros(3),
    r"y: class labels must have shape \[3\].*one-hot": torch.eye(3, 2).long(),
    "y: class labels must lie in 0 ... 1, for 2 classes; got 0 to 2": torch.tensor([0, 1, 2]),
    r"y must have a class label for each of 3 predictions; got shape \[2\]": CLASSES[:2],
    "y must have a value everywhere; got a masked array": np.ma.masked_array([0, 1, 0], [True, False, False]),
}
NO_NUMBERS: dict[str, Any] = {
    "must be a tensor, .*got the str 'x'": "x", "must be finite; got": ONES * torch.nan,
    "must be .*complex64": ONES + 0j,
    "have a value everywhere; got a masked": np.ma.masked_array(np.ones((3, 2)), np.eye(3, 2) > 0),
    "in every row; got NaN or null": pd.DataFrame({"a": [1.0, None, 2.0], "b": [1.0, 2.0, 3.0]}),
    "equally long rows": [[1.0], [1.0, 2.0]],
}  # fmt: skip
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "rmse-mean": lambda v: metrics.rmse(v, ONES),
    "rmse-y": lambda v: metrics.rmse(ONES, v),
    "crps-y": lambda v: metrics.crps(EACH, v),
    "coverage-pit_values": lambda v: metrics.coverage(v, 0.5),
}


def made(value: Any) -> Any:
    return value() if value is prediction else value


F, AT = torch.zeros(2, 3, 1), dist.Normal(torch.zeros(2, 3, 1), 1.0).to_event(1)
REFUSED: Table = {
    "predict": [
        (lambda: pyrodrop.predict(mlp(), X, 2), "run must be a Fit, or an object with a method predict; got"),
    ],
    **{
        f"metrics.{name}": [
            *((lambda of=of, v=v: of(made(v), CLASSES), said) for said, v in NO_PROBABILITIES.items()),
            *((lambda of=of, v=v: of(P, v), said) for said, v in NO_CLASSES.items()),
        ]
        for name, of in SCORES.items()
    },
    **{
        f"metrics.{name}": [
            *(
                (lambda of=of, v=v: of(made(v)), said)
                for said, v in NO_PROBABILITIES.items()
                if "sum to" not in said and "least" not in said
            ),
            (lambda of=of: of(EACH[0]), r"of every sample, \[T, N, C\]; got probabilities of shape \(3, 2\)"),
        ]
        for name, of in ENTROPIES.items()
    },
    "metrics.predictive_entropy": [
        (lambda v=v: metrics.predictive_entropy(made(v)), said) for said, v in NO_PROBABILITIES.items()
    ],
    **{
        f"metrics.{name}": [(lambda of=of, v=v: of(v), said) for said, v in NO_NUMBERS.items()]
        for name, of in NUMBERS.items()
    },
    "metrics.shapes": [
        (
            lambda: metrics.rmse(ONES, torch.ones(4, 2)),
            r"mean and y must have the same shape; got \(3, 2\) and \(4, 2\)",
        ),
        (lambda: metrics.crps(EACH, torch.ones(4, 2)), r"samples \[S, ...\] and observations \[...\] of one shape"),
        (lambda: metrics.regression_scores(prediction(), Y[:3]), "y must have the shape .* of the prediction"),
    ],
    "Prediction": [
        (
            lambda: pyrodrop.Prediction(torch.ones(3), AT),
            r"f must be samples of the function, a tensor \[S, N, ...\]; got",
        ),
        *(
            (
                lambda shape=shape: pyrodrop.Prediction(F, dist.Normal(torch.zeros(shape), 1.0).to_event(1)),
                "distribution must have batch shape",
            )
            for shape in ((2, 4, 1), (3, 3, 1))
        ),
    ],
}


class Other:
    """A guide of another network, which this package does not know: its weights have other shapes."""

    def posterior(self, name: str) -> Any:
        shape = {"layers.1.weight": (8, 3), "layers.1.bias": (8,)}.get(name, tuple(mlp().weight_sites()[name].shape))
        return dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape))

    def __call__(self, *args: Any) -> None:
        raise AssertionError


@pytest.mark.few(30)
@table(REFUSED)
def test_a_refusal(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


def test_a_guide_of_another_network_predicts_nothing() -> None:
    run: Any = pyrodrop.Fit(mlp(), Other(), None, torch.zeros(1, 3), {})
    with pytest.raises(ValueError, match=r"guide must .*'layers.1.weight'.*\[1, 3\].*got .*\[8, 3\]"):
        run.predict(X, 2)
