"""What of Pyro is tested, by `compile_svi` and by `fit`, against `SVI.step`: the rows of a table of docs/pyro-users.md.

`python -P tests/pyrodrop/compiled/test_of_pyro.py` writes that table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.infer.autoguide as auto
import pytest
import torch
from pyro import poutine
from pyro.contrib import gp
from pyro.contrib.forecast import ForecastingModel
from pyro.infer import (
    SVI,
    EnergyDistance,
    JitTrace_ELBO,
    RenyiELBO,
    ReweightedWakeSleep,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    TraceTailAdaptive_ELBO,
    TraceTMC_ELBO,
    config_enumerate,
)
from pyro.infer.reparam import LocScaleReparam, NeuTraReparam
from pyro.nn import PyroSample
from pyro.ops.indexing import Vindex
from torch import Tensor, nn

import pyrodrop
from pyrodrop.analysis.lab import generated
from tests.pyrodrop.compiled.as_svi import (
    STEPS,
    Case,
    Parts,
    adam,
    assert_as_svi,
    assert_fit_as_svi,
    assert_steps_as_svi,
)
from tests.small import normal

X = normal(24, seed=0, dtype=torch.double)
Y = X.sin() + 0.1 * normal(24, seed=1, dtype=torch.double)
LABELS = (Y > 0).double()
GROUP = torch.arange(24) % 4
pytestmark = pytest.mark.usefixtures("float64")
PAGE = Path(__file__).parents[3] / "docs" / "pyro-users.md"


def of_gp(make: Callable[[], Any], data: Callable[[Any], Any] = lambda process: {}) -> Callable[[], Parts]:
    """The model and guide of a module of contrib.gp, which have no arguments."""

    def parts() -> Parts:
        process = make()
        return process.model, process.guide, data(process)

    return parts


def with_priors() -> Any:
    kernel = gp.kernels.RBF(1)
    for name in ("variance", "lengthscale"):
        setattr(kernel, name, PyroSample(dist.LogNormal(0.0, 1.0)))
        kernel.autoguide(name, dist.Normal)
    return gp.models.GPRegression(X, Y, kernel, noise=torch.tensor(0.1))


def latent(wrap: Any) -> Any:
    """Three outputs of inputs that are not known: as of GPLVM, or as a prior of X."""
    kernel = gp.kernels.RBF(2, lengthscale=torch.ones(2))
    inner = gp.models.SparseGPRegression(
        normal(24, 2, seed=2, dtype=torch.double), torch.stack([Y, X, X * Y]), kernel, torch.randn(5, 2), jitter=1e-5
    )
    return wrap(inner)


def with_prior_of_x(process: Any) -> Any:
    process.X = PyroSample(dist.Normal(torch.zeros(24, 2), 0.1).to_event())
    process.autoguide("X", dist.Normal)
    return process


def sparse(kernel: Any, rows: int = 24) -> Any:
    likelihood = gp.likelihoods.Binary()
    x = X[:, None]
    return gp.models.VariationalSparseGP(
        x[:rows], LABELS[:rows], kernel, x[:6].clone(), likelihood, num_data=24, whiten=True, jitter=1e-5
    )


def deep(rows: int = 24) -> Any:
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))  # a shift changes no kernel
    return sparse(gp.kernels.Warping(gp.kernels.RBF(2, lengthscale=torch.ones(2)), iwarping_fn=net), rows)


def minibatches(process: Any) -> Callable[[int], dict[str, Any]]:
    def data(step: int) -> dict[str, Any]:
        rows = slice(8 * (step % 3), 8 * (step % 3) + 8)
        process.set_data(X[rows, None], LABELS[rows])
        return {}

    return data


class Walk(ForecastingModel):
    def model(self, zero_data: Tensor, covariates: Tensor) -> None:
        scale = pyro.sample("scale", dist.LogNormal(-1.0, 1.0))
        weight = pyro.sample("weight", dist.Normal(torch.zeros(covariates.size(-1)), 1.0).to_event(1))
        with self.time_plate:
            step = pyro.sample("step", dist.Normal(0.0, scale))
        self.predict(dist.Normal(0.0, scale), (step.cumsum(-1) + (covariates * weight).sum(-1)).unsqueeze(-1))


class Filter(ForecastingModel):
    def model(self, zero_data: Tensor, covariates: Tensor) -> None:
        scale = pyro.sample("scale", dist.LogNormal(-1.0, 1.0).expand([1]).to_event(1))
        noise, eye = dist.Normal(torch.zeros(1), 1.0).to_event(1), torch.eye(1)
        seen = dist.Normal(torch.zeros(1), scale).to_event(1)
        self.predict(dist.GaussianHMM(noise, 0.9 * eye, noise, eye, seen, duration=zero_data.size(-2)), zero_data)


def forecast(kind: Any) -> Parts:
    model = kind()
    return model, auto.AutoNormal(model), {"data": Y[:, None], "covariates": torch.stack([X, X**2], -1)}


def groups(x: Tensor, y: Tensor, size: int | None = None) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("groups", 4):
        slope = pyro.sample("slope", dist.Normal(mean, scale))
    with pyro.plate("rows", len(x), subsample_size=size) as rows:
        pyro.sample("y", dist.Normal(slope[..., GROUP[rows]] * x[rows], 0.5), obs=y[rows])


ROWS = {"x": X, "y": Y}


def of_groups(guide: Any = auto.AutoNormal, handler: Callable[[Any], Any] = lambda model: model, **data: Any) -> Any:
    def parts() -> Parts:
        model = handler(groups)
        return model, guide(model), ROWS | data

    return parts


def neutra(model: Any) -> Any:
    flow = auto.AutoMultivariateNormal(model)
    flow(**ROWS)
    return NeuTraReparam(flow.requires_grad_(False)).reparam(model)


def two_guides(model: Any) -> Any:
    guide = auto.AutoGuideList(model)
    guide.append(auto.AutoDelta(poutine.block(model, expose=["mean", "scale"])))
    guide.append(auto.AutoNormal(poutine.block(model, expose=["slope"])))
    return guide


def in_turn(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    for row in pyro.plate("rows", 4):
        pyro.sample(f"y_{row}", dist.Normal(pyro.sample(f"z_{row}", dist.Normal(mean, 1.0)), 1.0), obs=y[row])


def in_turn_guide(y: Tensor) -> None:
    loc = pyro.param("loc", torch.zeros(5))
    pyro.sample("mean", dist.Normal(loc[4], 1.0))
    for row in pyro.plate("rows", 4):
        pyro.sample(f"z_{row}", dist.Normal(loc[row], 0.5))


def noted(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 24, subsample_size=8) as rows:
        z = pyro.sample("z", dist.Normal(mean, 1.0))
        pyro.sample("y", dist.Normal(pyro.deterministic("twice", 2 * z + y[rows]), 1.0), obs=y[rows])


@config_enumerate
def switched(y: Tensor) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with pyro.plate("rows", 24):
        kind = pyro.sample("kind", dist.Bernoulli(loc[0].sigmoid()))
        pyro.sample("y", dist.Normal(Vindex(loc)[kind.long()], 1.0), obs=y)


def hidden(model: Any) -> Any:
    return auto.AutoNormal(poutine.block(model, hide=["kind"]))


def scheduled(kind: Any, **options: Any) -> Callable[[], Any]:
    return lambda: kind({"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, **options})


AT_ONCE = {"num_particles": 3, "vectorize_particles": True}
GUIDES = (
    "Normal DiagonalNormal MultivariateNormal LowRankMultivariateNormal Delta LaplaceApproximation IAFNormal Structured"
)
PARTS: dict[str, dict[str, Case]] = {
    "`contrib.gp`": {
        "GPRegression": Case(of_gp(lambda: gp.models.GPRegression(X, Y, gp.kernels.RBF(1)))),
        "GPRegression with priors": Case(of_gp(with_priors)),
        "SparseGPRegression": Case(
            of_gp(lambda: gp.models.SparseGPRegression(X, Y, gp.kernels.Matern52(1), X[:6].clone(), jitter=1e-5))
        ),
        "VariationalGP": Case(
            of_gp(
                lambda: gp.models.VariationalGP(
                    X, LABELS, gp.kernels.RBF(1), gp.likelihoods.Binary(), whiten=True, jitter=1e-5
                )
            )
        ),
        "VariationalSparseGP": Case(of_gp(lambda: sparse(gp.kernels.RBF(1))), loss=TraceMeanField_ELBO),
        "inputs with a prior": Case(of_gp(lambda: latent(with_prior_of_x))),
        "GPLVM": Case(of_gp(lambda: latent(gp.models.GPLVM)), "Pyro", "Pyro"),
        "deep kernel": Case(of_gp(deep)),
        "deep kernel with `set_data` at every step": Case(of_gp(lambda: deep(8), minibatches), "Pyro", None),
    },
    "`contrib.forecast`": {
        "random walk": Case(partial(forecast, Walk)),
        "GaussianHMM": Case(partial(forecast, Filter)),
    },
    "autoguides": {
        **{f"Auto{name}": Case(of_groups(getattr(auto, f"Auto{name}"))) for name in GUIDES.split()},
        "AutoGuideList": Case(of_groups(two_guides)),
    },
    "reparam": {
        "LocScaleReparam": Case(of_groups(handler=lambda m: poutine.reparam(m, {"slope": LocScaleReparam()}))),
        "NeuTraReparam": Case(of_groups(handler=neutra)),
    },
    "loss objects": {
        **{kind.__name__: Case(of_groups(), loss=kind) for kind in (TraceMeanField_ELBO, TraceGraph_ELBO)},
        "RenyiELBO": Case(of_groups(), loss=partial(RenyiELBO, num_particles=2)),
        **{
            k.__name__: Case(lambda: (switched, hidden(switched), {"y": Y}), loss=k)
            for k in (TraceEnum_ELBO, TraceTMC_ELBO)
        },
        "vectorised particles": Case(of_groups(), loss=partial(Trace_ELBO, **AT_ONCE)),
        "JitTrace_ELBO": Case(of_groups(), "Pyro", "Pyro", partial(JitTrace_ELBO, ignore_jit_warnings=True)),
        "TraceTailAdaptive_ELBO": Case(
            of_groups(), "Pyro", "a TraceTailAdaptive_ELBO", partial(TraceTailAdaptive_ELBO, **AT_ONCE)
        ),
        "ReweightedWakeSleep": Case(
            of_groups(), "Pyro", "a ReweightedWakeSleep", partial(ReweightedWakeSleep, num_particles=2)
        ),
        "EnergyDistance": Case(of_groups(), "Pyro", "a EnergyDistance", EnergyDistance),
    },
    "optimisers": {
        "Adam": Case(of_groups()),
        "ClippedAdam": Case(of_groups(), fit=None, optim=lambda: pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.9})),
        "`clip_args`": Case(of_groups(), fit=None, optim=lambda: pyro.optim.Adam({"lr": 0.02}, {"clip_norm": 0.1})),
        "`clip_args` by value": Case(
            of_groups(), fit=None, optim=lambda: pyro.optim.Adam({"lr": 0.02}, {"clip_value": 0.1})
        ),
        "ExponentialLR": Case(of_groups(), fit=None, optim=scheduled(pyro.optim.ExponentialLR, gamma=0.8)),
        "MultiStepLR": Case(of_groups(), fit=None, optim=scheduled(pyro.optim.MultiStepLR, milestones=[3, 6])),
        "ReduceLROnPlateau": Case(of_groups(), fit=None, optim=scheduled(pyro.optim.ReduceLROnPlateau, patience=0)),
    },
    "plates and handlers": {
        "subsampling": Case(of_groups(size=8)),
        "a smaller last minibatch": Case(
            lambda: (groups, auto.AutoNormal(groups), lambda step: ROWS | {"size": 5 if step % 2 else 8}), fit=None
        ),
        "`pyro.deterministic` under subsampling": Case(lambda: (noted, auto.AutoNormal(noted), {"y": Y})),
        "sequential plates": Case(lambda: (in_turn, in_turn_guide, {"y": Y})),
        "sequential plates under vectorised particles": Case(
            lambda: (in_turn, in_turn_guide, {"y": Y}), loss=partial(Trace_ELBO, **AT_ONCE)
        ),
        "condition": Case(of_groups(handler=partial(poutine.condition, data={"mean": X.new_tensor(0.4)}))),
        "do": Case(of_groups(handler=partial(poutine.do, data={"mean": X.new_tensor(0.4)}))),
        "scale": Case(of_groups(handler=partial(poutine.scale, scale=0.5))),
    },
}
CASES = {f"{part}: {name}": case for part, cases in PARTS.items() for name, case in cases.items()}


def text() -> str:
    """The table: how the steps of every case are made."""
    rows = [["of Pyro", "by `compile_svi` and `fit`", "by `compile_svi` alone"]]
    for part, cases in PARTS.items():
        cells: list[dict[str, list[str]]] = [{}, {}]
        for name, case in cases.items():
            way = "by Pyro" if case.svi == "Pyro" else case.svi
            cells[case.fit != case.svi].setdefault(way, []).append(name)
        rows.append([part, *("; ".join(f"{way}: {', '.join(names)}" for way, names in cell.items()) for cell in cells)])
    return generated.table(rows) + "\n"


@pytest.mark.few(6)
@pytest.mark.parametrize("name", CASES)
def test_compile_svi(name: str) -> None:
    assert_steps_as_svi(CASES[name])


@pytest.mark.few(6)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.fit])
def test_fit(name: str) -> None:
    assert_fit_as_svi(CASES[name])


def test_the_table_of_the_page_has_these_cases() -> None:
    assert generated.marked("of Pyro", text()) in PAGE.read_text(encoding="utf-8")


def test_programs_of_many_rows_beside_each_other() -> None:
    """Their steps alternate in one process; neither has the other's recording."""

    def program(rows: int) -> tuple[Any, Any, Any]:
        y = normal(rows, seed=rows, dtype=torch.double)

        def model() -> None:
            mean = pyro.sample(f"mean {rows}", dist.Normal(0.0, 1.0))
            with pyro.plate("rows", rows):
                pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

        def guide() -> None:
            pyro.sample(f"mean {rows}", dist.Normal(pyro.param(f"loc {rows}", torch.tensor(0.0)), 0.1))

        return model, guide, adam()

    runs = []
    for make in (SVI, partial(pyrodrop.compile_svi, engine="traced")):
        pyro.clear_param_store()
        torch.manual_seed(0)
        both = [make(*program(rows), Trace_ELBO()) for rows in (2_801, 2_815)]
        losses = [svi.step() for _ in range(STEPS) for svi in both]
        runs.append((losses, {name: value.detach().clone() for name, value in pyro.get_param_store().items()}))
    assert [svi.engine for svi in both] == ["traced"] * 2
    assert_as_svi(runs[1], runs[0])


if __name__ == "__main__":
    generated.put(PAGE, "of Pyro", text())
