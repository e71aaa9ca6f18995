"""Minibatches in parts: without noise the steps of the whole minibatch, with noise unbiased gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.training.in_parts import Joint
from pyrodrop.training.minibatches import Minibatches
from pyrodrop.training.ranks import Ranks

ROWS, SIZE = 47, 20  # minibatches of 20, 20 and 7 rows
OPTIONS: dict[str, Any] = {"steps": 4, "batch_size": SIZE, "lr": 1e-3, "optimizer": torch.optim.SGD, "device": "cpu"}
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))


def mlp(network: Callable[[], nn.Module] = small) -> models.NetworkModel:
    torch.manual_seed(1)
    return models.from_module(network(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))


def bernoulli(model: Any) -> guides.BernoulliDropout:
    return guides.BernoulliDropout(model, 0.3)


def fitted(make: Any, **options: Any) -> pyrodrop.Fit:
    model = mlp(options.pop("network", small))
    return pyrodrop.fit(model, make(model), (X, Y), **{**OPTIONS, **options})


def parameters(fit: pyrodrop.Fit) -> Tensor:
    """All that was trained, in one vector."""
    parts = [*fit.guide.parameters(), *fit.model.parameters()]
    return torch.cat([parameter.detach().flatten().double() for parameter in parts])


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [SIZE, None])
@pytest.mark.parametrize("engine", ["pyro", "traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_the_steps_in_parts_are_those_of_the_whole_minibatch(engine: Any, size: int | None) -> None:
    """Without noise, by SGD, which shows a wrong factor; 8 parts are more than the last minibatch has rows. The
    factors of the terms are in float64 too: a likelihood_power of 0.7 is no float32 number."""
    fits = []
    for accumulate in (1, 8):
        model = mlp(lambda: small().double())
        settings = {**OPTIONS, "engine": engine, "batch_size": size, "kl_weight": 0.3, "likelihood_power": 0.7}
        data = (X.double(), Y.double())
        fits.append(pyrodrop.fit(model, guides.Point(model), data, accumulate=accumulate, **settings))
    assert fits[1].settings["engine"] == engine
    torch.testing.assert_close(fits[0].losses, fits[1].losses, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(parameters(fits[0]), parameters(fits[1]), rtol=1e-12, atol=1e-14)


class Keeping(torch.optim.SGD):
    """SGD that keeps the gradients."""

    kept: ClassVar[list[Tensor]] = []

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.kept.append(torch.cat([p.grad.flatten() for g in self.param_groups for p in g["params"]]))  # type: ignore[union-attr]
        return super().step(closure)


@pytest.mark.few(1)
@pytest.mark.parametrize("estimator", ["shared", "local"])
def test_gradients_of_noisy_parts_have_the_mean_of_the_whole_gradient(estimator: Any) -> None:
    """Of linear regression, in closed form: precision X^T (X m - y) + m / prior^2. The parts draw noise of their own."""
    torch.manual_seed(2)
    net, x, y = nn.Linear(3, 1, bias=False).double(), X.double(), Y.double()
    model = models.from_module(net, prior=priors.Gaussian(0.8), likelihood=likelihoods.Gaussian(2.0))
    guide = guides.MeanField(model, init_scale=0.4)
    names = [name for name, _ in guide.named_parameters()]
    Keeping.kept.clear()
    fit = pyrodrop.fit(
        model, guide, (x, y), steps=400, lr=1e-15, optimizer=Keeping, engine="traced", estimator=estimator, accumulate=3
    )
    loc = next(iter(fit.guide.mean().values())).flatten()
    place = slice(3 * next(i for i, name in enumerate(names) if "loc" in name), None)
    drawn = torch.stack(Keeping.kept)[:, place][:, :3]
    error = drawn.std(0) / len(drawn) ** 0.5
    exact = 2.0 * x.T @ (x @ loc[:, None] - y)[:, 0] + loc / 0.8**2
    assert bool(((drawn.mean(0) - exact).abs() < 4.5 * error).all())


def test_the_network_never_sees_more_rows_than_a_part_has() -> None:
    seen: list[int] = []

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return self.linear(x)  # type: ignore[no-any-return]

    model = mlp(Counts)
    guide = guides.MeanField(model)
    training = pyrodrop.Training(model, guide, (X, Y), batch_size=SIZE, accumulate=4, engine="pyro", estimator="local")
    seen.clear()
    training.advance(4)
    assert max(seen) == SIZE // 4  # 20, 20, 7 and 20 rows in four parts
    assert sum(seen) >= 67


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_every_part_updates_the_statistics_of_batch_norm(engine: Any) -> None:
    """Against the equations: 0.9 of the value before and 0.1 of that of a part, one part after the other."""
    model = mlp(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)))
    settings = {**OPTIONS, "steps": 3, "batch_size": None, "engine": engine}
    cut = pyrodrop.fit(model, guides.Point(model), (X, Y), **settings, accumulate=3)
    mean, variance = torch.zeros(3), torch.ones(3)
    for part in 3 * (X[:16], X[16:32], X[32:]):
        mean, variance = 0.9 * mean + 0.1 * part.mean(0), 0.9 * variance + 0.1 * part.var(0)
    buffers = dict(cut.model.network.named_buffers())
    torch.testing.assert_close(buffers["0.running_mean"], mean)
    torch.testing.assert_close(buffers["0.running_var"], variance)
    assert int(buffers["0.num_batches_tracked"]) == 9


class Counting(nn.Module):
    """Counts the rows that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return self.layer(x)


