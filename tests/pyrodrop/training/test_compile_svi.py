"""`compile_svi` against `pyro.infer.SVI` from the same seed: losses, the parameter store and the optimiser's states."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

import pyrodrop
from tests.pyrodrop.compiled.as_svi import Case, adam, assert_steps_as_svi

pytestmark = pytest.mark.usefixtures("float64")
GROUPS = torch.arange(40) % 4
X = torch.linspace(-1, 1, 40, dtype=torch.float64)
Y = X.sin() + 0.3 * GROUPS


def hierarchical(x: Tensor, groups: Tensor, y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
    scale = pyro.sample("scale", dist.HalfCauchy(5.0))
    with pyro.plate("groups", 4):
        slope = pyro.sample("slope", dist.Normal(mean, scale))
    noise = pyro.sample("noise", dist.HalfNormal(5.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(slope[groups] * x, noise), obs=y)


def logistic(x: Tensor, y: Tensor, beta: Any = 1.0) -> None:
    weight = pyro.sample("weight", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)), pyro.poutine.scale(scale=beta):
        pyro.sample("y", dist.Bernoulli(logits=(x * weight).sum(-1)), obs=y)


def by_hand(x: Tensor, y: Tensor, beta: Any = 1.0) -> None:
    loc = pyro.param("loc", torch.zeros(2))
    scale = pyro.param("scale", torch.ones(2), constraint=dist.constraints.positive)
    pyro.sample("weight", dist.Normal(loc, scale).to_event(1))


PAIRS = torch.stack([X, X**2], 1)
LABELS = (X > 0.2).double()


def subsampled(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y), subsample_size=10) as rows:
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y[rows])


class VAE(nn.Module):
    """Called by its methods, as in Pyro's tutorial; the encoder has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.encoder = nn.Sequential(nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 4))
            self.decoder = nn.Sequential(nn.Linear(2, 8), nn.Softplus(), nn.Linear(8, 3))
        self.weight = 1.0

    def model(self, x: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)), pyro.poutine.scale(scale=self.weight):
            z = pyro.sample("z", dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", len(x)), pyro.poutine.scale(scale=self.weight):
            loc, scale = self.encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, scale.exp()).to_event(1))


def case(model: Any, guide: Any, data: Any, **options: Any) -> Case:
    """A guide of a class is made of the model anew for every inference."""
    return Case(lambda: (model, guide(model) if isinstance(guide, type) else guide, data), **options)


LOGISTIC = {"x": PAIRS, "y": LABELS}
OPTIMISERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: pyro.optim.Adam({"lr": 0.02, "weight_decay": 0.01, "betas": (0.8, 0.95)}),
    "adamw": lambda: pyro.optim.AdamW({"lr": 0.02, "weight_decay": 0.1}),
    "clipped": lambda: pyro.optim.ClippedAdam(
        {"lr": 0.05, "lrd": 0.9, "clip_norm": 0.5, "eps": 1e-3, "weight_decay": 0.1}
    ),
    "centered": lambda: pyro.optim.ClippedAdam({"lr": 0.05, "centered_variance": True}),
    "sgd": lambda: pyro.optim.SGD({"lr": 1e-4}),
    "momentum": lambda: pyro.optim.SGD({"lr": 1e-4, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "amsgrad": lambda: pyro.optim.Adam({"lr": 0.02, "amsgrad": True}),
    "rprop": lambda: pyro.optim.Rprop({"lr": 0.02}),
    "by parameter": lambda: pyro.optim.Adam(lambda name: {"lr": 0.1 if "loc" in name else 0.01}),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("optim", OPTIMISERS.values(), ids=OPTIMISERS)
def test_optimisers(optim: Callable[[], Any]) -> None:
    """All steps but the first two are recorded."""
    assert_steps_as_svi(case(logistic, by_hand, LOGISTIC, optim=optim), recorded=10)


@pytest.mark.more
def test_compiled() -> None:
    clipped = case(logistic, by_hand, LOGISTIC, optim=OPTIMISERS["clipped"])
    assert assert_steps_as_svi(clipped, engine="compiled").engines[-1] == "compiled"


@pytest.mark.more
def test_auto_compiles_when_it_has_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrodrop.compiled.svi.worth_compiling", lambda graph, steps: steps >= 64)
    svi = pyrodrop.compile_svi(logistic, by_hand, adam(), Trace_ELBO())
    engines = [svi.step(PAIRS, LABELS) and svi.engine for _ in range(72)]
    assert set(engines[5:60]) == {"traced"}
    assert engines[-1] == "compiled"


@pytest.mark.parametrize("closure", [False, True])
def test_modules_of_methods_and_of_closures(closure: bool) -> None:
    """With minibatches of two sizes; BatchNorm's running statistics are updated once, as Pyro does."""
    rows = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)).round()
    batches, made = rows.split(20), list[VAE]()

    def parts() -> Any:
        vae = VAE()
        made.append(vae)
        model, guide = (lambda x: vae.model(x), lambda x: vae.guide(x)) if closure else (vae.model, vae.guide)
        return model, guide, lambda step: {"x": batches[step % 3]}

    assert_steps_as_svi(Case(parts, loss=TraceMeanField_ELBO), 24, recorded=10)
    for one, other in zip(*(vae.buffers() for vae in made), strict=True):
        torch.testing.assert_close(one, other)
    assert int(made[1].encoder[1].num_batches_tracked) == 24


