"""The engines of `fit`: a step traced once gives Pyro's numbers, with Pyro's noise, or says why it cannot."""

from __future__ import annotations

import functools
import logging
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.optim.clipped_adam import ClippedAdam
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.compiled import steps as steps_of
from pyrodrop.compiled.inductor import rules_of, turn_narrow_products
from pyrodrop.compiled.program import Noise, hoist
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.compiled.steps import worth_compiling
from pyrodrop.distributions.coins import coins
from pyrodrop.modules import LocalModule
from pyrodrop.steps import Batch, Buffers
from pyrodrop.training.problem import Problem
from pyrodrop.training.settings import Settings

X = torch.randn(100, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin() + 0.1 * X[:, 1:2]


def parts(rate: float = 0.2) -> tuple[models.NetworkModel, guides.Guide]:
    likelihood = likelihoods.Gaussian(4.0, learned=True)
    model = models.MLP([3, 8, 1], prior=priors.Gaussian(), likelihood=likelihood)
    return model, guides.BernoulliDropout(model, rate, mask_input=True)


def trained(engine: str, model: Any, guide: Any, **settings: Any) -> pyrodrop.Fit:
    settings = {"steps": 40, "batch_size": 32, "lr": 1e-2, "estimator": "local", "progress": False} | settings
    train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
    return train(model, guide, (X, Y), engine=engine, **settings)


def values(fit: pyrodrop.Fit) -> Tensor:
    return torch.cat([p.detach().flatten() for p in (*fit.guide.parameters(), *fit.model.parameters())])  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ["traced", "compiled"])
def test_a_member_that_is_drawn_at_random_is_not_traced(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    """After the first step the optimiser has a state for the parameters of one member alone."""
    model, _ = parts()
    guide = guides.Ensemble(model, guides.Point, 2)
    with caplog.at_level(logging.WARNING, "pyrodrop"):
        fit = trained(engine, model, guide, steps=3, estimator="shared")
    assert fit.settings["engine"] == "pyro"
    assert f"training with engine 'pyro' instead of '{engine}': it cannot be traced" in caplog.text


@pytest.mark.more
@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(torch.optim.Adam, fused=True),
        pytest.param(functools.partial(torch.optim.AdamW, weight_decay=0), marks=pytest.mark.slow),
    ],
    ids=["Adam", "AdamW"],
)
def test_a_compiled_step_is_pyros_with_the_same_noise(optimizer: Any) -> None:
    """A part of an epoch is a smaller minibatch (100 = 3 x 32 + 4), rates and divergence are scheduled."""
    model, guide = parts()
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "lr": (lambda name: 1e-3 if "bias" in name else 5e-4),
        "lr_schedule": lambda step: 1 / (1 + step),
        "kl_weight": pyrodrop.schedules.linear(5),
    }
    by_pyro, compiled = (trained(engine, model, guide, **settings) for engine in ("pyro", "compiled"))
    assert compiled.settings["engine"] == "compiled"
    torch.testing.assert_close(values(compiled), values(by_pyro), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(compiled.history, by_pyro.history, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [32, None])
def test_a_compiled_step_takes_data_that_are_not_contiguous(batch_size: int | None) -> None:
    model, guide = parts()
    settings: dict[str, Any] = {"steps": 8, "lr": 1e-3, "batch_size": batch_size}
    table = torch.cat([X, Y, X], 1)
    by_pyro, of_columns, transposed = (
        pyrodrop.fit(model, guide, data, engine=engine, **settings)
        for data, engine in [
            ((X, Y), "pyro"),
            ((table[:, :3], table[:, 3:4]), "compiled"),
            ((X.T.contiguous().T, Y), "compiled"),
        ]
    )
    for fit in (of_columns, transposed):
        torch.testing.assert_close(values(fit), values(by_pyro), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.Adam, {"weight_decay": 0.1, "betas": (0.8, 0.99)}),
        (torch.optim.AdamW, {"weight_decay": 0.1, "eps": 1e-6}),
        (ClippedAdam, {"clip_norm": 0.5, "lrd": 0.9, "eps": 1e-3, "weight_decay": 0.1}),
    ],
)
@pytest.mark.usefixtures("float64")
def test_rules_are_torchs_optimisers(optimizer: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    w = torch.randn(5, requires_grad=True)
    theirs = optimizer([w], lr=0.1, **options)
    gradients = torch.randn(30, 5)
    w.grad = gradients[0]
    theirs.step()
    (rule,) = rules_of(theirs)
    ours, state = w.detach().clone(), [theirs.state[w][name].clone() for name in rule.state]
    for step, gradient in enumerate(gradients[1:], 2):
        theirs.param_groups[0]["lr"] = 0.1 / step
        w.grad = gradient
        theirs.step()
        ours, *state = rule.update(ours, gradient, *state, torch.tensor(rule.schedule(step, 0.1 / step)))
    torch.testing.assert_close(ours, w.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-10)])