def test_counters_of_rows_count_all_parts() -> None:
    counted = fitted(guides.Point, network=Counting, accumulate=4, engine="pyro")
    assert int(dict(counted.model.network.named_buffers())["seen"]) == 20 + 20 + 7 + 20


@pytest.mark.parametrize("engine", ["pyro", pytest.param("traced", marks=pytest.mark.slow)])
def test_an_interrupted_run_in_parts_goes_on_to_the_same_bits(engine: Any, tmp_path: Path) -> None:
    options = {"estimator": "local", "engine": engine, "accumulate": 3, "optimizer": torch.optim.Adam}
    whole = fitted(bernoulli, **options)
    path = tmp_path / "a.safetensors"
    fitted(bernoulli, **options, steps=2, checkpoint=path)
    rest = fitted(bernoulli, **options, checkpoint=path)
    assert torch.equal(whole.losses, rest.losses)
    assert torch.equal(parameters(whole), parameters(rest))


def test_a_failure_in_parts_says_what_broke() -> None:
    x = X.clone()
    x[40] = float("inf")
    model = mlp()
    with pytest.raises((FloatingPointError, ValueError), match=r"finite"):
        pyrodrop.fit(model, guides.MeanField(model), (x, Y), **OPTIONS, accumulate=3)
    model = mlp()
    with pytest.raises(FloatingPointError, match=r"stopped being finite at step \d+"):
        pyrodrop.fit(model, guides.MeanField(model), (X, Y), **{**OPTIONS, "lr": 1e6, "steps": 50}, accumulate=3)


def latent_rows(x: Tensor, y: Tensor, num_data: int | None = None) -> None:
    """A model with a latent number for every row."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", num_data or len(x), subsample=x):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w * x[:, 0] + z, 1.0), obs=y[:, 0])


def latent_rows_guide(x: Tensor, y: Tensor, num_data: int | None = None) -> None:
    pyro.sample("w", dist.Normal(pyro.param("loc of w", torch.zeros(())), 0.1))
    slope = pyro.param("slope of z", torch.full((3,), 0.1))
    with pyro.plate("rows", num_data or len(x), subsample=x):
        pyro.sample("z", dist.Normal(x @ slope, 0.5))


def test_latent_numbers_of_rows_count_alike() -> None:
    """The KL divergence of a row's own latent number is scaled by its part, and parts have 4 and 3 rows."""
    losses = []
    for accumulate in (1, 2):
        pyro.clear_param_store()
        options = {
            **OPTIONS,
            "batch_size": None,
            "steps": 600,
            "lr": 1e-15,
            "accumulate": accumulate,
        }
        fit = pyrodrop.fit(latent_rows, latent_rows_guide, (X[:7], Y[:7]), engine="traced", **options)
        losses.append(fit.losses.double())
    error = sum(float(own.var()) / len(own) for own in losses) ** 0.5
    assert abs(float(losses[0].mean() - losses[1].mean())) < 4.5 * error
    assert error < 0.1 * abs(float(losses[0].mean()))


def test_refused_are_more_parts_than_rows_and_models_without_num_data() -> None:
    with pytest.raises(ValueError, match="accumulate must be at most .* 20; got 21"):
        fitted(guides.MeanField, accumulate=21)
    model = mlp()
    guide = guides.MeanField(model)

    def without(x: Tensor, y: Tensor) -> Any:
        return model(x, y)

    with pytest.raises(ValueError, match="in 2 parts of a minibatch needs a model that takes the size of the data set"):
        pyrodrop.fit(without, guide, (X, Y), steps=2, accumulate=2)


@pytest.mark.parametrize("size", [None, 47, 20, 7])
@pytest.mark.parametrize(("ranks", "parts"), [(1, 3), (2, 1), (2, 3), (5, 1), (5, 3)])
def test_every_row_is_dealt_once_per_epoch_and_counts_alike(ranks: int, parts: int, size: int | None) -> None:
    """The parts of all ranks together are the rows of the minibatches of one process, in its order."""

    class OfFirst(Ranks):
        def of_first(self, value: Any) -> Any:
            return alone.order

    data = pyrodrop.data.Dataset(torch.arange(ROWS, dtype=torch.float32)[:, None], Y)
    place = torch.device("cpu")
    alone = Minibatches(data, size, place)
    shards = [
        Minibatches(data, size, place, accumulate=parts, ranks=OfFirst(rank, ranks, place)) for rank in range(ranks)
    ]
    for step in range(2 * alone.per_epoch):
        torch.manual_seed(step)
        whole = alone.next().x
        torch.manual_seed(step)  # one rank draws its order itself
        joints: list[Joint] = [own.next() for own in shards]
        counted = [part for joint in joints for part in joint.parts if part.weight]
        rows = torch.cat([part.batch.x for part in counted])  # type: ignore[misc]
        assert torch.equal(rows, whole)
        for part in counted:  # in the mean over ranks of the weighted sum over parts every row counts alike
            assert part.weight / ranks / len(part.batch.y) == pytest.approx(1 / len(whole))
            assert part.batch.kwargs == {"num_data": ROWS}
