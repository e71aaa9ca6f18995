"""Where the compiler fails, the traced graph trains."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.compiled import inductor
from pyrodrop.guides import Guide
from pyrodrop.models import NetworkModel
from pyrodrop.private_apis import Compiled

X = torch.linspace(-2, 2, 23)[:, None] * torch.tensor([1.0, -0.5])
Y = X.sin().sum(1, keepdim=True)
SETTINGS: Mapping[str, Any] = {"steps": 12, "batch_size": 10, "lr": 1e-2, "progress": False}


def parts(seed: int = 0) -> tuple[NetworkModel, Guide]:
    torch.manual_seed(seed)
    model = models.MLP([2, 5, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    return model, guides.BernoulliDropout(model, 0.2)


def weights(fit: pyrodrop.Fit) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in fit.guide.parameters()])


@pytest.mark.few(1)
@pytest.mark.parametrize("replicates", [None, 2])
def test_without_a_compiler_the_traced_step_trains(
    replicates: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train, extra = (pyrodrop.fit, {}) if replicates is None else (pyrodrop.fit_replicates, {"count": replicates})
    want = train(*parts(), (X, Y), engine="traced", **SETTINGS, **extra)

    def fail(*_: Any) -> Any:
        raise KeyError("buf126")  # as TorchInductor has it

    monkeypatch.setattr(inductor, "compile_by_inductor", fail)
    with caplog.at_level(logging.WARNING, "pyrodrop"):
        got = train(*parts(), (X, Y), engine="compiled", **SETTINGS, **extra)
    assert "the compiler failed: KeyError: 'buf126'" in caplog.text
    for a, b in [(got, want)] if replicates is None else zip(got, want, strict=True):
        assert a.settings["engine"] == "traced"
        assert torch.equal(weights(a), weights(b))


@pytest.mark.few(1)
@pytest.mark.parametrize("replicates", [None, 2])
@pytest.mark.parametrize("wrong", ["", "gives other numbers than the trace does", "cannot be run: IndexError: first"])
def test_a_program_with_another_gradient_is_not_used(
    wrong: str,
    replicates: int | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its losses are right. It runs the graph and moves the first moment of one parameter by 3 % more."""

    def compile_wrongly(module: Any, inputs: Any, options: Mapping[str, Any]) -> Any:
        def program(given: list[torch.Tensor]) -> Any:
            if "run" in wrong:
                raise IndexError("first\nsecond")
            place = given[4]  # four parameters before
            before = place.clone()
            results = module(*given)
            if wrong:
                place.add_(0.03 * (place - before))
            return results

        return Compiled(program)

    train, extra = (pyrodrop.fit, {}) if replicates is None else (pyrodrop.fit_replicates, {"count": replicates})
    monkeypatch.setattr(inductor, "compile_by_inductor", compile_wrongly)
    with caplog.at_level(logging.WARNING, "pyrodrop"):
        got = train(*parts(), (X, Y), engine="compiled", **SETTINGS, **extra)
    assert ("its compiled program" in caplog.text) is bool(wrong)
    assert wrong in caplog.text
    assert (got if replicates is None else got[0]).settings["engine"] == ("traced" if wrong else "compiled")


@pytest.mark.slow
def test_five_networks_of_figure_1a_compile() -> None:
    """A step that TorchInductor 2.13 cannot compile with all its fusions: variational dropout B, three hidden layers."""
    x, y = torch.rand(200, 40), torch.randint(10, (200,))
    networks = [
        models.MLP([40, 16, 16, 16, 10], prior=priors.LogUniform(), likelihood=likelihoods.Categorical())
        for _ in range(5)
    ]
    posteriors = [guides.VariationalDropout(network, "B", "layer") for network in networks]
    settings = {"steps": 3, "batch_size": 100, "estimator": "local", "count": 5, "progress": False}
    many = pyrodrop.fit_replicates(networks, posteriors, (x, y), engine="compiled", **settings)
    assert many[0].settings["engine"] == "compiled"


@pytest.mark.parametrize("other", [1.1, float("nan")])
def test_finite_entries_are_compared_beside_others(other: float) -> None:
    want = torch.tensor([float("nan"), float("inf"), 1.0])
    assert inductor.same_numbers([(want, torch.tensor([0.0, 0.0, 1.0]))], [])
    assert not inductor.same_numbers([(want, torch.tensor([0.0, 0.0, other]))], [])


@pytest.mark.parametrize("differs", [1, 99])
def test_a_program_that_differs_for_one_noise_is_tried_for_another(
    differs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where rounding crosses the kink of a ReLU; one that differs for every noise is not used. Here it is the graph."""
    monkeypatch.setattr(inductor, "compile_by_inductor", lambda module, *_: Compiled(lambda given: module(*given)))
    calls: list[float] = []
    same = inductor.same_numbers

    def same_numbers(terms: Any, gradients: Any) -> bool:
        calls.append(float(terms[0][0][0]))
        return len(calls) > differs and same(terms, gradients)

    monkeypatch.setattr(inductor, "same_numbers", same_numbers)
    fit = pyrodrop.fit(*parts(), (X, Y), engine="compiled", **SETTINGS)
    assert fit.settings["engine"] == ("compiled" if differs == 1 else "traced")
    assert calls[0] != calls[1]
