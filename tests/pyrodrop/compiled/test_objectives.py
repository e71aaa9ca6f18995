"""Programs of Pyro, traced under its loss objects, against a loop of `SVI.step`; what cannot be traced, and where."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.distributions.transforms import iterated, planar
from pyro.infer import (
    SVI,
    JitTraceEnum_ELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    config_enumerate,
)
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGaussian,
    AutoMultivariateNormal,
    AutoNormal,
    AutoNormalizingFlow,
)
from pyro.nn import PyroModule
from torch import Tensor, nn

import pyrodrop
from tests.pyrodrop.compiled.as_svi import Case, assert_fit_as_svi

G = torch.Generator().manual_seed(0)
X = torch.randn(24, generator=G, dtype=torch.double)
GROUP = torch.randint(0, 4, (24,), generator=G)
Y = X * 0.5 + GROUP * 0.1 + 0.1 * torch.randn(24, generator=G, dtype=torch.double)
pytestmark = pytest.mark.usefixtures("float64")
POSITIVE = constraints.positive
ENUM = partial(TraceEnum_ELBO, max_plate_nesting=1)


def regression(x: Tensor, y: Tensor, group: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("groups", 4):
        a = pyro.sample("a", dist.Normal(mu, tau))
    s = pyro.sample("s", dist.HalfNormal(1.0))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x), subsample_size=8) as i:
        pyro.sample("y", dist.Normal(a[group[i]] + b * x[i], s), obs=y[i])


REGRESSION = {"x": X, "y": Y, "group": GROUP}


def by_hand(x: Tensor, y: Tensor, group: Tensor) -> None:
    """A parameter of every kind of constraint."""
    pyro.sample(
        "mu", dist.Normal(pyro.param("mu_loc", torch.tensor(0.1)), pyro.param("mu_s", torch.tensor(0.1), POSITIVE))
    )
    pyro.sample("tau", dist.LogNormal(pyro.param("tau_loc", torch.tensor(0.1)), 0.1))
    root = pyro.param("root", torch.eye(4) * 0.1, constraint=constraints.lower_cholesky)
    with pyro.plate("groups", 4):
        scale = pyro.param("a_scale", torch.full((4,), 0.1), constraint=constraints.softplus_positive)
        pyro.sample("a", dist.Normal(pyro.param("a_loc", torch.zeros(4)), scale))
    unit = pyro.param("unit", torch.tensor(0.3), constraint=constraints.unit_interval)
    pyro.sample("s", dist.LogNormal(-0.1, unit))
    ordered = pyro.param("ordered", torch.tensor([-1.0, 0.0, 1.0]), constraint=constraints.ordered_vector)
    simplex = pyro.param("simplex", torch.full((3,), 1 / 3), constraint=constraints.simplex)
    within = pyro.param("within", torch.tensor(0.5), constraint=constraints.interval(0.1, 2.0))
    pyro.sample("b", dist.Normal((ordered * simplex).sum() + 0.01 * root.sum(), within))


def local(x: Tensor) -> None:
    s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", 24, subsample_size=8) as i:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(z, s), obs=x[i])


def local_guide(x: Tensor) -> None:
    pyro.sample("s", dist.LogNormal(pyro.param("s_loc", torch.tensor(0.0)), 0.1))
    with pyro.plate("rows", 24, subsample_size=8):
        loc = pyro.param("loc", lambda: torch.zeros(24), event_dim=0)
        scale = pyro.param("scale", lambda: torch.full((24,), 0.1), event_dim=0, constraint=POSITIVE)
        pyro.sample("z", dist.Normal(loc, scale))


def scalar(x: Tensor) -> None:
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("rows", 24):
        pyro.sample("x", dist.Normal(m, s), obs=x)


class Normalised(PyroModule):
    """A call in training mode updates running statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(1, 3, bias=False), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 1)).double()

    def forward(self, x: Tensor, y: Tensor, group: Tensor) -> None:
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        f = self.net(x.unsqueeze(-1)).squeeze(-1)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f, scale), obs=y)


def case(
    model: Any, guide: Callable[[Any], Any], loss: Callable[[], Any] = Trace_ELBO, data: Mapping[str, Any] | None = None
) -> Case:
    def make() -> tuple[Any, Any, Mapping[str, Any]]:
        made = model() if isinstance(model, type) else model
        return made, guide(made), data or {"x": X}

    return Case(make, loss=loss)


VECTORISED = {"num_particles": 3, "vectorize_particles": True, "max_plate_nesting": 1}
CONTINUOUS = {
    "by hand": case(regression, lambda _: by_hand, data=REGRESSION),
    "local parameters": case(local, lambda _: local_guide),
    "planar flow": case(regression, lambda m: AutoNormalizingFlow(m, partial(iterated, 2, planar)), data=REGRESSION),
    "Gaussian": case(regression, AutoGaussian, data=REGRESSION),
    "particles": case(scalar, AutoNormal, lambda: Trace_ELBO(num_particles=3)),
}  # fmt: skip