def test_a_function_as_the_loss() -> None:
    def loss(model: Any, guide: Any, **data: Any) -> Any:
        return Trace_ELBO().differentiable_loss(model, guide, **data)

    assert_steps_as_svi(case(logistic, by_hand, LOGISTIC, loss=lambda: loss))


def test_in_single_precision() -> None:
    torch.set_default_dtype(torch.float32)
    data = {"x": X.float(), "groups": GROUPS, "y": Y.float()}
    assert_steps_as_svi(case(hierarchical, AutoNormal, data), rtol=1e-5)


def test_keywords_numbers_and_new_shapes() -> None:
    calls = [
        {"x": PAIRS[:n], "y": LABELS[:n], "beta": b} for n, b in ((40, 1.0), (30, 1.0), (30, 0.5)) for _ in range(9)
    ]
    assert_steps_as_svi(case(logistic, by_hand, calls.__getitem__), len(calls), recorded=9)


def test_a_number_that_changes_at_every_step_is_not_recorded() -> None:
    assert_steps_as_svi(case(logistic, by_hand, lambda step: {**LOGISTIC, "beta": (1 + step) / 20}, svi="Pyro"), 19)


BETA = 1.0


def annealed(x: Tensor, y: Tensor) -> None:
    logistic(x, y, BETA)


def test_a_global_number_that_changes() -> None:
    """At every eighth step; in between the steps are recorded."""

    def between(svi: SVI, number: int) -> None:
        global BETA
        BETA = 1.0 / (1 + number // 8)

    assert_steps_as_svi(case(annealed, by_hand, LOGISTIC), 32, between, recorded=4)


def test_tensors_of_a_closure() -> None:
    """Written to in place, replaced, and their `data` changed."""

    kept, prior = {}, torch.tensor(1.0)

    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, prior * kept["prior"]))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    def between(svi: SVI, number: int) -> None:
        nonlocal prior
        if number == 0:
            kept["prior"], prior = torch.tensor(1.0), torch.tensor(1.0)
        elif number == 8:
            prior.fill_(2.0)
        elif number == 14:
            prior = torch.tensor(0.5)
        elif number == 21:
            prior.data.fill_(0.2)
        elif number == 28:
            kept["prior"] = torch.tensor(3.0)

    def parts() -> Any:
        between(None, 0)  # type: ignore[arg-type]
        return model, AutoNormal(model), {"y": Y}

    assert_steps_as_svi(Case(parts), 36, between, recorded=12)


def test_parameters_that_are_replaced_or_cleared() -> None:
    def between(svi: SVI, number: int) -> None:
        store = pyro.get_param_store()
        if number == 8:
            pyro.clear_param_store()
        elif number == 16:
            store["loc"] = torch.ones(2)
        elif number == 24:
            pyro.param("loc").data.fill_(-1.0)
        elif number == 28:
            pyro.param("loc").data = torch.full((2,), 0.5)
        elif number == 32:
            store.set_state(store.get_state())

    assert_steps_as_svi(case(logistic, by_hand, LOGISTIC), 40, between, recorded=15)


ENGINES = ["traced", pytest.param("compiled", marks=pytest.mark.more)]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_optimiser_that_is_changed_between_steps(engine: str) -> None:
    def between(svi: SVI, number: int) -> None:
        for own in svi.optim.optim_objs.values():
            if number == 8:
                own.param_groups[0]["lr"] = 0.1
            elif number == 10:
                own.param_groups[0]["betas"] = (0.5, 0.9)
            elif number == 12:
                own.load_state_dict(own.state_dict())
            elif number == 16:
                own.param_groups[0]["amsgrad"] = True
                for state in own.state.values():
                    state["max_exp_avg_sq"] = torch.zeros_like(state["exp_avg_sq"])
        if number == 20:
            svi.optim = pyro.optim.SGD({"lr": 1e-3})

    assert_steps_as_svi(case(logistic, by_hand, LOGISTIC), 24, between, recorded=14, engine=engine)


def test_states_go_from_one_to_the_other() -> None:
    """Steps by SVI continue those of compile_svi, and the other way round, by get_state and set_state."""
    losses = []
    for makes in ((SVI, SVI), (pyrodrop.compile_svi, SVI), (SVI, pyrodrop.compile_svi)):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        first = makes[0](logistic, by_hand, adam(), Trace_ELBO())
        loss = [first.step(PAIRS, LABELS) for _ in range(9)]
        optim = adam()
        optim.set_state(first.optim.get_state())
        second = makes[1](logistic, by_hand, optim, Trace_ELBO())
        losses.append(loss + [second.step(PAIRS, LABELS) for _ in range(9)] + [second.evaluate_loss(PAIRS, LABELS)])
    torch.testing.assert_close(losses[1:], losses[:1] * 2, rtol=1e-10, atol=0)