def test_the_graphs_gradient_is_that_of_pyros_elbo(dtype: torch.dtype, tolerance: float) -> None:
    torch.set_default_dtype(dtype)
    model = models.MLP([3, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    problem = Problem.of(model, guides.MeanField(model), (X.to(dtype), Y.to(dtype)), Settings(device="cpu"))
    batch = Batch((X.to(dtype), Y.to(dtype)), {})
    own = Recorded(problem.loss([batch]))
    graph, leaves = own.program(batch), own.leaves
    torch.manual_seed(3)
    loss = TraceMeanField_ELBO().differentiable_loss(*problem.trained, X.to(dtype), Y.to(dtype))
    wanted = torch.autograd.grad(loss, leaves)
    torch.manual_seed(3)
    terms, *ours = graph.module(*leaves, batch.x, batch.y, torch.ones((), dtype=dtype), *graph.constants, *graph.draw())
    torch.testing.assert_close(terms.sum(), loss.detach(), rtol=tolerance, atol=0)
    for got, want in zip(ours, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * float(want.abs().max()))


def test_noise_is_fresh_every_step_and_comes_from_the_seed() -> None:
    model, guide = parts()
    one, again, other = (
        trained("traced", model, guide, steps=300, lr=1e-9, seed=s, batch_size=None) for s in (1, 1, 2)
    )
    assert len(one.losses.unique()) == 300
    assert torch.equal(one.history, again.history)
    assert not torch.equal(one.history, other.history)


class Strange(LocalModule):
    """A model that does `what` beside its work."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor, y: Tensor | None = None, num_data: int | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        f = (x @ w) * self.what(x)
        with pyro.plate("data", num_data or len(x), subsample=torch.arange(len(x))):
            pyro.sample("y", dist.Normal(f, 1.0), obs=None if y is None else y.squeeze(-1))


class Simple(LocalModule):
    """A Gaussian guide of `Strange`."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(3))

    def forward(self, *args: Any, **kwargs: Any) -> None:
        pyro.sample("w", dist.Normal(self.loc, 0.1).to_event(1))


class Writer:
    """Writes to a view of a tensor that is no buffer."""

    def __init__(self, view: Any) -> None:
        self.held, self.view = torch.zeros(4), view

    def __call__(self, x: Tensor) -> Tensor:
        return 1 + 0 * self.view(self.held).add_(1).sum()


class Counter:
    """Different at every call."""

    def __init__(self, change: float = 0.1) -> None:
        self.calls, self.change = 0, change

    def __call__(self, x: Tensor) -> float:
        self.calls += 1
        return 1.0 + self.change * self.calls


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (lambda x: float(x.mean()), "cannot be traced"),
        (lambda x: random.random(), "outside torch"),
        (lambda x: np.random.random(), "outside torch"),
        (Counter(), "a call changes calls"),
        (Writer(lambda held: held), "a call changes held"),
        (Writer(lambda held: held.view(2, 2)[0]), "a call changes held"),
        (Writer(lambda held: held.chunk(2)[0]), "a call changes held"),
        (Writer(lambda held: held.unbind()[1]), "a call changes held"),
    ],
    ids=["item", "random", "numpy", "counter"] + ["write", "write to a view", "write to a chunk", "write to an entry"],
)
def test_what_cannot_be_traced_is_named_and_trained_by_pyro(
    what: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pyrodrop"):
        fit = trained("traced", Strange(what), Simple(), estimator="shared", steps=3)
    assert fit.settings["engine"] == "pyro"
    (line,) = [record.getMessage() for record in caplog.records if record.name == "pyrodrop"]
    assert reason in line


@pytest.mark.parametrize(("dtype", "change"), [(torch.float32, 1e-2), (torch.float64, 1e-5)])
def test_a_trace_is_compared_to_the_digits_of_its_dtype(dtype: torch.dtype, change: float) -> None:
    torch.set_default_dtype(dtype)
    fit = pyrodrop.fit(
        Strange(Counter(change)), Simple(), (X.to(dtype), Y.to(dtype)), engine="traced", estimator="shared", steps=2
    )
    assert fit.settings["engine"] == "pyro"


def test_noise_is_the_same_in_another_order_of_memory() -> None:
    """Noise of the activations of images in channels-last, for weights that are not drawn."""
    x = torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1))
    model = models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(1e4))
    settings: dict[str, Any] = {"steps": 3, "estimator": "local", "progress": False}
    fits = [
        pyrodrop.fit(model, guides.MeanField(model), (rows, x[:, 0, 0, :1]), engine="traced", **settings)
        for rows in (x, x.to(memory_format=torch.channels_last))
    ]
    assert [fit.settings["engine"] for fit in fits] == ["traced", "traced"]
    torch.testing.assert_close(fits[0].losses, fits[1].losses)


