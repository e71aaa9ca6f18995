"""First weights are those of their seed. Replicates start from the weights that the model has; new starts are asked for and
are the modules' own initialisation."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.guides import Guide
from pyrodrop.modules import LocalModule

WORDS = torch.randint(0, 7, (30, 4), generator=torch.Generator().manual_seed(1))
Y = WORDS.float().mean(1, keepdim=True) - 3


class Orthogonal(nn.Linear):
    """A layer that starts orthogonal."""

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)
        nn.init.zeros_(self.bias)


class Reader(nn.Module):
    """The mean of words' vectors, of which word 0 is padding, through an orthogonal layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.turn, self.head = nn.Embedding(7, 6, padding_idx=0), Orthogonal(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.turn(self.words(x).mean(1)).tanh())


class Bare(nn.Module):
    """A weight whose module has no initialisation that could be called again."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.slope = nn.Embedding(7, 6), nn.Parameter(torch.ones(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x).mean(1) @ self.slope


@pytest.fixture
def model() -> models.NetworkModel:
    torch.manual_seed(4)
    return models.from_module(Reader(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))


def fitted(model: Any, guide: Any, **settings: Any) -> Any:
    train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
    return train(model, guide, (WORDS, Y), **{"steps": 5, "lr": 1e-2, "progress": False} | settings)


def restart(model: Any, guide: Any, seed: int) -> tuple[Any, Any]:
    """Copies with new initial weights."""
    model, guide = copy.deepcopy((model, guide))
    torch.manual_seed(seed)
    model.reset_parameters()
    guide.restart(model)
    return model, guide


def plain_restart(seed: int) -> dict[str, Tensor]:
    """What a user would do to the network itself."""
    net = Reader()
    torch.manual_seed(seed)
    for module in (net.words, net.turn, net.head):
        module.reset_parameters()
    return dict(net.state_dict())


PARTS: dict[str, Any] = {"prior": priors.Gaussian(), "likelihood": likelihoods.Categorical()}
NET = nn.Linear(3, 2)
RANDOM: dict[str, Callable[..., nn.Module]] = {
    "MLP": lambda _, **seed: models.MLP([3, 8, 2], **PARTS, **seed),
    "WideAndDeep": lambda _, **seed: models.WideAndDeep([3, 8, 2], **PARTS, **seed),
    "LeNet300100": lambda _, **seed: models.LeNet300100(**PARTS, **seed),
    "LeNet5": lambda _, **seed: models.LeNet5(**PARTS, **seed),
    "LowRank": lambda model, **seed: guides.LowRank(model, **seed),
    "Ensemble": lambda model, **seed: guides.Ensemble(model, guides.Point, 2, **seed),
}


def start(name: str, model: models.NetworkModel, state: int, **seed: int | None) -> tuple[Tensor, Tensor]:
    """All first values of a model or guide that is made at this state of torch's generator, and what that draws next."""
    torch.manual_seed(state)
    made = RANDOM[name](model, **seed)
    return torch.cat([value.flatten() for value in made.state_dict().values()]), torch.rand(3)


@pytest.mark.parametrize("name", RANDOM)
def test_first_weights_are_those_of_the_seed_and_torchs_generator_does_not_change(
    name: str, model: models.NetworkModel
) -> None:
    (first, after), (again, _) = start(name, model, 1), start(name, model, 2, seed=0)
    assert torch.equal(first, again)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(3))
    assert not torch.equal(first, start(name, model, 1, seed=5)[0])


@pytest.mark.parametrize("name", RANDOM)
def test_without_a_seed_first_weights_are_those_of_torchs_generator(name: str, model: models.NetworkModel) -> None:
    torch.manual_seed(3)
    unchanged = torch.rand(3)
    first, after = start(name, model, 3, seed=None)
    assert torch.equal(first, start(name, model, 1, seed=3)[0])
    assert not torch.equal(after, unchanged)


def test_every_network_takes_a_seed() -> None:
    takes = {name for name in models.__all__ if "seed" in inspect.signature(getattr(models, name)).parameters}
    as_they_are = {"Neighbours", "NetworkModel", "TrainedNetwork", "from_module"}
    assert set(RANDOM) - {"LowRank", "Ensemble"} == takes == set(models.__all__) - as_they_are


