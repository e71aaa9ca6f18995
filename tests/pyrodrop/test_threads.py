"""Threads: draws in several give the numbers of their seeds, and a training is alone or an error."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, threads

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True)
ANOTHER = "another thread is in pyrodrop.fit"


def parts(hidden: int = 16) -> tuple[models.NetworkModel, guides.Guide]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    return model, guides.BernoulliDropout(model, 0.2)


def fitted(steps: int = 20, **settings: Any) -> pyrodrop.Fit:
    return pyrodrop.fit(*parts(), (X, Y), steps=steps, progress=False, engine="pyro", **settings)


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What it returns, or the exception that it raises."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        return future.exception(timeout=60) or future.result()


def test_draws_in_threads_have_the_numbers_of_their_seeds() -> None:
    """Predictions and ELBOs of one fit and of several, over and over, in eight threads that take turns often."""
    fits = [fitted(), fitted(seed=1)]
    tasks = [
        (f, seed, kind) for f in (0, 1) for seed in range(6) for kind in ("predict", "moments", "elbo", "ensemble")
    ]

    def work(task: tuple[int, int, str]) -> torch.Tensor:
        fit, seed = fits[task[0]], task[1]
        if task[2] == "elbo":
            return torch.tensor(fit.elbo(3, seed=seed).value)
        if task[2] == "ensemble":
            return torch.nn.utils.parameters_to_vector(fit.ensemble(2, seed=seed)[1].parameters()).detach()
        if task[2] == "moments":
            return fit.predict(X, 8, seed=seed, keep="moments").variance
        return fit.predict(X, 8, seed=seed).y

    want = [work(task) for task in tasks]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, tasks * 2))
    assert all(torch.equal(a, b) for a, b in zip(found, want * 2, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_training_is_alone() -> None:
    """While one thread trains, others cannot train or draw; it is not disturbed, and afterwards they can."""
    other = fitted()
    want = fitted(6)
    model, guide = parts()
    refused: list[Any] = []

    def look(fit: pyrodrop.Fit, epochs: int) -> None:
        for work in (fitted, lambda: other.predict(X, 4), lambda: fit.elbo(2), lambda: other.ensemble(1)[0]):
            refused.append(in_a_thread(work))

    run = in_a_thread(
        lambda: pyrodrop.fit(
            model, guide, (X, Y), steps=6, progress=False, engine="pyro", after_epoch=look, batch_size=30
        )
    )
    assert isinstance(run, pyrodrop.Fit)
    assert len(refused) == 3 * 4
    assert all(isinstance(error, RuntimeError) and ANOTHER in str(error) for error in refused)
    assert all("multiprocessing" in str(error) for error in refused)
    alone = pyrodrop.fit(*parts(), (X, Y), steps=6, progress=False, engine="pyro", batch_size=30)
    assert torch.equal(run.history, alone.history)
    assert isinstance(in_a_thread(lambda: other.predict(X, 4)), pyrodrop.Prediction)
    assert torch.equal(in_a_thread(lambda: fitted(6)).history, want.history)


def test_the_same_thread_may_look_and_even_train() -> None:
    seen = []

    def look(fit: pyrodrop.Fit, epochs: int) -> None:
        seen.append((float(fit.predict(X, 4).mean.sum()), fit.elbo(2).value, fitted(2).losses))

    assert torch.equal(fitted(4, after_epoch=look).history, fitted(4).history)
    assert len(seen) == 4


def test_a_training_that_fails_leaves_the_others_free() -> None:
    def fail(*_: Any) -> None:
        raise KeyError("no")

    assert isinstance(in_a_thread(lambda: fitted(3, after_epoch=fail)), KeyError)
    assert isinstance(in_a_thread(lambda: pyrodrop.fit(*parts(), (X, Y), steps=0)), ValueError)
    assert len(fitted(2).history) == 2


def test_who_waits_for_a_draw_is_told_of_a_training() -> None:
    """A draw that waits for another's when a training begins is refused, and does not wait for the training."""
    began, ended, found = threading.Event(), threading.Event(), []

    def draw() -> None:
        with threads.drawing():
            began.set()
            ended.wait(30)

    def wait() -> None:
        try:
            with threads.drawing():
                found.append("drawn")
        except RuntimeError as error:
            found.append(str(error))

    def train() -> None:
        with threads.training():
            found.append("trained")

    first = threading.Thread(target=draw)
    first.start()
    began.wait(30)
    second, third = threading.Thread(target=wait), threading.Thread(target=train)
    second.start()
    third.start()
    second.join(30)
    assert len(found) == 1
    assert ANOTHER in found[0]
    ended.set()
    first.join(30)
    third.join(30)
    assert found[1:] == ["trained"]


def _elbo(_: int) -> float:
    return fitted(2).elbo(2).value


def test_processes_are_the_way() -> None:
    """Forked while another thread trains, as `multiprocessing` does on Linux, a process is as free as a new one."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("needs processes by fork")
    want, values = _elbo(0), []

    def look(*_: Any) -> None:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            values.extend(pool.map(_elbo, range(2)))

    fitted(1, after_epoch=look)
    assert values == [want, want]
