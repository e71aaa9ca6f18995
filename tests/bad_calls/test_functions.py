"""Bad arguments of schedules, divergences, strategies, data, the zoo, readings and compression."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import data, distributions, divergences, guides, likelihoods, priors, reparam, zoo
from pyrodrop.failed import Failed

from .harness import Call, Case, cases
from .kinds import (
    COUNT,
    FRACTION,
    FUNCTION,
    NAME,
    NOT_NEGATIVE,
    OBJECT,
    POSITIVE,
    REAL,
    UNCHECKED,
    Kind,
    Shows,
    kind,
    tensor,
)
from .parts import dropout_network, model, sparse

RATES = {"epochs": POSITIVE, "start": FRACTION, "after": NOT_NEGATIVE}
OUTSIDE = {"above": lambda: torch.full((3,), 1.5), "below": lambda: torch.full((3,), -0.1)}
LAW_CLASS = OBJECT | {"object": lambda: dist.Normal(0.0, 1.0), "another class": lambda: nn.Linear}
INCREMENT = FRACTION | {"zero": lambda: 0.0}
LOG_ALPHA = kind(None_=None, number=0.5, string="x", list=[0.5], bool=True) | {
    "whole": lambda: torch.ones(2, dtype=torch.int64),
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "sparse": lambda: torch.ones(2, 2).to_sparse(),
}
MODEL = OBJECT | {"class": lambda: pyrodrop.models.MLP}
GUIDE = OBJECT | {"class": lambda: guides.SparseDropout, "without alpha": lambda: guides.Point(model())}
TABLE = {"name": "t", "x": torch.randn(6, 2), "y": torch.randn(6, 1), "rows": [([0, 1, 2], [3, 4])], "source": "s"}
PAIRS = kind(
    None_=None,
    number=3,
    string="ab",
    empty=[],
    flat=[0, 1],
    three=[([0], [1], [2])],
    one_row=[([0], [1])],
    no_test=[([0, 1], [])],
    floats=[([0.0, 1.0], [2.0])],
    out_of_range=[([0, 1], [6])],
    negative=[([0, 1], [-1])],
    in_both=[([0, 1], [1])],
    words=[(["a", "b"], ["c"])],
) | {"bools": Shows("torch.bool", lambda: [([True, False], [True])])}


def q() -> Any:
    return distributions.MultiplicativeNormal(torch.ones(2, 3), 0.0)


def p() -> Any:
    return priors.Gaussian().expand(2, 3)


def entry() -> dict[str, Any]:
    plain = {"name": "a/b", "summary": "s", "source": "p", "data": "line", "published": {}, "check": zoo.Check(1)}
    return plain | {"model": lambda d: model(), "guide": guides.Point, "training": lambda d: {}}


def reading() -> dict[str, Any]:
    return {
        "net": dropout_network(),
        "x": torch.randn(4, 2),
        "likelihood": likelihoods.Categorical(),
        "num_data": 9,
        "weight_decay": 1e-3,
    }


def decays() -> Kind:
    return REAL.but("None", "dict", "complex tensor", "vector") | {
        "zero": Shows("weight_decay 0", lambda: 0.0),
        "negative": lambda: -1.0,
        "no pattern": lambda: {"nothing": 0.1, "*": 0.1},
        "AdamW": Shows("an optimizer", lambda: torch.optim.AdamW(dropout_network().parameters())),
    }


CALLS = [
    Call(
        "schedules.linear",
        lambda: {"epochs": 10},
        RATES,
        works={"epochs: fraction": (lambda: 0.5, lambda weight: weight(0.25) == 0.5)},
    ),
    Call("schedules.staircase", dict, {"increment": INCREMENT}),
    Call("schedules.cosine", lambda: {"steps": 10}),
    Call("divergences.binary_entropy", lambda: {"p": torch.rand(3)}, {"p": tensor(3).but("another axis") | OUTSIDE}),
    Call(
        "divergences.lost_entropy",
        lambda: {"p": torch.rand(3), "distance": torch.rand(3)},
        {
            "p": tensor(3) | OUTSIDE,
            "distance": tensor(3) | {"negative": lambda: torch.full((3,), -1.0), "fewer": lambda: torch.ones(2)},
        },
    ),
    *(
        Call(f"divergences.{name}", lambda: {"log_alpha": torch.zeros(2)}, {"log_alpha": LOG_ALPHA})
        for name in ("log_uniform_kl", "molchanov", "kingma")
    ),
    Call(
        "divergences.Convention",
        lambda: {"kind": "exact"},
        {"error": NOT_NEGATIVE.but("None")},
    ),
    Call("divergences.convention", lambda: {"q": q(), "p": p()}),
    Call(
        "divergences.divergence",
        lambda: {"q": q(), "p": p(), "value": torch.ones(2, 3)},
        {"value": FUNCTION.but("tensor")},
    ),
    Call(
        "divergences.pair",
        lambda: {"q": _Q, "p": dist.Normal, "tag": divergences.EXACT},
        {"q": LAW_CLASS, "p": LAW_CLASS, "tag": FUNCTION},
    ),
    Call(
        "divergences.refuse",
        lambda: {"q": _Q, "p": dist.Normal, "reason": "none"},
        {"q": LAW_CLASS, "p": LAW_CLASS, "reason": FUNCTION.but("string")},
    ),
    Call(
        "divergences.worst",
        lambda: {"conventions": [divergences.EXACT]},
        {"conventions": kind(None_=None, number=3, string="exact", strings=["exact"], None_in_it=[None])},
    ),
    Call(
        "reparam.reparameterize",
        lambda: {"model": model(), "guide": guides.Point(model()), "strategy": reparam.LocalReparam()},
        {
            "model": MODEL,
            "strategy": OBJECT | {"class": lambda: reparam.LocalReparam, "name": lambda: "local"},
        },
    ),
    *(Call(f"reparam.{name}") for name in ("LocalReparam", "FlipoutReparam", "PerExampleReparam")),
    Call("reparam.MarginalReparam", lambda: {"draw": torch.ones(2)}, {"draw": OBJECT.but("tensor")}),
    Call("reparam.SharedNoise", lambda: {"noise": torch.ones(2)}, {"noise": OBJECT.but("tensor")}),
    Call("reparam.LazyWeight", lambda: {"distribution": _lazy_distribution()}, {"distribution": OBJECT}),
    Call(
        "data.line",
        lambda: {"n": 3},
        works={"seed: zero": (lambda: 0, lambda made: len(made) == 3)},
    ),
    Call("data.line_split", lambda: {"n": 3}),
    Call(
        "data.gal2016",
        lambda: {"series": "co2"},
        function=lambda series: _read_nothing(data.gal2016, series),
    ),
    Call("data.uci", lambda: {"name": "boston"}, {"name": NAME}, function=lambda name: _read_nothing(data.uci, name)),
    Call(
        "data.mnist",
        function=lambda **kwargs: _read_nothing(data.mnist, **kwargs),
    ),
    Call(
        "data.cifar10",
        function=lambda **kwargs: _read_nothing(data.cifar10, **kwargs),
    ),
    Call("data.airfoil", function=lambda: _read_nothing(data.airfoil)),
    Call("data.bikes", function=lambda: _read_nothing(data.bikes)),
    Call("data.foong2020", function=lambda: _read_nothing(data.foong2020)),
    Call("data.gospels", function=lambda **kwargs: _read_nothing(data.gospels, **kwargs)),
    Call("data.solar", function=lambda **kwargs: _read_nothing(data.solar, **kwargs)),
    Call("data.larynx"),
    Call("data.mauna_loa"),
    Call("data.toy", lambda: {"name": "snelson"}, {"name": NAME}),
    Call(
        "data.bootstrapped",
        lambda: {"data": (torch.ones(6, 2), torch.ones(6, 1)), "count": 2},
        {"data": OBJECT, "count": COUNT.but("huge")},
    ),
    Call(
        "data.perturbed",
        lambda: {"data": (torch.ones(6, 2), torch.ones(6, 1)), "count": 2, "noise": 0.1},
        {
            "data": OBJECT
            | {
                "labels": lambda: (torch.ones(6, 2), torch.arange(6)),
                "open ends": lambda: (torch.ones(6, 2), torch.tensor([[0.0, float("inf")]] * 6)),
            },
            "count": COUNT.but("huge"),
            "noise": POSITIVE,
        },
    ),
    Call(
        "data.turned",
        lambda: {"images": torch.rand(2, 1, 4, 4), "degrees": torch.tensor([0.0, 90.0])},
        {
            "images": tensor(2, 1, 4, 4)
            | {
                "oblong": lambda: torch.rand(2, 1, 4, 5),
                "one": lambda: torch.rand(4, 4),
                "bytes": lambda: torch.ones(2, 1, 4, 4, dtype=torch.uint8),
            },
            "degrees": tensor(2) | {"scalar": lambda: torch.tensor(90.0)},
        },
    ),
    Call(
        "data.Splits",
        lambda: TABLE,
        {
            "x": tensor(6, 2) | {"fewer": lambda: torch.ones(5, 2), "vector": lambda: torch.ones(6)},
            "y": tensor(6, 1) | {"vector": lambda: torch.ones(6)},
            "rows": PAIRS,
        },
        works={
            "rows: tensors": (
                lambda: [(torch.tensor([0, 1, 2]), torch.tensor([5]))],
                lambda made: len(made[0].test) == 1,
            )
        },
    ),
    Call(
        "data.Splits.number",
        lambda: {"number": 0},
        {"number": kind(None_=None, string="0", float=0.0, list=[0], bool=True)},
        function=lambda number: data.Splits(**TABLE)[number],
    ),
    Call("zoo.entry", lambda: {"name": next(iter(zoo.ENTRIES))}, {"name": NAME}),
    Call("zoo.cite", lambda: {"name": "uci/yacht"}, {"name": NAME}),
    Call("zoo.problem", lambda: {"name": "co2"}, {"name": NAME}),
    Call("zoo.names", lambda: {"pattern": "uci/*", "loads": True}, {"pattern": OBJECT.but("string")}),
    Call(
        "zoo.add",
        lambda: {"entries": zoo.entry("uci/yacht")},
        function=lambda entries: zoo.add(entries),
    ),
    Call("zoo.add", lambda: {"sources": {}}, {"sources": OBJECT.but("dict", "None"), "entries": UNCHECKED}),
    Call("zoo.Source", lambda: {"summary": "s", "load": list}),
    Call("zoo.load", lambda: {"name": "co2/mc-dropout-tanh-0.1"}, {"name": NAME}),
    Call(
        "zoo.Check",
        lambda: {"steps": 1},
    ),
    Call(
        "zoo.Entry",
        entry,
        {
            **dict.fromkeys(("name", "summary", "source", "data", "published_as"), OBJECT.but("string")),
            "published": OBJECT.but("dict")
            | {"words": lambda: {"rmse": "low"}, "NaN in it": lambda: {"rmse": float("nan")}},
        },
    ),
    Call(
        "zoo.Entry.build",
        lambda: {"data": None, "seed": 0},
        {"data": UNCHECKED},
        function=lambda **kwargs: zoo.Entry(**entry()).build(**kwargs),
    ),
    Call(
        "read",
        reading,
        {
            "weight_decay": decays(),
            "loss": NAME.but("None"),
            "prior": Kind({"both": Shows("both", lambda: priors.Gaussian())}),
            "input_axes": kind(number=3, string="x", float={"*": 1.5}),
            "x": kind(None_=None, string="x", number=3.0, empty=[]) | {"NaN": lambda: torch.full((4, 2), float("nan"))},
        },
        works={"weight_decay: mapping": (lambda: {"*": 1e-3}, lambda made: made.model is not None)},
    ),
    Call(
        "compression.compress",
        sparse,
        {
            "model": MODEL,
            "guide": GUIDE,
            "threshold": REAL.but("None") | {"above": lambda: 9.0},
        },
    ),
    Call(
        "compression.DrawnNetworks",
        lambda: sparse() | {"count": 2},
        {"model": MODEL, "guide": OBJECT | {"class": lambda: guides.Point}},
    ),
    Call(
        "compression.compression_report",
        sparse,
        {"model": MODEL, "guide": GUIDE},
    ),
]


class _Q(dist.Normal):
    """A posterior that the calls above may register."""


def _lazy_distribution() -> Any:
    from pyrodrop.reparam.lazy import LazyDistribution

    return LazyDistribution(q(), reparam.LocalReparam(), "w")


def _read_nothing(function: Any, *args: Any, **named: Any) -> Any:
    """A loader in a folder without data, perhaps without its package: what passes the checks is not read, nor downloaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYRODROP_DATA", "/no/such/folder")
        try:
            return function(*args, **named)
        except (FileNotFoundError, Failed):
            return None


@pytest.mark.few(12)
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_call(case: Case) -> None:
    assert case.wrong() == {}
