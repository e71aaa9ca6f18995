"""Which optimisers `fit` takes: those that step by one dense gradient, and for replicates entry by entry."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pyro.optim
import pyro.optim.clipped_adam
import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
DATA = X, X.sum(1, keepdim=True)


def fit(optimizer: Any, lr: Any = 0.01, replicates: int | None = None) -> Any:
    model = models.MLP([3, 4, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
    settings: dict[str, Any] = {"steps": 3, "lr": lr, "optimizer": optimizer, "device": "cpu"}
    if replicates is None:
        return pyrodrop.fit(model, guides.MeanField(model), DATA, **settings)
    return pyrodrop.fit_replicates(model, guides.MeanField(model), DATA, count=replicates, **settings)


def lbfgs_of_few_steps(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(groups, max_iter=3)


def with_one_norm(groups: Any, largest: float = 1.0) -> torch.optim.Optimizer:
    """SGD that clips the norm of all gradients together."""
    made = torch.optim.SGD(groups)
    made.register_step_pre_hook(functools.partial(_clip, largest))
    return made


def _clip(largest: float, made: torch.optim.Optimizer, *_: Any) -> None:
    torch.nn.utils.clip_grad_norm_([p for group in made.param_groups for p in group["params"]], largest)


@pytest.mark.parametrize(
    ("optimizer", "error", "message"),
    [
        (torch.optim.SparseAdam, ValueError, "must step by one dense gradient; got SparseAdam"),
        (lbfgs_of_few_steps, ValueError, "must step by one dense gradient; got LBFGS: .*a loop of your own"),
        (torch.optim.Muon, ValueError, "could not be made for the 1 groups.*Muon only supports 2D"),
        (pyro.optim.Adam, ValueError, "could not be made"),
        (lambda groups: groups, TypeError, "it returned a list"),
        (
            torch.optim.AdamW,
            ValueError,
            r"got AdamW: use functools.partial\(torch.optim.AdamW, weight_decay=0\)",
        ),
        (functools.partial(torch.optim.Adam, maximize=True), ValueError, "must minimise.* got Adam with maximize=True"),
        (
            lambda groups: torch.optim.SGD([{**g, "weight_decay": 0.1} for g in groups]),
            ValueError,
            "got SGD: use functools.partial",
        ),
    ],
)
def test_what_is_no_optimiser_of_a_fit(optimizer: Any, error: type[Exception], message: str) -> None:
    for replicates in (None, 2):
        with pytest.raises(error, match=message):
            fit(optimizer, replicates=replicates)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.Adafactor, *(functools.partial(with_one_norm, largest=norm) for norm in (1e-4, 1e6))],
)
def test_replicates_need_an_optimiser_of_single_entries(optimizer: Any) -> None:
    assert torch.isfinite(fit(optimizer).losses).all()
    with pytest.raises(ValueError, match="updates every entry by its own gradient alone"):
        fit(optimizer, replicates=2)


def small_steps(groups: Any) -> torch.optim.Optimizer:
    """Adam with a hook that divides the gradients of every step by 1e12."""
    optimizer = torch.optim.Adam(groups, fused=True)

    def divide(own: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in own.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(1e12)

    optimizer.register_step_pre_hook(divide)
    return optimizer


def own_step(groups: Any) -> torch.optim.Optimizer:
    """Adam with a method `step` of its own, as learning rate schedulers give it."""
    optimizer = torch.optim.Adam(groups, fused=True)
    step = optimizer.step

    def slower(*args: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.1
        step(*args)

    optimizer.step = slower  # type: ignore[method-assign]
    return optimizer


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", [small_steps, own_step])
def test_what_an_optimiser_does_more_is_done_by_every_engine(optimizer: Any) -> None:
    model = models.MLP([3, 4, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
    guide, plain = guides.MeanField(model), functools.partial(torch.optim.Adam, fused=True)
    runs: list[tuple[Any, Any]] = [(made, engine) for made in (optimizer, plain) for engine in ("pyro", "traced")]
    settings: dict[str, Any] = {"steps": 5, "lr": 0.01, "progress": False}
    fits = {
        (made, engine): pyrodrop.fit(model, guide, DATA, optimizer=made, engine=engine, **settings)
        for made, engine in (*runs, (optimizer, "compiled"))
    }
    values = {key: torch.cat([p.detach().flatten() for p in fit.guide.parameters()]) for key, fit in fits.items()}
    assert fits[optimizer, "compiled"].settings["engine"] == "traced"
    first = values.pop((optimizer, "pyro"))
    for (made, _), other in values.items():
        assert torch.equal(first, other) == (made is optimizer)


class Transposed(nn.Module):
    """A weight that is trained without a prior and has the gradient of its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.linspace(-1, 1, 12).reshape(4, 3)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x[:, :, None] * self.weight.T).sum(1).tanh())  # type: ignore[no-any-return]


