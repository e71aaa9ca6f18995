"""Steps of `compile_svi` and `fit` against those of Pyro's SVI: a case of a program, and what is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor

import pyrodrop
from pyrodrop.analysis.programs.program import parameters, set_up

STEPS = 12
Parts = tuple[
    Callable[..., Any], Callable[..., Any], Any
]  # model, guide, and data or a function of the step that makes them
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


def by(make: Any, case: Case) -> tuple[list[float], dict[str, Tensor], str]:
    """The losses of steps, the parameters after them, and the engine of those that Pyro does not make."""
    model, guide, data = started(case)
    svi, losses, engines = make(model, guide, case.optim(), case.loss()), [], {"pyro"}
    for step in range(STEPS):
        losses.append(svi.step(**(data if isinstance(data, Mapping) else data(step))))
        engines.add(getattr(svi, "engine", "pyro"))
        if isinstance(svi.optim, pyro.optim.PyroLRScheduler):
            svi.optim.step(
                *[losses[-1]] * (svi.optim.pt_scheduler_constructor is torch.optim.lr_scheduler.ReduceLROnPlateau)
            )
    store = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}
    return losses, store, max(engines)


def assert_as_svi(got: tuple[Any, Any], want: tuple[Any, Any]) -> None:
    """Losses and parameters."""
    torch.testing.assert_close(got[0], want[0], rtol=1e-10, atol=0)
    torch.testing.assert_close(got[1], want[1], rtol=1e-9, atol=1e-12)


def assert_steps_as_svi(case: Case) -> None:
    losses, store, engine = by(partial(pyrodrop.compile_svi, engine="traced"), case)
    assert engine == ENGINES[case.svi]
    assert_as_svi((losses, store), by(SVI, case)[:2])


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