@pytest.mark.parametrize(
    "what",
    [
        lambda x: torch.bernoulli(x.sigmoid()).mean() + torch.rand(()),  # after which no noise is an input
        lambda x: torch.empty(()).geometric_(0.5) * torch.randn(()),
        lambda x: torch.randn(()) + torch.randperm(len(x))[0] + torch.empty(()).uniform_(-1, 2).exponential_(3.0),
    ],
    ids=["data-dependent rate", "unknown noise", "known noise"],
)
def test_noise_that_is_no_input_is_drawn_by_the_graph(what: Any) -> None:
    """Steps have the bits of Pyro's, in one block or several."""
    one, other = (
        trained(engine, Strange(what), Simple(), estimator="shared", steps=120, batch_size=10)
        for engine in ("pyro", "traced")
    )
    assert (one.settings["engine"], other.settings["engine"]) == ("pyro", "traced")
    assert torch.equal(one.losses, other.losses)
    assert torch.equal(values(one), values(other))


def test_an_optimiser_without_a_compiled_form_is_used_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    model, guide = parts()
    fit = trained("compiled", model, guide, steps=3, optimizer=torch.optim.RMSprop)
    assert fit.settings["engine"] == "traced"
    assert "RMSprop has no compiled form" in caplog.text


def test_narrow_products_are_turned_and_stay_what_they_were() -> None:
    a, b = torch.randn(5, 50, 12, dtype=torch.float64), torch.randn(5, 12, 3, dtype=torch.float64)
    graph = make_fx(lambda a, b: (torch.bmm(a, b).view(5, 150), torch.bmm(a, a.mT)))(a, b)
    turn_narrow_products(graph)
    shapes = [node.args[0].op for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)]
    assert shapes == ["call_function", "placeholder"]
    narrow, wide = graph(a, b)
    torch.testing.assert_close(narrow, torch.einsum("rij,rjk->rik", a, b).reshape(5, 150))
    torch.testing.assert_close(wide, torch.einsum("rij,rkj->rik", a, a))


@pytest.mark.parametrize(
    ("operations", "entries", "options", "steps"),
    [
        (1000, 10**8, {}, 502),  # saves 1.054 ms and 5.75 ms per step; compiling takes 10.23 s, of which a third counts
        (1000, 10**8, {"replicates": 10}, 141),  # mapped over replicates: 15.56 ms and 57.5 ms; 30.69 s
        (100, 10**3, {}, 9612),  # 161.3 us, 4.65 s
    ],
)
def test_compiling_is_worth_its_seconds_from_some_number_of_steps(
    operations: int, entries: int, options: dict[str, Any], steps: int
) -> None:
    graph: Any = SimpleNamespace(operations=operations, entries=entries)
    assert worth_compiling(graph, steps, **options)
    assert not worth_compiling(graph, steps - 1, **options)


