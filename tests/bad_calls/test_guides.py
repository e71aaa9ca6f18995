"""Bad arguments of the guides."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, priors

from .harness import Call, Case, cases
from .kinds import (
    DROP_RATE,
    FUNCTION,
    INSIDE,
    NAME,
    NOT_NEGATIVE,
    OBJECT,
    POSITIVE,
    REAL,
    Kind,
    Shows,
    kind,
)
from .parts import dropout_network, model, sparse

MODEL = OBJECT | {
    "class": lambda: pyrodrop.models.MLP,
    "module": lambda: dropout_network(),
    "guide": lambda: guides.Point(model()),
}
RATE_PRIOR = OBJECT.but("None") | {
    "two": Shows("shape (2,)", lambda: dist.Beta(torch.ones(2), 1.0)),
    "discrete": lambda: dist.Poisson(1.0),
    "of torch": lambda: torch.distributions.Beta(1.0, 1.0),
}
BY_NAME = kind(patterns={"nothing": 0.1, "*": 0.1}, no_pattern={"layers.0.*": 0.1}, keys={0: 0.1}, empty={})
RATES = DROP_RATE.but("dict") | BY_NAME | {"in it": lambda: {"*": 1.0}, "None in it": lambda: {"*": None}}
ALPHAS = POSITIVE.but("dict", "None") | BY_NAME | {"in it": lambda: {"*": -1.0}}
RANGE = kind(number=1.0, three=(1.0, 2.0, 3.0), reversed=(2.0, 1.0), equal=(1.0, 1.0), NaN=(0.0, float("nan")),
             strings=("a", "b"), infinity=(-math.inf, 0.0), string="ab", bools=(False, True))  # fmt: skip


def of_model() -> dict[str, Any]:
    return {"model": model()}


def last_layer() -> guides.ExactLastLayer:
    guide = guides.ExactLastLayer(model())
    guide.condition_on(torch.zeros(4, 2), torch.zeros(4, 1))
    return guide


def kept() -> dict[str, Any]:
    guide = sparse()["guide"]
    return {"guide": guide, "keep": guide.keep_mask()}


def noise() -> dict[str, Any]:
    return {
        "g": lambda m, e: m * e,
        "noise": lambda m: dist.Normal(torch.ones_like(m), 0.1),
        "density": lambda w, m: 0.0,
    }


CALLS = [
    Call("guides.Guide", of_model, {"model": MODEL}),
    Call(
        "guides.BernoulliDropout",
        of_model,
        {"drop_rate": RATES, "theta": NOT_NEGATIVE, "per": NAME | kind(mapping={"*": "unit"})},
        works={
            "drop_rate: mapping": (
                lambda: {"layers.0.*": 0.25, "*": 0.0},
                lambda guide: guide.rates() == {"layers.0.weight": 0.25},
            ),
            "drop_rate: zero": (lambda: 0, lambda guide: guide.rates() == {}),
            "drop_rate: tensor": (lambda: torch.tensor(0.5), lambda guide: set(guide.rates().values()) == {0.5}),
            "mask_input: False": (lambda: False, lambda guide: list(guide.rates()) == ["layers.1.weight"]),
        },
    ),
    Call("guides.DropConnect", of_model, {"drop_rate": RATES, "theta": NOT_NEGATIVE}),
    Call(
        "guides.ConcreteDropout",
        of_model,
        {"drop_rate": RATES | {"zero": lambda: 0.0}, "temperature": POSITIVE, "rate_prior": RATE_PRIOR},
    ),
    Call(
        "guides.GaussianDropout",
        lambda: {"model": model(), "drop_rate": 0.5},
        {"drop_rate": RATES.but("None") | {"zero": lambda: 0.0}, "alpha": Kind({"both": lambda: 1.0})},
    ),
    Call("guides.GaussianDropout", lambda: {"model": model(), "alpha": 0.5}, {"alpha": ALPHAS}),
    Call(
        "guides.VariationalDropout",
        of_model,
        {
            "max_alpha": POSITIVE.but("infinity") | {"below the start": Shows("0.111", lambda: 0.01)},
            "kl_scale": POSITIVE,
            "drop_rate": INSIDE,
            "rate_prior": RATE_PRIOR | {"of a rate": lambda: dist.Beta(1.0, 1.0)},
        },
        works={"max_alpha: infinity": (lambda: math.inf, lambda guide: "max_alpha=inf" in guide.describe())},
    ),
    Call(
        "guides.LogNormalDropout",
        of_model,
        {
            "log_scale": REAL | {"huge": lambda: 1e300, "tiny": lambda: -1e300},
            "low": REAL | {"above high": lambda: 1.0},
            "high": REAL | {"below low": lambda: -30.0},
        },
    ),
    Call(
        "guides.LogNormalDropout.keep_mask",
        lambda: {"threshold": 0.0},
        function=lambda **kwargs: guides.LogNormalDropout(model()).keep_mask(**kwargs),
    ),
    Call("guides.MeanField", of_model, {"init_scale": POSITIVE}),
    Call(
        "guides.LowRank",
        of_model,
        {"init_scale": POSITIVE},
    ),
    Call("guides.Point", of_model),
    Call(
        "guides.Point.average",
        lambda: {"model": model(), "guide": guides.MeanField(model())},
        {
            "guide": OBJECT
            | {"of another": Shows("(1, 4)", lambda: guides.MeanField(model(4, 1))), "class": lambda: guides.Point},
        },
    ),
    Call(
        "guides.SparseDropout",
        of_model,
        {
            "log_variance": REAL | {"huge": lambda: 1e300, "tiny": lambda: -1e300},
            "log_alpha_range": RANGE,
            "rate_prior": RATE_PRIOR,
        },
    ),
    Call(
        "guides.ARDDropout",
        of_model,
        {"log_alpha_range": RANGE},
    ),
    Call(
        "guides.SparseDropout.keep_mask",
        lambda: {"threshold": 3.0},
        {"threshold": REAL | {"above all": lambda: 9.0, "below all": lambda: -9.0}},
        function=lambda **kwargs: sparse()["guide"].keep_mask(**kwargs),
    ),
    Call(
        "guides.Pruned",
        kept,
        {
            "guide": OBJECT | {"mean field": lambda: guides.MeanField(model())},
            "keep": OBJECT
            | {
                "floats": lambda: {n: m.float() for n, m in kept()["keep"].items()},
                "one": Shows("layers.0.weight", lambda: dict(list(kept()["keep"].items())[:1])),
                "transposed": lambda: {n: m.T for n, m in kept()["keep"].items()},
                "lists": lambda: {n: m.tolist() for n, m in kept()["keep"].items()},
            },
        },
    ),
    Call(
        "guides.Ensemble",
        lambda: {"model": model(), "guide": guides.Point, "members": 2},
        {"guide": FUNCTION | {"makes None": Shows("NoneType", lambda: lambda of: None)}},
    ),
    Call(
        "guides.ExactLastLayer",
        of_model,
        {"features": FUNCTION | {"makes None": Shows("NoneType", lambda: lambda of: None)}},
    ),
    Call(
        "guides.ExactLastLayer.condition_on",
        lambda: {"x": torch.zeros(4, 2), "y": torch.zeros(4, 1)},
        function=lambda **kwargs: guides.ExactLastLayer(model()).condition_on(**kwargs),
    ),
    Call(
        "guides.ExactLastLayer.draw",
        lambda: {"num_samples": 2},
        function=lambda **kwargs: last_layer().draw(**kwargs),
    ),
    Call("guides.from_noise", noise),
    Call("guides.FromNoise", lambda: {"model": model(), "regularizer": None, **noise()}),
    Call(
        "guides.to_module",
        lambda: {
            "run": pyrodrop.read(
                dropout_network(),
                torch.randn(4, 2),
                likelihood=likelihoods.Categorical(),
                prior=priors.Gaussian(),
                num_data=9,
            )
        },
        {"run": OBJECT | {"guide": lambda: guides.Point(model())}},
    ),
    Call(
        "guides.Guide.draw",
        lambda: {"num_samples": 2},
        function=lambda **kwargs: guides.MeanField(model()).draw(**kwargs),
    ),
    Call(
        "guides.Ensemble.draw",
        lambda: {"num_samples": 2},
        function=lambda **kwargs: guides.Ensemble(model(), guides.Point, 2).draw(**kwargs),
    ),
    Call(
        "guides.Guide.restart",
        lambda: {"model": model()},
        {
            "model": MODEL
            | {
                "other widths": Shows("another", lambda: model(2, 4, 1)),
                "more layers": Shows("another", lambda: model(2, 3, 3, 1)),
            }
        },
        function=lambda **kwargs: guides.MeanField(model()).restart(**kwargs),
    ),
]


@pytest.mark.few(6)
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_guide(case: Case) -> None:
    assert case.wrong() == {}