def laid_out(layout: str) -> nn.Module:
    """A network whose memory is not in the order of its entries."""
    torch.manual_seed(0)
    if layout == "gradient":
        return Transposed()
    net = nn.Sequential(nn.Unflatten(1, (2, 3, 2)), nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 2))
    weight = net[4].weight.detach()
    if layout == "transposed":
        net[4].weight = nn.Parameter(weight.T.contiguous().T)
    return net.to(memory_format=torch.channels_last) if layout == "channels last" else net


@pytest.mark.few(2)
@pytest.mark.parametrize("layout", ["channels last", "gradient", "transposed"])
def test_memory_in_any_order_is_trained_as_by_adam(layout: str, tmp_path: Path) -> None:
    """Against a loop of torch's own Adam that is not fused: the fused one takes all tensors to be in the order of memory."""
    net, images = laid_out(layout), layout != "gradient"
    x = torch.randn(12, 12 if images else 3, generator=torch.Generator().manual_seed(1))
    y = x[:, :2]
    weights = [name for name, value in net.named_parameters() if value.dim() > 1 and name != "weight"]
    model = models.from_module(
        net, {"weight": None, "*": priors.Gaussian()} if not images else priors.Gaussian(), likelihoods.Gaussian(1.0)
    )
    settings: dict[str, Any] = {"lr": 0.05, "engine": "pyro", "progress": False}

    def trained(steps: int = 6, **options: Any) -> Any:
        return pyrodrop.fit(model, guides.Point(model), (x, y), steps=steps, **{**settings, **options})

    trained(3, checkpoint=tmp_path / "half.safetensors")
    runs = {
        "traced": trained(engine="traced"),
        "resumed": trained(checkpoint=tmp_path / "half.safetensors"),
        "replicates": pyrodrop.fit_replicates(
            model, guides.Point(model), (x, y), count=2, steps=6, lr=0.05, progress=False
        )[1],
    }
    by_hand(net, x, y, weights)
    for name, run in runs.items():
        check_parameters(run, net, name)


def by_hand(net: nn.Module, x: Tensor, y: Tensor, weights: list[str]) -> None:
    """Six steps of Adam, with a Gaussian prior of these weights."""
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for _ in range(6):
        optimizer.zero_grad()
        decay = sum(value.square().sum() for name, value in net.named_parameters() if name in weights)
        (((net(x) - y).square().sum() + decay) / 2).backward()
        optimizer.step()


def check_parameters(run: Any, net: nn.Module, name: str) -> None:
    for weight, value in net.named_parameters():
        tree = run.guide.loc if weight in run.guide.sites else run.model.free
        torch.testing.assert_close(tree[weight], value, atol=1e-5, rtol=0, msg=f"{name} differs in {weight}")


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_sparse_gradients_are_trained_by(engine: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(3, 2))
    ids = torch.arange(12)[:, None] % 4
    prior = {"0.*": None, "*": priors.Gaussian()}
    model, y = models.from_module(net, prior, likelihoods.Gaussian(1.0)), torch.eye(12)[:, :2]
    run = pyrodrop.fit(model, guides.Point(model), (ids, y), steps=6, lr=0.05, engine=engine, progress=False)
    assert run.settings["engine"] == engine
    net[0].sparse = False  # or Adam refuses its gradient
    by_hand(net, ids, y, ["2.weight"])
    check_parameters(run, net, engine)
