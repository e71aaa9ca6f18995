"""The end of a training before its last step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.checks import EngineName

GENERATOR = torch.Generator().manual_seed(3)
X = torch.rand(40, 1, generator=GENERATOR) * 4 - 2
Y = (2 * X).sin() + 0.3 * torch.randn(40, 1, generator=GENERATOR)
TRAIN, HELD = (X[:20], Y[:20]), (X[20:], Y[20:])


def pair(kind: Any = guides.Point) -> tuple[Any, Any]:
    torch.manual_seed(2)
    model = models.MLP([1, 30, 1], prior=priors.Gaussian(3.0), likelihood=likelihoods.Gaussian())
    return model, kind(model)


def fit(after_epoch: Any, kind: Any = guides.Point, **settings: Any) -> pyrodrop.Fit:
    options = {"steps": 240, "batch_size": 5, "lr": 0.02, "engine": "traced", **settings}
    return pyrodrop.fit(*pair(kind), TRAIN, after_epoch=after_epoch, **options)


def score(run: pyrodrop.Fit) -> float:
    return float(run.predict(HELD[0], 20, seed=0).log_density(HELD[1]).mean())


def state(run: pyrodrop.Fit) -> list[Tensor]:
    return [*run.model.parameters(), *run.guide.parameters()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ["pyro", "traced", pytest.param("compiled", marks=pytest.mark.more)])
def test_a_training_ends_where_true_is_returned_as_one_of_so_many_steps(engine: EngineName) -> None:
    early = fit(lambda _, epoch: epoch == 9, engine=engine, steps=60, kind=guides.MeanField)
    alone = fit(None, engine=engine, steps=36, kind=guides.MeanField)
    assert len(early.losses) == 36
    assert torch.equal(early.history, alone.history)
    assert all(map(torch.equal, state(early), state(alone)))


def test_an_object_says_when_it_is_called() -> None:
    class Look:
        every: int | None = 7

        def __init__(self) -> None:
            self.seen: list[tuple[int, float]] = []

        def __call__(self, run: pyrodrop.Fit, epoch: float) -> None:
            self.seen.append((len(run.losses), epoch))

    look = Look()
    fit(look, steps=17)
    assert look.seen == [(7, 1.75), (14, 3.5), (17, 4.25)]
    look.every, look.seen = None, []
    fit(look, steps=9)
    assert look.seen == [(4, 1), (8, 2), (9, 2.25)]
    look.every = 0
    with pytest.raises(ValueError, match=r"after_epoch\.every is the number of steps .*got 0"):
        fit(look)


@pytest.mark.parametrize("kind", [guides.Point, pytest.param(guides.MeanField, marks=pytest.mark.more)])
def test_the_best_parameters_are_those_of_a_fit_of_as_many_steps(kind: Any) -> None:
    """Against a loop that makes its own scores: 20 rows are fitted too closely by 30 units."""
    seen: list[tuple[int, float]] = []
    fit(lambda run, _: seen.append((len(run.losses), score(run))), kind)
    best = max(seen, key=lambda one: one[1])
    stopping = pyrodrop.EarlyStopping(HELD, patience=4)
    run = fit(stopping, kind)
    of_seen = seen[: len(stopping.scores)]
    assert stopping.scores == of_seen
    assert len(run.losses) == of_seen[-1][0]
    assert stopping.best == max(of_seen, key=lambda one: one[1])
    alone = fit(None, kind, steps=stopping.best[0])
    assert all(map(torch.equal, state(run), state(alone)))
    assert score(run) == stopping.best[1]
    if kind is guides.Point:
        assert len(run.losses) < 240
        assert [step for step, _ in stopping.scores].index(stopping.best[0]) == len(
            stopping.scores
        ) - 1 - stopping.patience
    patient = pyrodrop.EarlyStopping(HELD, patience=1000)
    assert score(fit(patient, kind)) == best[1]  # where it makes all steps, it goes back too
    assert patient.scores == seen


def test_an_epoch_that_is_not_whole_is_scored() -> None:
    stopping = pyrodrop.EarlyStopping(HELD)
    run = fit(stopping, steps=6)
    assert [done for done, _ in stopping.scores] == [4, 6]
    assert score(run) == max(value for _, value in stopping.scores)


def test_a_second_training_begins_anew() -> None:
    stopping = pyrodrop.EarlyStopping(HELD)
    first = fit(stopping, steps=8)
    scores = stopping.scores
    assert torch.equal(fit(stopping, steps=8).history, first.history)
    assert stopping.scores == scores


def test_a_score_that_is_no_number_is_the_worst() -> None:
    stopping = pyrodrop.EarlyStopping(HELD, patience=3)
    given = iter([float("nan"), -3.0, float("-inf"), -2.0, -5.0])

    class Predicts:
        losses = torch.zeros(0)

        def predict(self, x: Tensor, *_: Any, **__: Any) -> Any:
            return self

        def log_density(self, y: Tensor) -> Tensor:
            self.losses = torch.zeros(len(self.losses) + 1)
            return torch.tensor([next(given)])

        model = guide = torch.nn.Linear(1, 1)

    run: Any = Predicts()
    assert [stopping(run, n) for n in range(5)] == [False] * 5
    assert stopping.best == (3, -2.0)


def program(x: Tensor, y: Tensor | None = None) -> Any:
    import pyro
    import pyro.distributions as dist

    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=y)


def test_what_cannot_be_gone_back_to_is_refused(tmp_path: Path) -> None:
    from pyro.infer.autoguide import AutoNormal

    held = pyrodrop.EarlyStopping(HELD)
    with pytest.raises(ValueError, match="checkpoint must be None with an EarlyStopping"):
        fit(held, checkpoint=tmp_path / "state.safetensors")
    with pytest.raises(TypeError, match="an EarlyStopping is for a model of pyrodrop.models"):
        pyrodrop.fit(program, AutoNormal(program), (X, Y[:, 0]), steps=3, after_epoch=held)
    with pytest.raises(TypeError, match="no argument 'after_epoch'"):
        pyrodrop.fit_replicates(*pair(), TRAIN, count=2, steps=3, after_epoch=held)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"x must have shape \[N, 1\]"):
        fit(pyrodrop.EarlyStopping((X.expand(-1, 2), Y)))
    assert not (tmp_path / "state.safetensors").exists()
