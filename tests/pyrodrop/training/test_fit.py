"""Training: what it does, what it leaves alone, and what it refuses."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset

X, Y = torch.linspace(-1, 1, 30)[:, None], torch.linspace(-1, 1, 30)[:, None] ** 2


def parts(**options: Any) -> tuple[models.MLP, guides.Guide]:
    torch.manual_seed(0)
    likelihood = likelihoods.Gaussian(5.0, learned=True)
    model = models.MLP([1, 8, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihood)
    return model, guides.BernoulliDropout(model, 0.2, mask_input=False, **options)


def state(fit: pyrodrop.Fit) -> dict[str, torch.Tensor]:
    return {**fit.model.state_dict(), **fit.guide.state_dict()}  # type: ignore[attr-defined]


def same(one: pyrodrop.Fit, two: pyrodrop.Fit) -> bool:
    a, b = state(one), state(two)
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a) and torch.equal(one.history, two.history)


def test_a_seed_makes_a_run_and_leaves_the_callers_random_state_alone() -> None:
    model, guide = parts()
    torch.manual_seed(17)
    np.random.seed(17)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    runs = [pyrodrop.fit(model, guide, (X, Y), steps=20, batch_size=7, seed=s) for s in (3, 3, 4)]
    predictions = [run.predict(X, 5, seed=s) for run, s in zip(runs, (1, 1, 1), strict=True)]
    elbos = [run.elbo(5) for run in runs]
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])
    assert torch.equal(predictions[0].f, predictions[1].f)
    assert torch.equal(predictions[0].y, predictions[0].y)
    assert elbos[0] == elbos[1]


def test_model_and_guide_are_left_as_they_were() -> None:
    model, guide = parts()
    before = {n: p.clone() for n, p in [*model.state_dict().items(), *guide.state_dict().items()]}
    fit = pyrodrop.fit(model, guide, Dataset(X, Y).standardized(), steps=5)
    after = {**model.state_dict(), **guide.state_dict()}
    assert all(torch.equal(before[n], after[n]) for n in before)
    trained = state(fit)
    moving = [n for n in trained if n.endswith("_unconstrained")]
    assert moving
    assert all(not torch.equal(before[n], trained[n]) for n in moving)


def test_minibatches_pass_through_every_row_once_an_epoch() -> None:
    seen: list[list[float]] = []

    def model(x: torch.Tensor, y: torch.Tensor, num_data: int | None = None) -> None:
        seen.append(x[:, 0].tolist())
        assert num_data in (None, 30)
        w = pyro.sample("w", dist.Normal(torch.zeros(1), 1).to_event(1))
        with pyro.plate("data", 30, subsample=torch.arange(len(x))):
            pyro.sample("y", dist.Normal(w * x, 1).to_event(1), obs=y)

    def guide(x: torch.Tensor, y: torch.Tensor, num_data: int | None = None) -> None:
        pyro.sample("w", dist.Normal(pyro.param("m", torch.zeros(1)), 1).to_event(1))

    pyrodrop.fit(model, guide, (X, Y), steps=6, batch_size=12)
    assert [len(rows) for rows in seen] == [12, 12, 6, 12, 12, 6]
    epochs = [[x for rows in part for x in rows] for part in (seen[:3], seen[3:])]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(X[:, 0].tolist())
    assert epochs[0] != epochs[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, functools.partial(torch.optim.SGD, momentum=0.9)])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path: Path, optimizer: Any) -> None:
    model, guide = parts()
    options: dict[str, Any] = {
        "batch_size": 7,
        "optimizer": optimizer,
        "lr": 1e-3,
        "lr_schedule": lambda t: 1 / (1 + t),
    }
    whole = pyrodrop.fit(model, guide, (X, Y), steps=23, **options)
    file = tmp_path / "state.safetensors"
    pyrodrop.fit(
        model, guide, (X, Y), steps=11, checkpoint=pyrodrop.Checkpoint(file, every=4), **options
    )  # of 5 an epoch
    resumed = pyrodrop.fit(model, guide, (X, Y), steps=23, checkpoint=pyrodrop.Checkpoint(file, every=4), **options)
    assert same(whole, resumed)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]
    with pytest.raises(
        ValueError,
        match="is of another run: seed is 0 there and 1 here. A run that continues may differ in steps, lr,",
    ):
        pyrodrop.fit(model, guide, (X, Y), steps=23, seed=1, checkpoint=file, **options)
    with pytest.raises(ValueError, match="has done 23 steps already"):
        pyrodrop.fit(model, guide, (X, Y), steps=5, checkpoint=file, **options)


def test_minibatches_need_a_model_that_knows_what_they_stand_for() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        pyro.sample("w", dist.Normal(0, 1))

    with pytest.raises(ValueError, match=r"needs a model .*\(x, y, num_data=N\).* got 8 of 30 rows"):
        pyrodrop.fit(model, lambda x, y: None, (X, Y), steps=1, batch_size=8)


def test_a_rate_for_every_parameter() -> None:
    model, guide = parts()
    fit = pyrodrop.fit(model, guide, (X, Y), steps=3, lr=lambda name: 0.1 if "layers.1.weight" in name else 0.0)
    moved = [n for n, v in fit.guide.mean().items() if not torch.equal(v, guide.mean()[n])]  # type: ignore[attr-defined]
    assert moved == ["layers.1.weight"]


def test_a_step_that_changes_nothing_is_an_error() -> None:
    model, guide = parts()
    with pytest.raises(RuntimeError, match="moved none of the"):
        pyrodrop.fit(model, guide, (X, Y), steps=5, lr=lambda name: 0.0)
    net = nn.Linear(1, 1)  # reached through a closure: Pyro sees no parameter

    def closure(x: torch.Tensor, y: torch.Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(net(x), 1).to_event(1), obs=y)

    with pytest.raises(RuntimeError, match="no parameter|closure"):
        pyrodrop.fit(closure, lambda x, y: None, (X, Y), steps=5)


def test_an_elbo_of_many_data_is_summed_in_parts_of_one_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(30, 3)
    model = models.MLP([3, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(2.0))
    fit = pyrodrop.fit(model, guides.BernoulliDropout(model, 0.3), (x, x[:, :1]), steps=5)
    whole = fit.elbo(8, seed=4)
    monkeypatch.setattr("pyrodrop.training.elbo.BLOCK", 7)
    parts = fit.elbo(8, seed=4)
    assert parts.value == pytest.approx(whole.value, rel=1e-5)
    assert parts.se == pytest.approx(whole.se, rel=1e-4)
    monkeypatch.setattr("pyrodrop.prediction.draws._TILE_BYTES", {"cpu": 4 * 2 * 5 * (4 + 3)})  # of 5 rows
    tiles = fit.elbo(8, seed=4)
    assert tiles.value == pytest.approx(whole.value, rel=1e-5)
    assert tiles.se == pytest.approx(whole.se, rel=1e-4)


@pytest.mark.parametrize("before", [True, False])
def test_training_flushes_denormals_and_leaves_the_setting_as_it_was(before: bool) -> None:
    tiny, seen = torch.full((), torch.finfo(torch.float32).tiny), []

    def schedule(step: int) -> float:
        seen.append(float(tiny / 8))
        return 1.0

    x = torch.randn(20, 3)
    model = models.MLP([3, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(2.0))
    if not torch.set_flush_denormal(before):
        pytest.skip("this processor cannot flush denormals")
    try:
        pyrodrop.fit(model, guides.MeanField(model), (x, x[:, :1]), steps=3, lr_schedule=schedule)
        after = float(tiny / 8)
    finally:
        torch.set_flush_denormal(False)
    assert set(seen[-3:]) == {0.0}, "of the steps; before them it is called to describe and to check the run"
    assert (after == 0.0) == before