@pytest.mark.parametrize("name", ["MLP", "LeNet5"])
def test_a_new_start_has_the_weights_of_a_model_of_its_seed(name: str, model: models.NetworkModel) -> None:
    first, seven = (RANDOM[name](model, seed=seed) for seed in (0, 7))
    again, _ = restart(first, guides.Point(first), 7)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in seven.state_dict().items())


def test_new_starts_are_the_modules_own_initialisation(model: models.NetworkModel) -> None:
    """Of a trained model; what the network's builder arranged is arranged again: padding, orthogonality, zeros."""
    trained = fitted(model, guides.Point(model), steps=20)
    before = copy.deepcopy(trained.model.state_dict())
    again, guide = restart(trained.model, trained.guide, seed=6)
    wanted = plain_restart(6)
    for name, value in {**guide.mean(), **{n: again.free[n] for n in again.free}}.items():
        assert torch.equal(value, wanted[name]), name
    turn = guide.mean()["turn.weight"]
    torch.testing.assert_close(turn @ turn.T, torch.eye(6), atol=1e-5, rtol=0)
    assert torch.equal(guide.mean()["words.weight"][0], torch.zeros(6))
    assert all(torch.equal(value, trained.model.state_dict()[name]) for name, value in before.items())


def test_random_parts_of_a_guide_are_drawn_anew(model: models.NetworkModel) -> None:
    guide = guides.LowRank(model, rank=2, init_scale=0.3)
    factors = torch.cat([restart(model, guide, seed)[1].factor["turn.weight"].detach() for seed in range(50)])
    assert not torch.equal(factors[:36], factors[36:72])
    assert float(factors.std()) == pytest.approx(0.3 / 2**0.5, rel=4.5 / (2 * factors.numel()) ** 0.5)


def test_hyperparameters_start_anew_too() -> None:
    torch.manual_seed(4)
    model = models.from_module(
        Reader(), prior=priors.ARD("weight", dist.HalfCauchy(1.0)), likelihood=likelihoods.Gaussian(4.0)
    )
    guide = guides.MeanField(model)
    trained = fitted(model, guide, steps=30)
    started, again = restart(trained.model, trained.guide, 0)
    fresh = guides.MeanField(started)
    for site in guide.hyper_loc:
        assert torch.equal(again.hyper_loc[site], fresh.hyper_loc[site])
        assert not torch.equal(trained.guide.hyper_loc[site], fresh.hyper_loc[site])


def test_members_of_an_ensemble_start_as_their_modules_say(model: models.NetworkModel) -> None:
    ensemble = guides.Ensemble(model, lambda m: guides.MeanField(m), 3)
    _, again = restart(model, ensemble, 1)
    starts = [member.mean() for e in (ensemble, again) for member in e.members]
    for start in starts:
        torch.testing.assert_close(start["turn.weight"] @ start["turn.weight"].T, torch.eye(6), atol=1e-5, rtol=0)
        assert torch.equal(start["words.weight"][0], torch.zeros(6))
    heads = torch.stack([start["head.weight"] for start in starts]).flatten(1)
    assert len(heads.unique(dim=0)) == len(starts) == 6


class Own(LocalModule):
    """A model that knows its weights and cannot begin anew."""

    def weight_sites(self) -> dict[str, Tensor]:
        return {"w": torch.zeros(3, 2)}

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]:
        return {}


class OwnGuide(Guide):
    """A guide that keeps its means under a name of its own."""

    def posterior(self, name: str) -> Any:
        raise NotImplementedError


def test_what_cannot_start_anew_is_named(model: models.NetworkModel) -> None:
    bare = models.from_module(Bare(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    for call in (
        lambda: restart(bare, guides.Point(bare), 0),
        lambda: fitted(bare, guides.Point(bare), count=2, starts="new"),
        lambda: guides.Ensemble(bare, guides.Point, 2),
    ):
        with pytest.raises(ValueError, match=r"reset_parameters\(\).*Bare"):
            call()
    with pytest.raises(TypeError, match=r"new initial weights need a model .*Own has none"):
        guides.Ensemble(Own(), guides.Point, 2)
    with pytest.raises(TypeError, match=r"one ensemble with more members\); got Ensemble"):
        guides.Ensemble(model, lambda m: guides.Ensemble(m, guides.Point), 2)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="OwnGuide has no means"):
        restart(model, OwnGuide(model), 0)
    with pytest.raises(ValueError, match="starts must be 'model' or 'new'; got 'old'"):
        fitted(model, guides.Point(model), count=2, starts="old")
