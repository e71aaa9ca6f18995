"""Steps of `compile_svi` and `fit` against those of Pyro's SVI: a case of a program, and what is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO

import pyrodrop
from pyrodrop.analysis.lab.programs.program import parameters, set_up

STEPS = 12
Parts = tuple[
    Callable[..., Any], Callable[..., Any], Any
]  # model, guide, and data or a function of the step that makes them
Before = Callable[[Any, int], object]
ENGINES = {"recorded": "traced", "Pyro": "pyro"}


def adam() -> Any:
    return pyro.optim.Adam({"lr": 0.02})


class Case(NamedTuple):
    """A program, and how its steps are made: "recorded" or "Pyro", by `fit` also a refusal, or None: not at all."""

    make: Callable[[], Parts]
    svi: str = "recorded"
    fit: str | None = "recorded"
    loss: Callable[[], Any] = Trace_ELBO
    optim: Callable[[], Any] = adam


def started(case: Case) -> Parts:
    """The program as new, under the seed of the steps."""
    pyro.clear_param_store()
    torch.manual_seed(1)
    model, guide, data = case.make()
    set_up(guide, data if isinstance(data, Mapping) else data(0))
    torch.default_generator.manual_seed(0)  # as `fit` does
    return model, guide, data


class Run(NamedTuple):
    """Some steps.

    Attributes:
        engines: the engine of every step; "pyro" for `SVI`.
        state: the parameters, the optimisers' states, and the next random numbers.
    """

    svi: Any
    losses: list[float]
    engines: list[str]
    state: tuple[Any, ...]


def by(make: Any, case: Case, steps: int = STEPS, before: Before = lambda svi, step: None) -> Run:
    """Steps by `SVI`, or what makes the same; `before` is called before each of them."""
    model, guide, data = started(case)
    svi, losses, engines = make(model, guide, case.optim(), case.loss()), [], []
    for step in range(steps):
        before(svi, step)
        losses.append(svi.step(**(data if isinstance(data, Mapping) else data(step))))
        engines.append(getattr(svi, "engine", "pyro"))
        if isinstance(svi.optim, pyro.optim.PyroLRScheduler):
            svi.optim.step(
                *[losses[-1]] * (svi.optim.pt_scheduler_constructor is torch.optim.lr_scheduler.ReduceLROnPlateau)
            )
    store = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}
    states = {} if isinstance(svi.optim, pyro.optim.PyroLRScheduler) else svi.optim.get_state()
    return Run(svi, losses, engines, (store, states, torch.rand(3)))


def assert_as_svi(got: tuple[Any, Any], want: tuple[Any, Any], rtol: float = 1e-10) -> None:
    """Losses and parameters, or all of the state."""
    torch.testing.assert_close(got[0], want[0], rtol=rtol, atol=0, equal_nan=True)
    torch.testing.assert_close(got[1], want[1], rtol=10 * rtol, atol=rtol / 100, equal_nan=True)


def assert_steps_as_svi(
    case: Case,
    steps: int = STEPS,
    before: Before = lambda svi, step: None,
    *,
    recorded: int = 1,
    engine: str = "traced",
    rtol: float = 1e-10,
) -> Run:
    """At least this number of steps is not made by Pyro; none, where the case says so."""
    want, got = (by(make, case, steps, before) for make in (SVI, partial(pyrodrop.compile_svi, engine=engine)))
    faster = len(got.engines) - got.engines.count("pyro")
    assert faster >= recorded if case.svi == "recorded" else faster == 0
    assert list(map(type, got.losses)) == list(map(type, want.losses))
    assert_as_svi((got.losses, got.state), (want.losses, want.state), rtol)
    return got


def assert_fit_as_svi(case: Case, engine: Any = "traced") -> None:
    """Or refused, where the case says so."""
    model, guide, data = started(case)
    options: dict[str, Any] = {"steps": STEPS, "lr": 0.02, "optimizer": torch.optim.Adam, "engine": engine, "seed": 0}
    if case.fit not in ENGINES:
        with pytest.raises((TypeError, ValueError), match=case.fit):
            pyrodrop.fit(model, guide, data, objective=case.loss(), **options)
        return
    fit = pyrodrop.fit(model, guide, data, objective=case.loss(), **options)
    assert fit.settings["engine"] == (ENGINES[case.fit] if engine == "traced" else engine)
    got = fit.losses.tolist(), parameters(fit.model, fit.guide, data)[1]
    model, guide, data = started(case)
    svi = SVI(model, guide, case.optim(), case.loss())
    assert_as_svi(got, ([svi.step(**data) for _ in range(STEPS)], parameters(model, guide, data)[1]))
