"""Threads: calls in several wait for each other and give the numbers that they give alone, then and afterwards."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyro
import pyro.optim
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, threads

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True)


class Inside(nn.Module):
    """A layer that only the thread that has the lock may call."""

    def forward(self, x: Tensor) -> Tensor:
        assert threads._owner == threading.get_ident(), "called outside of the lock"
        return x


def parts() -> tuple[models.NetworkModel, guides.Guide]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), Inside(), nn.Linear(16, 1))
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    return model, guides.BernoulliDropout(model, 0.2)


MODEL, GUIDE = parts()  # made once: what draws from torch's generator by itself is not kept apart


def fitted(steps: int = 20, **settings: Any) -> pyrodrop.Fit:
    return pyrodrop.fit(MODEL, GUIDE, (X, Y), **{"steps": steps, "progress": False, "engine": "pyro", **settings})


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What it returns, or the exception that it raises."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        return future.exception(timeout=60) or future.result()


def numbers(value: Any) -> list[Tensor]:
    """All numbers of a result, as tensors."""
    if isinstance(value, nn.Module):
        return [parameter.detach() for parameter in value.state_dict().values()]
    if isinstance(value, pyrodrop.Fit):
        return [value.history, *numbers(value.guide)]
    return [torch.as_tensor(element) for element in (value if isinstance(value, list | tuple) else [value])]


def assert_same(got: Any, want: Any) -> None:
    assert not isinstance(got, BaseException), got
    got, want = numbers(got), numbers(want)
    assert len(got) == len(want)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def calls() -> dict[str, Callable[[], Any]]:
    """A call of every public function that enters Pyro, functorch, a tracer or torch's generator, and its numbers."""
    run = fitted()
    sparse_model = models.MLP([3, 6, 1], prior=priors.ARD("weight"), likelihood=likelihoods.Gaussian(4.0))
    sparse = pyrodrop.fit(
        sparse_model, guides.SparseDropout(sparse_model), (X, Y), steps=2, engine="pyro", progress=False
    )
    dropped = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Dropout(0.2), Inside(), nn.Linear(6, 1))
    exact_model = models.MLP([3, 2, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    chain: dict[str, Any] = {
        "chains": 4,
        "draws": 4,
        "tune": 100,
        "max_steps": 2,
        "engine": "traced",
        "progress": False,
    }

    def steps() -> list[float]:
        model = copy.deepcopy(MODEL)
        svi = pyrodrop.compile_svi(model, guides.Point(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        return [svi.step(X, Y) for _ in range(8)]

    def posterior() -> list[Any]:
        tree = pyrodrop.to_arviz(run, (X, Y), num_samples=25)
        return [tree.posterior_predictive["y"].values, tree.attrs["elbo"]]

    def comparison() -> list[float]:
        rows = pyrodrop.compare({"a": run, "b": sparse}, (X, Y), num_samples=8).rows
        return [row["log_density"] for row in rows.values()]

    def read() -> Tensor:
        reading = pyrodrop.read(dropped, X[:4], likelihood=likelihoods.Gaussian(4.0), weight_decay=1e-3, num_data=60)
        return reading.predict(X, 8).y

    def made() -> list[float]:
        model = models.MLP([3, 6, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(), seed=3)
        guide = guides.BernoulliDropout(model, 0.1, mask_input=False)
        return [*map(float, guide.rates().values()), *(float(w.sum()) for w in model.weight_sites().values())]

    return {
        "fit": lambda: fitted(5),
        "fit traced": lambda: fitted(8, engine="traced", seed=2),
        "fit_replicates": lambda: [
            fit.history
            for fit in pyrodrop.fit_replicates(MODEL, GUIDE, (X, Y), count=2, steps=4, engine="traced", progress=False)
        ],
        "compile_svi": steps,
        "read": read,
        "predict": lambda: run.predict(X, 8).y,
        "elbo": lambda: run.elbo(3).value,
        "compress": lambda: sparse.compress(),
        "to_arviz": posterior,
        "compare": comparison,
        "module": lambda: run.module(2)(X)[0],
        "sample": lambda: pyrodrop.sample(exact_model, (X, Y), **chain).stats["lp"],
        "potential": lambda: (p := pyrodrop.potential(exact_model, (X, Y), engine="traced"))(p.initial_params()),
        "guide": made,
    }


SLOW = ("sample",)  # once is enough


@pytest.mark.more
def test_every_public_function_in_eight_threads_and_then_alone() -> None:
    work = calls()
    names = [*work, *(name for name in work if name not in SLOW)]
    with ThreadPoolExecutor(8) as pool:
        futures = [(name, pool.submit(work[name])) for name in names]
    assert pyro.poutine.runtime._PYRO_STACK == []
    want = {name: call() for name, call in work.items()}
    for name, future in futures:
        assert_same(future.exception() or future.result(), want[name])


def test_a_prediction_waits_for_a_training_in_another_thread() -> None:
    """Both have the bits that they have alone."""
    other, began = fitted(), threading.Event()
    want, alone = other.predict(X, 4).y, fitted(6)
    ends: list[str] = []

    def predict() -> Tensor:
        began.wait(60)
        y = other.predict(X, 4).y
        ends.append("predict")
        return y

    def look(*_: Any) -> None:
        began.set()
        time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        predicted = pool.submit(predict)
        with threads.exclusive():
            assert_same(fitted(6, after_epoch=look), alone)
            ends.append("fit")
        assert_same(predicted.result(60), want)
    assert ends == ["fit", "predict"]


def test_a_handler_in_another_thread_is_waited_for() -> None:
    """Pyro has one stack of handlers for all threads: a call that refuses handlers around it looks at its own alone."""
    fit, entered = fitted(), threading.Event()
    want = fit.elbo(2).value

    def train() -> None:
        with threads.exclusive(), poutine.trace():
            entered.set()
            time.sleep(0.1)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(train)
        entered.wait(60)
        assert fit.elbo(2).value == want
        other.result(60)


class Leaving(nn.Module):
    """A network that, once asked to, leaves a handler on Pyro's stack and raises an error."""

    leaves = False

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        if Leaving.leaves:
            poutine.block().__enter__()
            raise KeyError("left")
        return self.linear(F.dropout(x, 0.1, self.training))


@pytest.mark.parametrize("name", ["fit", "predict", "elbo", "read", "module", "compare", "to_arviz", "sample"])
def test_pyros_stack_is_what_it_was_after_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.from_module(Leaving().eval(), priors.Gaussian(), likelihoods.Gaussian(4.0))
    guide = guides.MeanField(model)
    run = pyrodrop.fit(model, guide, (X, Y), steps=2, progress=False, engine="pyro")
    settings: dict[str, Any] = {"likelihood": likelihoods.Gaussian(4.0), "weight_decay": 1e-3, "num_data": 60}
    work: dict[str, Callable[[], Any]] = {
        "fit": lambda: pyrodrop.fit(model, guide, (X, Y), steps=2, progress=False, engine="pyro"),
        "predict": lambda: run.predict(X, 4),
        "elbo": lambda: run.elbo(2),
        "read": lambda: pyrodrop.read(Leaving(), X[:4], **settings),
        "module": lambda: run.module(2)(X),
        "compare": lambda: pyrodrop.compare({"run": run}, (X, Y), num_samples=4),
        "to_arviz": lambda: pyrodrop.to_arviz(run, (X, Y), num_samples=4),
        "sample": lambda: pyrodrop.sample(model, (X, Y), chains=4, draws=4, tune=100, progress=False),
    }
    monkeypatch.setattr(Leaving, "leaves", True)
    with pytest.raises((KeyError, ValueError)):
        work[name]()
    assert pyro.poutine.runtime._PYRO_STACK == []


def test_parameters_that_another_thread_reads_are_in_no_trace() -> None:
    run = fitted(2)
    guide: Any = run.guide
    name = guide.sites[0]
    with threads.exclusive(), poutine.trace() as capture:
        read = in_a_thread(lambda: guide.loc[name])
        assert not capture.trace.nodes
        assert torch.equal(read, guide.loc[name])
        assert list(capture.trace.nodes) == [f"loc.{name}"]