def mixture(x: Tensor) -> None:
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("k", 3):
        loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    with pyro.plate("rows", 24, subsample_size=8) as i:
        z = pyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
        chosen = (nn.functional.one_hot(z, 3) * loc.unsqueeze(-2)).sum(-1)
        pyro.sample("x", dist.Normal(chosen, 1.0), obs=x[i])


def switches(x: Tensor) -> None:
    on = pyro.sample("on", dist.Bernoulli(0.4))
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 24, subsample_size=8) as i:
        z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.sample("x", dist.Normal(m + 2 * z - 1 + on, 1.0), obs=x[i])


def switches_guide(x: Tensor, ways: tuple[str | None, str | None]) -> None:
    first, second = ({"enumerate": way} if way else {} for way in ways)
    unit = constraints.unit_interval
    on = pyro.sample("on", dist.Bernoulli(pyro.param("on_rate", torch.tensor(0.4), constraint=unit)), infer=first)
    pyro.sample(
        "m", dist.Normal(pyro.param("loc", torch.tensor(0.1)) + on, pyro.param("scale", torch.tensor(0.5), POSITIVE))
    )
    with pyro.plate("rows", 24, subsample_size=8):
        rates = pyro.param("rates", torch.full((24,), 0.3), constraint=unit, event_dim=0)
        pyro.sample("z", dist.Bernoulli(rates), infer=second)


def scaled(x: Tensor) -> None:
    c = pyro.sample("c", dist.Categorical(torch.tensor([0.2, 0.5, 0.3])))
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 24, subsample_size=8) as i, poutine.scale(scale=0.5), poutine.mask(mask=x[i] > -1):
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.Normal(m + z + c, 1.0), obs=x[i])


def with_zero(x: Tensor) -> None:
    """A value of probability 0, whose cost is infinite."""
    logits = torch.cat([pyro.param("logits", torch.tensor([0.1, 0.2])), X.new_full((1,), -torch.inf)])
    c = pyro.sample("c", dist.Categorical(logits=logits), infer={"enumerate": "parallel"})
    pyro.sample("m", dist.Normal(pyro.param("loc", torch.tensor([0.0, 0.1, 0.2]))[c], 1.0))


def several(x: Tensor) -> None:
    """Several draws of a continuous site."""
    pyro.sample("on", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    loc = pyro.param("loc", torch.tensor(0.0))
    pyro.sample("m", dist.Normal(loc, 1.0), infer={"enumerate": "parallel", "num_samples": 4})
    with pyro.plate("rows", 24, subsample_size=8):
        pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})


def hidden(model: Any) -> Any:
    return AutoNormal(poutine.block(model, hide_fn=lambda site: site["name"].startswith("z")))


def enumerated(*ways: str | None) -> Callable[[Any], Any]:
    return lambda _: partial(switches_guide, ways=ways)  # type: ignore[arg-type]


DISCRETE = {
    "mixture": case(mixture, hidden, ENUM),
    "guide": case(switches, enumerated("parallel", "parallel"), ENUM),
    "sequential": case(switches, enumerated("sequential", "parallel"), ENUM),
    "model and guide": case(scaled, lambda _: with_zero, ENUM),
    "mixture, point": case(mixture, lambda m: AutoDelta(poutine.block(m, hide=["z"])), ENUM),
    "mixture, particles at once": case(mixture, hidden, lambda: TraceEnum_ELBO(**VECTORISED)),
    "sequential, particles": case(switches, enumerated("sequential", "parallel"), lambda: ENUM(num_particles=2)),
    "several draws": case(config_enumerate(switches), lambda _: several, ENUM),
}


AT_ONCE = {"num_particles": 3, "vectorize_particles": True}
GUESSING = {
    "summed out": case(mixture, hidden, TraceEnum_ELBO),
    "particles at once": case(scalar, AutoNormal, lambda: Trace_ELBO(**AT_ONCE)),
    "module with batch normalisation": case(Normalised, AutoNormal, lambda: Trace_ELBO(**AT_ONCE), REGRESSION),
}


