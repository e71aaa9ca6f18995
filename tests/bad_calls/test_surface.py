"""Compares the table with the public names: every callable is in it, or is listed here with a reason."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

import pyrodrop
import pyrodrop.analysis
from pyrodrop import priors

from .harness import Call, Row, refusal, rows

MODULES = [
    "analysis", "analysis.acquire", "compression", "data", "distributions", "divergences", "guides", "likelihoods",
    "metrics", "models", "priors", "recipes", "reparam", "schedules", "zoo",
]  # fmt: skip

# Names without rows, and why.
NOT_CALLED: dict[str, str] = {
    **dict.fromkeys(
        ["Elbo", "Objective", "StepLosses", "compression.CompressionReport", "compression.Measured",
         "distributions.ConstantLeftOut", "guides.RateKind", "metrics.CalibrationCurve", "metrics.Uncertainty",
         "metrics.Conformal", "Moments", "Replicates", "Report", "Sampled", "Worth", "analysis.acquire.Batch",
         "analysis.Comparison", "analysis.KFold", "analysis.Loo", "analysis.SBC"],
        "a record that functions return, without checks of its own",
    ),
    **dict.fromkeys(["divergences.NoDivergence", "priors.ImproperPrior", "analysis.UnreliableLoo"], "an error or a warning"),
    "priors.Prior": "an abstract base class",
    **dict.fromkeys(["schedules.KLSchedule", "schedules.LRSchedule"], "made by functions of pyrodrop.schedules"),
    "Reading": "a Fit, made by read",
    "zoo.every": "has no arguments",
    "zoo.ExactPosterior": "made by zoo.problem",
    "recipes.Recipe": "made by recipes.regressor and recipes.classifier",
    **dict.fromkeys(["analysis.compare", "analysis.to_arviz"], "called by the function of this name of pyrodrop"),
}  # fmt: skip


def calls() -> list[Call]:
    """All calls of the table."""
    files = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    table: list[Call] = []
    for file in files:
        table += getattr(importlib.import_module(f".{file}", __package__), "CALLS", [])
    return table


def callables() -> dict[str, Any]:
    """Every public callable by name."""
    objects = {name: getattr(pyrodrop, name) for name in pyrodrop.__all__ if name not in MODULES}
    for module in MODULES:
        package = importlib.import_module(f"pyrodrop.{module}")
        names = getattr(package, "__all__", None) or [
            n
            for n, v in vars(package).items()
            if not n.startswith("_") and getattr(v, "__module__", "") == package.__name__
        ]
        objects |= {f"{module}.{name}": getattr(package, name) for name in names}
    return {name: value for name, value in objects.items() if callable(value)}


def test_every_public_callable_is_in_the_table() -> None:
    named = {call.name for call in calls()}
    assert not named & set(NOT_CALLED), "names of the table that are also listed as not called"
    assert not set(callables()) - named - set(NOT_CALLED)
    assert not set(NOT_CALLED) - set(callables())


def test_the_calls_of_the_table_are_many_and_distinct() -> None:
    bad = [(row.call.name, row.argument, row.label) for row in rows(calls()) if row.argument and row.check is None]
    assert len(set(bad)) >= 4000


def test_the_judgement_of_a_refusal() -> None:
    """An error that another library raises, one that does not say enough, and a value that is accepted are all wrong."""

    def ours(scale: object) -> None:
        priors.Gaussian(scale)  # type: ignore[arg-type]

    assert judged(ours, "scale", "x") == ""
    assert judged(ours, "width", "x").startswith("does not name width")
    assert judged(ours, "scale", 2.0).startswith("accepted")
    assert judged(lambda scale: torch.zeros(scale), "scale", "x").startswith("raised inside")
    assert judged(lambda scale: {}[scale], "scale", "x").startswith("another kind of error")
    assert refusal(raised_by(ours, -1.0), "scale", -7.0).startswith("does not show what arrived")


def judged(function: Any, argument: str, value: Any) -> str:
    named = {argument: value}
    return Row(
        Call("", function=lambda **kwargs: function(*kwargs.values())), argument, "", lambda: named[argument]
    ).judge()


def raised_by(function: Any, value: Any) -> Exception:
    try:
        function(value)
    except ValueError as error:
        return error
    raise AssertionError("accepted")
