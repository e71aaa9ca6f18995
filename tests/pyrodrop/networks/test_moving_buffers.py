"""Networks with running statistics train as in plain torch: in every engine, for every replicate, after interruptions."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.modules import LocalModule

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)) * 2 + 1
Y = X[:, :1].sin() + 0.1 * X[:, 1:2]
SIZE, RATE, PRECISION, SCALE = 8, 1e-2, 4.0, 0.7  # minibatches of 8, 8 and 4 rows


def network() -> nn.Module:
    torch.manual_seed(3)
    frozen = nn.BatchNorm1d(6).eval()  # stays as it is
    return nn.Sequential(
        nn.Linear(3, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6, bias=False),
        nn.BatchNorm1d(6, momentum=0.3), nn.ReLU(), frozen, nn.Linear(6, 1),
    )  # fmt: skip


def model_of(net: nn.Module) -> models.NetworkModel:
    return models.from_module(net, prior=priors.Gaussian(SCALE), likelihood=likelihoods.Gaussian(PRECISION))


def plain_training(net: nn.Module, steps: int, size: int = SIZE, seed: int = 0) -> dict[str, Tensor]:
    """The state of the network itself, trained by a loop as in any tutorial, with the same minibatches."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        rows = torch.arange(0)
        for _ in range(steps):
            if not len(rows):
                rows = torch.randperm(len(X)) if size < len(X) else torch.arange(len(X))
            now, rows = rows[:size], rows[size:]
            nll = 0.5 * PRECISION * (net(X[now]) - Y[now]).square().sum() * len(X) / len(now)
            decay = sum(w.square().sum() for w in net.parameters() if w.dim() > 1) / (2 * SCALE**2)
            optimizer.zero_grad()
            (nll + decay).backward()
            optimizer.step()
    return net.state_dict()


def trained(engine: str, model: Any, guide: Any, **settings: Any) -> pyrodrop.Fit:
    settings = {"steps": 10, "batch_size": SIZE, "lr": RATE, "progress": False} | settings
    train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
    return train(model, guide, (X, Y), engine=engine, **settings)


def state_of(fit: pyrodrop.Fit) -> dict[str, Tensor]:
    """Of a point, the trained network's own state."""
    model: Any = fit.model
    own = {n: b.clone() for n, b in model.network.named_buffers()}
    return own | dict(fit.guide.mean()) | {n: model.free[n].detach() for n in model.free}  # type: ignore[attr-defined]


