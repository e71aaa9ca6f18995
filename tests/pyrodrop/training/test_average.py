"""`average`: the mean of the parameters over the last share of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

X = torch.linspace(-1, 1, 12)[:, None]
Y = torch.sin(3 * X)
MLP = models.MLP([1, 5, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))


def fit(steps: int, **options: Any) -> Any:
    return pyrodrop.fit(MLP, guides.MeanField(MLP), (X, Y), steps=steps, lr=0.05, progress=False, **options)


def parameters(run: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in run.guide.named_parameters()}


@pytest.mark.parametrize("engine", ["pyro", "traced"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_it_is_the_mean_of_what_shorter_fits_end_with(engine: Any, share: float) -> None:
    """Of 12 steps all of the last six, or all."""
    run = fit(12, average=share, engine=engine)
    ends = [parameters(fit(n, engine=engine)) for n in range(13 - int(12 * share), 13)]
    for name, value in parameters(run).items():
        torch.testing.assert_close(value, torch.stack([end[name] for end in ends]).mean(0), msg=name)
    assert torch.equal(run.losses, fit(12, engine=engine).losses)
    assert run.settings["average"] == share


def test_of_many_steps_some_hundred_count() -> None:
    """Every third of the last 300 of 400: the mean of steps 102, 105 ... 399, seen by a function after each step."""
    seen: list[dict[str, Tensor]] = []

    def look(run: Any, epoch: float) -> None:
        seen.append(parameters(run))

    run = fit(400, average=0.75, engine="traced", after_epoch=look)
    chosen = seen[101::3]
    assert len(chosen) == 100
    for name, value in parameters(run).items():
        torch.testing.assert_close(value, torch.stack([each[name] for each in chosen]).mean(0), msg=name)


def test_replicates_are_averaged_one_by_one() -> None:
    def last(**options: Any) -> list[dict[str, Tensor]]:
        made = pyrodrop.fit_replicates(
            MLP, guides.MeanField(MLP), (X, Y), count=2, lr=0.05, starts="new", progress=False, **options
        )
        return [parameters(run) for run in made]

    ends = [last(steps=n) for n in (7, 8)]
    for r, averaged in enumerate(last(steps=8, average=0.25)):
        for name, value in averaged.items():
            torch.testing.assert_close(value, (ends[0][r][name] + ends[1][r][name]) / 2, msg=name)


def test_averaging_a_constant_rate_is_nearer_to_the_optimum() -> None:
    """Of the mean of a Gaussian, with noise of minibatches: the error is below half of that of the last step."""
    torch.manual_seed(0)
    x, y = torch.ones(200, 1), torch.randn(200, 1)
    net = models.from_module(nn.Linear(1, 1, bias=False), priors.Gaussian(), likelihoods.Gaussian(1.0))
    best = float(y.sum() / 201)

    def errors(share: float) -> float:
        runs = [
            pyrodrop.fit(
                net, guides.Point(net), (x, y), steps=600, batch_size=10, lr=0.05, seed=s, average=share, progress=False
            )
            for s in range(4)
        ]
        return sum((float(run.guide.mean()["weight"]) - best) ** 2 for run in runs)

    assert errors(0.5) < errors(0.0) / 4


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


NORMALISED = models.from_module(Normalised(), priors.Gaussian(), likelihoods.Gaussian(1.0))
REFUSED: dict[str, tuple[Any, str]] = {
    "a share above 1": (lambda tmp: fit(5, average=1.5), "average .* at most 1; got 1.5"),
    "a checkpoint": (lambda tmp: fit(5, average=0.5, checkpoint=tmp / "a"), "average must be 0 with a checkpoint"),
    "a Training": (
        lambda tmp: pyrodrop.Training(MLP, guides.MeanField(MLP), (X, Y), average=0.5),
        "average must be 0 for a Training",
    ),
    "BatchNorm": (
        lambda tmp: pyrodrop.fit(NORMALISED, guides.MeanField(NORMALISED), (X, Y), steps=3, average=0.5),
        "average must be 0 where steps update buffers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Any) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call(tmp_path)
