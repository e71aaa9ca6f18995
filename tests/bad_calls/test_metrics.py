"""Bad arguments of the metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pyrodrop import metrics

from .harness import Call, Case, cases
from .kinds import COUNT, INSIDE, OBJECT, POSITIVE, Shows, kind, tensor
from .parts import prediction

NUMBERS = tensor(3, 2).but("another axis", "number", "bool", "nothing", "dict", "None", "objects", "masked array")
NUMBERS |= kind(none=None, ragged=[[1.0], [1.0, 2.0]], mapping={}) | {
    "scalar": lambda: torch.tensor(1.0),
    "masked": Shows("masked", lambda: np.ma.masked_array(np.ones((3, 2)), np.eye(3, 2) > 0)),
    "missing": Shows("NaN", lambda: pd.DataFrame({"a": [1.0, None, 2.0], "b": [1.0, 2.0, 3.0]})),
    "text": Shows("String", lambda: pd.DataFrame({"a": ["x"] * 3, "b": [1.0, 2.0, 3.0]}).astype({"a": "string"})),
}
TALL = {"another shape": lambda: torch.ones(4, 2), "row": lambda: torch.ones(2)}
ROWS = {"[N]": lambda: torch.ones(3)}
LABELS = NUMBERS.but("empty", "infinity", "NaN", "scalar", "missing", "text", "masked", "ragged") | {
    "floats": lambda: torch.zeros(3),
    "one-hot": lambda: torch.eye(3, 2, dtype=torch.int64),
    "too large": lambda: torch.tensor([0, 1, 2]),
    "negative": lambda: torch.tensor([0, 1, -1]),
    "fewer": lambda: torch.tensor([0, 1]),
    "column": lambda: torch.zeros(3, 1, dtype=torch.int64),
    "masked labels": Shows("masked", lambda: np.ma.masked_array([0, 1, 0], [True, False, False])),
}
PROBABILITIES = NUMBERS.but("missing", "text", "masked", "scalar") | {
    "logits": lambda: torch.tensor([[2.0, -1.0]] * 3),
    "counts": lambda: torch.full((3, 2), 2.0),
    "vector": lambda: torch.ones(3),
    "of real numbers": Shows("Normal", lambda: prediction()),
    "string of classes": lambda: "cat",
}
VECTOR = tensor(3).but(
    "infinity", "masked array", "objects", "number", "bool", "nothing", "None", "dict", "strings"
) | kind(none=None, words=["a", "b"])


def p() -> dict[str, Any]:
    return {"predicted": torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), "y": torch.tensor([0, 1, 1])}


def both(name: str) -> dict[str, Any]:
    return {name: torch.randn(3, 2), "y": torch.randn(3, 2)}


def draws() -> dict[str, Any]:
    return {"draws": torch.randn(5, 3, 2), "y": torch.randn(3, 2)}


def scored(score: Any) -> dict[str, Any]:
    """Forms in which labels and probabilities are taken, with the value for tensors."""
    labels = [0, 1, 1]
    want = score(**p())
    forms = {
        "list": lambda: labels,
        "numpy": lambda: np.array(labels, dtype=np.uint8),
        "pandas": lambda: pd.Series(labels),
    }
    forms |= {"bools": lambda: torch.tensor(labels).bool()}
    works: dict[str, Any] = {f"y: {form}": (made, lambda score: score == want) for form, made in forms.items()}
    return works | {"predicted: numpy": (lambda: p()["predicted"].numpy(), lambda score: score == want)}


CLASSES = {"predicted": PROBABILITIES, "y": LABELS}
ENTROPY = PROBABILITIES | {"averaged": lambda: torch.full((3, 2), 0.5)}
SAMPLES = {"predicted": torch.full((2, 3, 2), 0.5)}


def _moments() -> Any:
    return [torch.zeros(3, 1)]


CALLS = [
    *(
        Call(f"metrics.{name}", p, CLASSES, works=scored(getattr(metrics, name)))
        for name in ("accuracy", "brier", "negative_log_likelihood")
    ),
    Call(
        "metrics.classification_scores",
        p,
        {"predicted": PROBABILITIES.only("logits", "complex", "of real numbers"), "y": LABELS},
    ),
    *(
        Call(f"metrics.{name}", p, CLASSES | {"bins": COUNT}, works=scored(getattr(metrics, name)))
        for name in ("ece", "adaptive_ece")
    ),
    Call("metrics.calibration_curve", p, CLASSES | {"bins": COUNT}),
    Call(
        "metrics.rmse",
        lambda: both("mean"),
        {"mean": NUMBERS | TALL, "y": NUMBERS | TALL},
        works={"y: float32 frame": (lambda: pd.DataFrame(np.zeros((3, 2), np.float32)), lambda score: 0 < score < 3)},
    ),
    Call(
        "metrics.log_predictive_density",
        lambda: {"f": torch.randn(4, 3, 2), "y": torch.randn(3, 2), "precision": 2.0},
        {
            "f": NUMBERS | {"one sample": lambda: torch.ones(3, 2)},
            "y": NUMBERS | TALL | ROWS,
            "precision": POSITIVE.but("vector")
            | {
                "by column": lambda: torch.ones(2),
                "by sample": lambda: torch.ones(4, 1),
                "negative in it": lambda: torch.tensor([1.0, -1.0, 1.0]),
            },
        },
        works={
            "precision: per row": (
                lambda: torch.ones(3),
                lambda densities: densities.shape == (3,) and densities.isfinite().all(),
            )
        },
    ),
    Call("metrics.crps", draws, {"draws": NUMBERS, "y": NUMBERS | TALL}),
    Call("metrics.energy_score", draws, {"draws": NUMBERS, "y": NUMBERS | TALL | ROWS}),
    Call(
        "metrics.pit",
        lambda: {"prediction": prediction(), "y": torch.zeros(3, 1)},
        {"y": NUMBERS},
    ),
    Call(
        "metrics.coverage",
        lambda: {"pit_values": torch.rand(3, 2), "level": 0.5},
        {
            "pit_values": NUMBERS.but("scalar")
            | {"above": lambda: torch.full((3,), 1.5), "below": lambda: torch.tensor([-0.1])},
            "level": INSIDE,
        },
    ),
    Call(
        "metrics.interval_width",
        lambda: {"draws": torch.randn(5, 3), "level": 0.5},
        {"draws": NUMBERS, "level": INSIDE},
    ),
    Call("metrics.sharpness", lambda: {"prediction": prediction()}),
    Call(
        "metrics.regression_scores",
        lambda: {"prediction": prediction(), "y": torch.zeros(3, 1)},
        {"y": NUMBERS | {"more rows": lambda: torch.zeros(4, 1)}},
        works={"y: vector": (lambda: torch.zeros(3), lambda scores: scores["rmse"] > 0)},
    ),
    Call(
        "metrics.risk_coverage",
        lambda: {"confidence": torch.rand(3), "loss": torch.rand(3)},
        {
            "confidence": VECTOR,
            "loss": VECTOR | {"infinity": lambda: torch.full((3,), float("inf")), "fewer": lambda: torch.ones(2)},
        },
        works={
            "loss: bools": (
                lambda: torch.tensor([True, False, True]),
                lambda risk: float(risk[-1]) == pytest.approx(2 / 3),
            ),
            "confidence: infinite": (
                lambda: torch.tensor([float("inf"), 0.0, 1.0]),
                lambda risk: risk.isfinite().all(),
            ),
        },
    ),
    Call(
        "metrics.aurc",
        lambda: {"confidence": torch.rand(3), "loss": torch.rand(3)},
        {"confidence": VECTOR, "loss": VECTOR},
    ),
    Call(
        "metrics.auroc",
        lambda: {"inside": torch.rand(3), "outside": torch.rand(4)},
        {"inside": VECTOR, "outside": VECTOR},
    ),
    Call(
        "metrics.variance_split",
        lambda: {"prediction": prediction()},
        {"prediction": OBJECT | {"of classes": Shows("Categorical", lambda: prediction(3))}},
    ),
    Call("metrics.predictive_entropy", lambda: SAMPLES, {"predicted": PROBABILITIES}),
    *(
        Call(f"metrics.{name}", lambda: SAMPLES, {"predicted": ENTROPY})
        for name in ("expected_entropy", "mutual_information", "entropy_split")
    ),
]


@pytest.mark.few(7)
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_metric(case: Case) -> None:
    assert case.wrong() == {}


def test_interval_widths_are_found_for_some_columns_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.quantile takes 2**24 values at most in older versions of PyTorch."""
    draws = torch.randn(5, 8, 5)
    whole = metrics.interval_width(draws, 0.5)
    sizes = []

    def quantile(values: torch.Tensor, *rest: Any, of: Any = torch.quantile, **named: Any) -> torch.Tensor:
        sizes.append(values.numel())
        return of(values, *rest, **named)

    monkeypatch.setattr(torch, "quantile", quantile)
    monkeypatch.setattr("pyrodrop.prediction.quantiles._AT_A_TIME", 50)
    assert metrics.interval_width(draws, 0.5) == whole
    assert sizes == [50, 50, 50, 50]