def mixed(y: Tensor) -> None:
    a, d = (pyro.sample(name, dist.Gamma(2.0, 1.0)) for name in "ad")
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    shares = pyro.sample("c", dist.Dirichlet(torch.ones(3)))
    e = pyro.sample("e", dist.Normal(torch.zeros(7), 1.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(b + shares[0] + d + e.sum(), a), obs=y)


def mixed_guide(y: Tensor) -> None:
    """Noise that is an input of the graph, then noise that depends on parameters, and both in turn."""
    names = {"as": 2.0, "bs": 1.0, "cs": torch.ones(3), "ds": 2.0, "es": 0.3}
    scale = {name: pyro.param(name, torch.as_tensor(start), constraint=POSITIVE) for name, start in names.items()}
    pyro.sample("e", dist.Normal(torch.zeros(7), scale["es"]).to_event(1))
    pyro.sample("a", dist.Gamma(scale["as"], 1.0))
    pyro.sample("b", dist.Normal(0.0, scale["bs"]))
    pyro.sample("c", dist.Dirichlet(scale["cs"]))
    pyro.sample("d", dist.Gamma(scale["ds"], 1.0))


def test_a_program_that_would_draw_other_numbers_is_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    def coin(y: Tensor) -> None:
        z = pyro.sample("z", dist.Bernoulli(0.5))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def guess(y: Tensor) -> None:
        rate = pyro.param("rate", torch.tensor(0.4), constraint=constraints.unit_interval)
        pyro.sample("z", dist.Bernoulli(rate))

    fit = pyrodrop.fit(coin, guess, {"y": Y}, steps=60, engine="compiled", objective=Trace_ELBO())
    assert fit.settings["engine"] == "traced"
    assert "by aten.bernoulli.default, of which a compiled program would draw other numbers" in caplog.text


def test_the_default_refuses_discrete_draws_that_are_learned() -> None:
    """Its gradient would lack the score function; fixed probabilities need none."""

    def guide(x: Tensor, rate: Any) -> None:
        pyro.sample("on", dist.Bernoulli(rate()))
        pyro.sample("m", dist.Normal(pyro.param("loc", torch.tensor(0.1)), 0.5))
        with pyro.plate("rows", 24, subsample_size=8):
            pyro.sample("z", dist.Bernoulli(torch.tensor(0.5)))

    learned = partial(guide, rate=lambda: pyro.param("rate", torch.tensor(0.4), constraint=constraints.unit_interval))
    with pytest.raises(ValueError, match=r"'on' with its Bernoulli .* Pass objective=pyro\.infer\.Trace_ELBO\(\)"):
        pyrodrop.fit(switches, learned, {"x": X}, steps=1)
    fixed = partial(guide, rate=lambda: torch.tensor(0.4))
    pyrodrop.fit(switches, fixed, {"x": X}, steps=3)


def test_the_reason_names_the_line_of_the_program_that_prevents_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    def model(x: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        if m > 0:
            pyro.factor("u", -(m**2))
        with pyro.plate("rows", 24):
            pyro.sample("x", dist.Normal(m, 1.0), obs=x)

    def guide(x: Tensor) -> None:
        pyro.sample("m", dist.Normal(pyro.param("loc", torch.tensor(0.1)), 0.5))

    with caplog.at_level(logging.INFO, "pyrodrop"), pyro.validation_enabled(False):
        pyrodrop.fit(model, guide, {"x": X}, steps=2, engine="traced", objective=Trace_ELBO())
    assert re.search(r"at test_objectives\.py, line \d+: if m > 0:", caplog.text)


def test_torch_jit_goes_on_after_a_jitted_loss_that_cannot_be_traced() -> None:
    """A trace within that of torch.jit would leave it broken for the whole process."""

    @config_enumerate
    def two(x: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        with pyro.plate("rows", 24):
            z = pyro.sample("z", dist.Categorical(torch.ones(2)))
            pyro.sample("x", dist.Normal(loc[z], 1.0), obs=x)

    loss = partial(JitTraceEnum_ELBO, max_plate_nesting=1, ignore_jit_warnings=True)
    fit = pyrodrop.fit(two, hidden(two), {"x": X}, steps=2, engine="traced", objective=loss())
    assert fit.settings["engine"] == "pyro"
    pyro.clear_param_store()
    assert math.isfinite(SVI(two, hidden(two), pyro.optim.Adam({"lr": 0.01}), loss()).step(X))


@pytest.mark.slow
def test_a_compiled_program_with_a_cholesky_factor(capfd: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """The numbers of Pyro, and nothing of the compiler's on the standard error."""

    def process(x: Tensor) -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        noise = pyro.sample("noise", dist.LogNormal(-2.0, 1.0))
        kernel = torch.exp(-0.5 * (x[:, None] - x).square() / scale**2) + noise * torch.eye(24)
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(24), kernel), obs=Y)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert_fit_as_svi(case(process, AutoMultivariateNormal), "compiled")
    assert "c-shim" not in capfd.readouterr().err


PROGRAMS = {
    **CONTINUOUS,
    **DISCRETE,
    **GUESSING,
    "scores": case(switches, enumerated(None, None)),
    "noise of parameters": case(mixed, lambda _: mixed_guide, data={"y": Y}),
}


@pytest.mark.few(10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_fit(name: str) -> None:
    """Also of sums over the values of discrete sites, of scores, and of noise in between parameters, in Pyro's order."""
    assert_fit_as_svi(PROGRAMS[name])


@pytest.mark.few(1)
@pytest.mark.parametrize("name", GUESSING)
def test_nested_plates_are_counted_with_the_random_numbers_of_pyro(name: str) -> None:
    """An ELBO that is not told their number calls guide and model once before its first step."""
    assert_fit_as_svi(GUESSING[name], "pyro")
