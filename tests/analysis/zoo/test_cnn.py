"""LeNets with dropout after every layer, after one and after none, against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pyrodrop
from pyrodrop import Fit, guides, zoo
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.data import Dataset
from pyrodrop.zoo.networks import DECAY

LR = 0.01
DROPPED = {
    "lenet-all": ("conv2.weight", "ip1.weight", "ip2.weight"),
    "lenet-ip": ("ip2.weight",),
    "lenet-none": (),
}
ROWS = 12


@pytest.fixture
def digits() -> Dataset:
    torch.manual_seed(0)
    return Dataset(torch.rand(ROWS, 1, 28, 28, dtype=torch.float64), torch.arange(ROWS) % 10)


def plain(net: str, fit: Fit) -> nn.Sequential:
    """The network in PyTorch: dropout divides by 1/2, so the weight after it is half of ours."""
    dropped = DROPPED[net]
    network = nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.Dropout2d(0.5 * ("conv2.weight" in dropped)), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5 * ("ip1.weight" in dropped))),
        *(nn.Linear(800, 500), nn.ReLU(), nn.Dropout(0.5 * ("ip2.weight" in dropped)), nn.Linear(500, 10)),
    ).double()
    with torch.no_grad():
        for place, name in zip((0, 3, 7, 10), ("conv1", "conv2", "ip1", "ip2"), strict=True):
            keep = 0.5 if f"{name}.weight" in dropped else 1.0
            network[place].weight.copy_(keep * fit.guide.loc[f"{name}.weight"])  # type: ignore[attr-defined]
            network[place].bias.copy_(fit.guide.loc[f"{name}.bias"])  # type: ignore[attr-defined]
    return network


@pytest.mark.more
@pytest.mark.parametrize("net", DROPPED)
def test_draws_are_passes_with_dropout_and_mean_weights_the_network_without(
    net: str, digits: Dataset, float64: None
) -> None:
    """Mean and variance of the logits of one image to five standard errors of both sides; the averaged network exactly."""
    fit = zoo.entry(f"cnn/{net}").fit(digits, steps=1, engine="pyro", progress=False)
    with torch.no_grad():  # of one sign, so that masks of maps would have another variance than masks of units
        fit.guide.loc["ip1.weight"].abs_()  # type: ignore[attr-defined]
    network, x, count = plain(net, fit), digits.x[:1], 800
    torch.testing.assert_close(averaged(fit).predict(digits.x, 1).f[0], network.eval()(digits.x))
    with torch.no_grad():
        theirs = network.train()(x.expand(count, -1, -1, -1))
    ours = fit.predict(x, count, seed=1).f[:, 0]
    if not DROPPED[net]:
        torch.testing.assert_close(ours, theirs)
        return
    squares = [(f - f.mean(0)).square() for f in (ours, theirs)]
    assert float(squares[1].mean()) > 1e-4
    for one, other in ((ours, theirs), squares):
        error = ((one.var(0) + other.var(0)) / count).sqrt()
        assert float(((one.mean(0) - other.mean(0)) / error).abs().max()) < 5


def test_a_step_of_dropout_after_every_layer_is_caffes(
    monkeypatch: pytest.MonkeyPatch, digits: Dataset, float64: None
) -> None:
    """One SGD step moves M / 2 as Caffe's moves V, for the same masks of maps and units."""
    entry, dropped = zoo.entry("cnn/lenet-all"), DROPPED["lenet-all"]
    model = entry.model(digits).double()
    guide = guides.BernoulliDropout(model, {**dict.fromkeys(dropped, 0.5), "*": 0.0}).double()
    start = {name: w.detach().clone() for name, w in guide.mean().items()}  # V, as half of the units are there
    masks = {width: (torch.arange(width) % 3 > 0).double() for width in (20, 800, 500)}
    monkeypatch.setattr(
        "pyrodrop.distributions.bernoulli_mixture.coins", lambda rates, shape: masks[shape[-1]].expand(shape)
    )
    options = {**entry.training(digits), "steps": 1, "batch_size": None, "estimator": "shared"}
    trained = pyrodrop.fit(model, guide, digits, optimizer=torch.optim.SGD, **{
        name: value for name, value in options.items() if name not in ("optimizer", "lr_schedule")
    })  # fmt: skip

    v = {name: w.clone().requires_grad_() for name, w in start.items()}
    h = F.conv2d(digits.x, v["conv1.weight"], v["conv1.bias"]) * masks[20][:, None, None] / 0.5
    h = F.max_pool2d(F.conv2d(F.max_pool2d(h, 2), v["conv2.weight"], v["conv2.bias"]), 2)
    h = F.linear(h.flatten(1) * masks[800] / 0.5, v["ip1.weight"], v["ip1.bias"])
    f = F.linear(torch.relu(h) * masks[500] / 0.5, v["ip2.weight"], v["ip2.bias"])
    (F.cross_entropy(f, digits.y) + DECAY / 2 * sum(w.square().sum() for w in v.values())).backward()
    for name, now in trained.guide.mean().items():  # type: ignore[attr-defined]
        gradient = v[name].grad
        assert gradient is not None
        step = -(2 if name.endswith("bias") else 1) * LR * gradient
        torch.testing.assert_close(now - start[name], step, rtol=1e-6, atol=1e-14)


def test_dropout_after_the_first_dense_layer_is_the_entry_of_the_rotated_digit(digits: Dataset) -> None:
    """Equal priors and initial weights; `learning_rate` is tested there."""
    ours, theirs = (zoo.entry(name) for name in ("cnn/lenet-ip", "rotated-digit/bernoulli"))
    one, other = references.recipe(ours, digits), references.recipe(theirs, digits)
    assert [one[key] for key in ("network", "prior", "posterior")] == [
        other[key] for key in ("network", "prior", "posterior")
    ]
    pairs = zip(ours.build(digits)[1].parameters(), theirs.build(digits)[1].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