def whole_state(fit: pyrodrop.Fit) -> dict[str, Tensor]:
    return {f"{p}.{n}": v for p, part in (("m", fit.model), ("g", fit.guide)) for n, v in part.state_dict().items()}  # type: ignore[attr-defined]


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 2e-5) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        exact = tolerance == 0 or not value.is_floating_point()
        torch.testing.assert_close(
            value,
            other[name],
            rtol=0 if exact else 1e-4,
            atol=0 if exact else tolerance,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.mark.parametrize("engine", ["pyro", "traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_a_point_trains_as_the_plain_network_does(engine: str) -> None:
    """Weights, running statistics and counters; eleven batches in all are counted, none for looking at the model first."""
    net = network()
    model = model_of(net)
    size = 20 if engine == "compiled" else SIZE  # one shape of minibatch is one compilation
    fit = trained(engine, model, guides.Point(model), steps=11, batch_size=size)
    assert fit.settings["engine"] == engine
    wanted = plain_training(net, 11, size)
    assert int(wanted["1.num_batches_tracked"]) == 11
    assert int(wanted["6.num_batches_tracked"]) == 0
    assert_same(state_of(fit), wanted)
    assert not any(module.training for module in fit.model.modules())  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_a_checkpoint_has_what_batches_changed(engine: str, tmp_path: Path) -> None:
    model = model_of(network())
    guide = guides.BernoulliDropout(model, 0.2)
    whole = trained(engine, model, guide)
    for steps in (5, 10):
        resumed = trained(engine, model, guide, steps=steps, checkpoint=tmp_path / "state")
    assert_same(whole_state(resumed), whole_state(whole), 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_a_look_after_an_epoch_changes_nothing_and_predicts_in_evaluation_mode(engine: str) -> None:
    """Predictions of one point do not depend on which others are predicted with it."""
    model = model_of(network())
    guide = guides.BernoulliDropout(model, 0.2)
    seen = []

    def look(fit: pyrodrop.Fit, epochs: int) -> None:
        alone, among = fit.predict(X[:1], 3).f[:, 0], fit.predict(X, 3).f[:, 0]
        torch.testing.assert_close(alone, among)
        seen.append(epochs)

    looked = trained(engine, model, guide, after_epoch=look)
    assert seen == [1, 2, 3]
    assert_same(whole_state(looked), whole_state(trained(engine, model, guide)), 0)


@pytest.mark.parametrize("engine", ["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_a_failed_replicate_keeps_its_statistics_of_before(engine: str) -> None:
    """Of which all rows are one minibatch; the second replicate's targets overflow at its first step."""
    model = model_of(network())
    guide = guides.Point(model)
    many = pyrodrop.fit_replicates(
        model, guide, [(X, Y), (X, Y * 1e30)], count=2, steps=3, lr=RATE, engine=engine, progress=False
    )  # type: ignore[call-overload]
    assert many.failed == {1: 0}
    assert_same(state_of(many[1]), {**network().state_dict()}, 0)
    assert_same(state_of(many[0]), plain_training(network(), 3, size=len(X)))


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(6, affine=False), nn.BatchNorm1d(6, track_running_stats=False), nn.BatchNorm1d(6, momentum=None)],
    ids=["no scales", "no statistics", "cumulative average"],
)
def test_every_batch_norm_is_right_or_named(layer: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    """A cumulative average depends on the counter's value, which a trace cannot know: Pyro trains it, and says so."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6, bias=False), layer, nn.ReLU(), nn.Linear(6, 1))
    model = model_of(net)
    with caplog.at_level(logging.INFO, "pyrodrop"):
        fit = trained("traced", model, guides.Point(model))
    cumulative = layer.momentum is None  # type: ignore[comparison-overlap]
    assert fit.settings["engine"] == ("pyro" if cumulative else "traced")
    assert cumulative == ("cannot be traced" in caplog.text)
    assert_same(state_of(fit), plain_training(net, 10))
    if cumulative:
        with pytest.raises(ValueError, match="replicates are trained as one traced step.*Fit one by one"):
            trained("auto", model, guides.Point(model), count=2)


def test_a_minibatch_of_one_row_is_refused() -> None:
    model = model_of(network())
    for size, extra in ((19, {}), (1, {}), (19, {"count": 2})):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            trained("auto", model, guides.Point(model), batch_size=size, **extra)


class Own(LocalModule):
    """A Pyro model of one's own: a linear map whose slope `what` changes beside its work."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what, self.calls, self.seen = what, 0, None
        self.net = nn.BatchNorm1d(3)

    def forward(self, x: Tensor, y: Tensor | None = None, num_data: int | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        f = (self.net(x) @ w) * self.what(self)
        with pyro.plate("data", num_data or len(x), subsample=torch.arange(len(x))):
            pyro.sample("y", dist.Normal(f, 0.5), obs=None if y is None else y.squeeze(-1))


class Slope(LocalModule):
    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(3))

    def forward(self, *args: Any, **kwargs: Any) -> None:
        pyro.sample("w", dist.Delta(self.loc, event_dim=1))


class Called(nn.Module):
    """Calls a module without arguments."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, _: Any) -> Any:
        return self.inner()


class Peeks(nn.Module):
    """Looks at a number, which no trace can, after it has changed a buffer and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.last: Any = None

    def forward(self) -> float:
        self.count.add_(1)
        self.last = self.count
        return 1.0 if float(self.count) < 100 else 2.0


def test_a_failed_trace_leaves_the_model_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    model = Own(None)
    model.what = Called(Peeks())
    with caplog.at_level(logging.INFO, "pyrodrop"):
        fit = trained("traced", model, Slope(), steps=7)
    assert fit.settings["engine"] == "pyro"
    peeks = fit.model.what.inner  # type: ignore[attr-defined]
    assert float(peeks.count) == 7
    assert type(peeks.last) is Tensor
    assert float(peeks.last) == 7


def test_a_tensor_that_is_no_buffer_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A counter that is a plain tensor, held by no module: the trace would move it unseen."""
    count = torch.zeros(())
    with caplog.at_level(logging.INFO, "pyrodrop"):
        fit = trained("traced", Own(lambda model: 1 + 0 * count.add_(1)), Slope(), steps=7)
    assert fit.settings["engine"] == "pyro"
    assert "a call changes count" in caplog.text


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_buffers_that_are_replaced_move_too(engine: str) -> None:
    """A moving average that is assigned anew at every call, in place of being written to."""

    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return x - self.mean

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6, bias=False), Average(), nn.ReLU(), nn.Linear(6, 1))
    model = model_of(net)
    fit = trained(engine, model, guides.Point(model))
    assert fit.settings["engine"] == engine
    assert_same(state_of(fit), plain_training(net, 10))
