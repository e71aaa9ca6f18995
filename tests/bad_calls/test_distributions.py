"""Bad arguments of the distributions over weights, and of what draws their masks."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pytest
import torch

from pyrodrop import distributions

from .harness import Call, Case, cases
from .kinds import COUNT, DROP_RATE, NOT_NEGATIVE, OBJECT, POSITIVE, REAL, UNCHECKED, Kind, kind, tensor

ARRAYS = Kind(
    {
        "whole": lambda: torch.ones(3, 2, dtype=torch.int64),
        "array": lambda: torch.ones(3, 2).numpy(),
        "nested list": lambda: [[1.0, 1.0]] * 3,
    }
)
LOC = tensor(3, 2).but("another axis", "empty") | ARRAYS | {"scalar": lambda: torch.tensor(1.0)}
EVENT_DIM = COUNT.but("None") | {"more": lambda: 3}
UNITS = OBJECT | {"no such axis": lambda: distributions.InputUnits(2)}
LOG_ALPHA = REAL.but("vector") | {
    "NaN in it": lambda: torch.tensor([0.0, float("nan")]),
    "shape": lambda: torch.ones(5),
}
SIZES = kind(None_=None, number=3, word="ab", float=[1.5], negative=[-1], bools=[True], strings=["a"])


def loc() -> dict[str, Any]:
    return {"loc": torch.ones(3, 2)}


CALLS = [
    Call(
        "distributions.BernoulliMixture",
        lambda: loc() | {"drop_rate": 0.5},
        {
            "loc": LOC,
            "drop_rate": DROP_RATE.but("vector")
            | {"one in it": lambda: torch.tensor([0.5, 1.0]), "shape": lambda: torch.full((3,), 0.5)},
            "theta": NOT_NEGATIVE,
            "event_dim": EVENT_DIM,
            "units": UNITS,
        },
        works={
            "drop_rate: per unit": (lambda: torch.tensor([0.0, 0.5]), lambda q: (q.rsample()[:, 0] == 1).all()),
            "theta: int": (lambda: 1, lambda q: q.log_prob(q.rsample()).isfinite()),
        },
    ),
    Call(
        "distributions.RelaxedBernoulliMixture",
        lambda: loc() | {"logit": torch.tensor(0.0)},
        {
            "loc": LOC,
            "logit": tensor(2).but("another axis") | {"shape": lambda: torch.ones(3)},
            "temperature": POSITIVE,
            "units": UNITS,
        },
    ),
    Call(
        "distributions.CorrelatedNormal",
        lambda: loc() | {"log_alpha": 0.0},
        {"loc": LOC, "log_alpha": LOG_ALPHA, "event_dim": EVENT_DIM, "units": UNITS},
    ),
    Call(
        "distributions.MultiplicativeNormal",
        lambda: loc() | {"log_alpha": 0.0},
        {"loc": LOC, "log_alpha": LOG_ALPHA, "event_dim": EVENT_DIM},
    ),
    Call(
        "distributions.CutNormal",
        lambda: loc() | {"log_alpha": 0.0, "threshold": 3.0},
        {"loc": LOC, "log_alpha": LOG_ALPHA},
    ),
    Call(
        "distributions.LowRankNormal",
        lambda: loc() | {"factor": torch.ones(6, 1), "diagonal": torch.ones(6)},
        {
            "loc": LOC,
            "factor": tensor(6, 1) | {"rows": lambda: torch.ones(3, 1)},
            "diagonal": tensor(6) | {"zero": lambda: torch.zeros(6), "length": lambda: torch.ones(2)},
        },
    ),
    Call(
        "distributions.PrunedNormal",
        lambda: loc() | {"log_alpha": torch.zeros(3, 2), "keep": torch.ones(3, 2, dtype=torch.bool)},
        {
            "loc": LOC.but("scalar"),
            "log_alpha": tensor(3, 2),
            "keep": tensor(3, 2)
            | {"float": lambda: torch.ones(3, 2), "int": lambda: torch.ones(3, 2, dtype=torch.int64)},
        },
    ),
    Call("distributions.LogUniform", dict, {"shape": SIZES}),
    Call(
        "distributions.TruncatedLogUniform",
        lambda: {"low": -1.0, "high": 0.0},
        {"low": REAL | {"above": lambda: 1.0}, "shape": SIZES},
    ),
    Call(
        "distributions.PooledNormal",
        lambda: {"shape": (3, 2), "group": "layer"},
        {"shape": SIZES, "batch_shape": SIZES, "units": UNITS},
    ),
    Call(
        "distributions.Pushforward",
        lambda: loc() | {"g": lambda m, e: m * e, "noise": lambda m: dist.Normal(m, 1.0), "density": lambda w, m: 0.0},
        {"loc": LOC, "event_dim": EVENT_DIM},
    ),
    Call(
        "distributions.InputUnits",
        dict,
        {"axis": COUNT.but("None", "zero"), "size": COUNT},
        works={"axis: zero": (lambda: 0, lambda units: units.count(torch.Size((4, 2))) == 4)},
    ),
    Call(
        "distributions.InputUnits",
        lambda: {"groups": 2},
        {"size": Kind({"of groups": lambda: 2}), "axis": UNCHECKED},
    ),
    Call(
        "distributions.NoiseForm",
        lambda: {"loc": lambda: torch.ones(2)},
    ),
    Call("distributions.WeightDistribution", loc, {"loc": LOC, "event_dim": EVENT_DIM, "units": UNITS}),
    Call(
        "distributions.keep_mask",
        lambda: {"shape": (4, 3), "drop_rate": 0.5},
        {"shape": SIZES, "drop_rate": DROP_RATE, "bits": COUNT.but("None") | {"other": lambda: 12}},
        works={"shape: list": (lambda: [0, 3], lambda mask: mask.shape == (0, 3) and mask.dtype == torch.bool)},
    ),
    Call(
        "distributions.row_correlation",
        lambda: {"drop_rate": 0.1, "bits": 8},
        {"drop_rate": DROP_RATE, "bits": COUNT | {"other": lambda: 12}},
        works={"drop_rate: zero": (lambda: 0.0, lambda rate: rate == 0.0)},
    ),
]


@pytest.mark.few(7)
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_distribution(case: Case) -> None:
    assert case.wrong() == {}