def test_hooks_and_gradients_of_parameters() -> None:
    norms: list[list[float]] = []

    def between(svi: SVI, number: int) -> None:
        if number == 7:
            norms.append([])
            pyro.param("loc").unconstrained().register_hook(lambda g, own=norms[-1]: own.append(float(g.norm())))
        elif number == 3:
            pyro.param("loc").unconstrained().grad = torch.ones(2)

    assert_steps_as_svi(case(logistic, by_hand, LOGISTIC), before=between)
    torch.testing.assert_close(*norms)


def test_a_parameter_that_only_some_arguments_use() -> None:
    """Pyro leaves it a gradient of 0, with which Adam moves it on; one without any gradient stays."""

    def model(x: Tensor, y: Tensor) -> None:
        pyro.param("unused", torch.ones(2))
        logistic(x, y)

    def guide(x: Tensor, y: Tensor) -> None:
        other = pyro.param("other", torch.ones(2))
        loc = pyro.param("loc", torch.zeros(2))
        pyro.sample("weight", dist.Normal(loc + other if len(x) == 40 else loc, 1.0).to_event(1))

    calls = [{"x": PAIRS[:n], "y": LABELS[:n]} for n in (30, 40, 30) for _ in range(8)]
    optim = functools.partial(pyro.optim.Adam, {"lr": 0.1, "weight_decay": 0.1})
    assert_steps_as_svi(case(model, guide, calls.__getitem__, optim=optim), len(calls), recorded=8)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("validation", [False, True])
def test_nan_in_the_data(validation: bool, engine: str) -> None:
    """Pyro's step warns and returns NaN, or raises where it validates; so does ours, with what comes after it."""
    bad = torch.full_like(Y, math.nan)
    outcomes, found = [], list[Tensor]()
    for make in (SVI, functools.partial(pyrodrop.compile_svi, engine=engine)):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        svi = make(subsampled, by_mean, adam(), Trace_ELBO())
        for _ in range(8):
            svi.step(Y)
        with pyro.validation_enabled(validation), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                said = str(svi.step(bad))
            except ValueError as error:
                said = str(error)
        outcomes.append((said, [str(one.message) for one in caught]))
        found.append(pyro.param("loc").detach().clone())
    assert outcomes[0] == outcomes[1]
    torch.testing.assert_close(*found, rtol=1e-12, atol=0, equal_nan=True)
    assert outcomes[0][0] == "nan" or validation


def by_mean(y: Tensor) -> None:
    pyro.sample("mean", dist.Normal(pyro.param("loc", torch.zeros(())), 1.0))


def test_an_error_of_the_program_is_pyros() -> None:
    svi = pyrodrop.compile_svi(hierarchical, AutoNormal(hierarchical), adam(), Trace_ELBO())
    for _ in range(4):
        svi.step(X, GROUPS, Y)
    with pytest.raises(ValueError, match="not broadcastable"):
        svi.step(X, GROUPS, Y[:3])
    assert math.isfinite(svi.step(X, GROUPS, Y))


@pytest.mark.parametrize("kind", ["branch", "object", "counter", "handler"])
def test_what_cannot_be_recorded_is_stepped_by_pyro(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    said = {
        "branch": "cannot be traced",
        "object": "an argument is",
        "counter": "a call changes calls",
        "handler": "a handler of Pyro",
    }[kind]

    def parts() -> Any:
        calls = [0]

        def model(y: Tensor, more: Any = None) -> None:
            mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
            if kind == "branch" and mean > 0:
                mean = mean * 2
            if kind == "counter":
                calls[0] += 1
            with pyro.plate("data", len(y)):
                pyro.sample("y", dist.Normal(mean, 1.0 + calls[0]), obs=y)

        return model, lambda y, more=None: by_mean(y), {"y": Y, "more": Y.numpy() if kind == "object" else None}

    around = pyro.poutine.scale(scale=0.5) if kind == "handler" else contextlib.nullcontext()
    with caplog.at_level(logging.INFO, "pyrodrop"), around:
        assert_steps_as_svi(Case(parts, "Pyro"), 6)
    lines = [record.message for record in caplog.records]
    assert len(lines) == 1
    assert said in lines[0]


def test_arguments_are_read_at_every_step() -> None:
    """New tensors, the same tensor changed in place, other strides, and a nested structure."""

    def model(data: dict[str, Any]) -> None:
        logistic(data["x"], data["rest"][0])

    def guide(data: dict[str, Any]) -> None:
        by_hand(data["x"], data["rest"][0])

    x = PAIRS.clone()
    calls = [{"data": {"x": x if n < 8 else PAIRS.T.contiguous().T, "rest": [LABELS, None]}} for n in range(20)]

    def between(svi: SVI, number: int) -> None:
        x.copy_(PAIRS * (number + 1))

    assert_steps_as_svi(case(model, guide, calls.__getitem__), 20, between, recorded=8)