@pytest.mark.parametrize(
    "draw",
    [
        lambda p: torch.randn(3, 2),
        lambda p: torch.randn_like(p),
        lambda p: torch.empty(5).normal_(),
        lambda p: torch.rand(4, 1),
        lambda p: torch.rand_like(p),
        lambda p: torch.empty(5).uniform_(),
        lambda p: torch.bernoulli(p),
        lambda p: coins(p, (20, 3)),
        lambda p: coins(1 - p / 2, (20, 3)),
    ],
)
def test_every_random_operation_of_a_trace_draws_its_own_numbers(draw: Any) -> None:
    """The numbers of the operation itself, whatever was drawn during the trace."""
    p = torch.tensor([0.1, 0.5, 0.9])
    graph = make_fx(lambda p: draw(p) * 1)(p)
    (place,) = (node for node in graph.graph.nodes if node.op == "placeholder")
    noise_of = hoist(graph.graph, place, [place])
    graph.recompile()
    torch.manual_seed(4)
    want = draw(p)
    torch.manual_seed(4)
    (noise,) = noise_of([p])
    assert torch.equal(graph(p, noise.draw()), want)


@pytest.mark.parametrize(
    ("kind", "numbers", "mean", "sd"),
    [("normal", (1.0, 2.0), 1.0, 2.0), ("uniform", (-1.0, 3.0), 1.0, 12**-0.5 * 4),
     ("bernoulli", (), 0.3, 0.21**0.5), ("coins", (), 0.3, 0.21**0.5)],
)  # fmt: skip
def test_noise_of_steps_and_replicates_is_drawn_anew_for_each(
    kind: str, numbers: tuple[float, ...], mean: float, sd: float
) -> None:
    """Of several steps at once; mean and standard deviation are those of the distribution."""
    torch.manual_seed(0)
    noise = Noise.of_replicates([Noise(kind, torch.full((500,), 0.3), numbers, (500,))] * 4)
    rows = torch.cat([noise.draw().double() for _ in range(3)])
    assert rows.shape == (12, 500)
    assert float(rows.mean()) == pytest.approx(mean, abs=5 * sd / 6000**0.5)
    assert float(torch.corrcoef(rows).fill_diagonal_(0).abs().max()) < 5 / 500**0.5


@pytest.mark.parametrize(
    ("name", "steps", "chosen"),
    [
        ("pyro", 5000, "pyro"),
        ("auto", 29, "pyro"),
        ("auto", 30, "traced"),
        ("auto", 999, "traced"),
        ("auto", 1000, "compiled"),
        ("traced", 5000, "traced"),
        ("compiled", 1, "compiled"),
    ],
)
def test_the_engine_that_is_chosen(name: Any, steps: int, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where compiling is worth it from 1000 steps; every minibatch's program is prepared."""
    prepared = []

    class Compiler:
        name = "compiled"

        def __init__(self, loss: Any, optimizer: Any, **options: Any) -> None:
            pass

        def prepare(self, batch: Any) -> None:
            prepared.append(batch)

    monkeypatch.setattr(steps_of, "Compiled", Compiler)
    monkeypatch.setattr(steps_of.Traced, "prepare", lambda engine, batch: None)
    monkeypatch.setattr(steps_of, "worth_compiling", lambda graph, steps, _: steps >= 1000)
    loss: Any = SimpleNamespace(changes="", leaves=[], moving=Buffers(), program=lambda batch: None)
    batches: Any = ["whole", "rest"]
    optimizer = torch.optim.SGD([torch.zeros(1)], 0.1)
    engine = steps_of.accelerate(name, loss, optimizer, batches, steps)
    assert (engine.name if engine else "pyro") == chosen
    assert prepared == (batches if chosen == "compiled" else [])
