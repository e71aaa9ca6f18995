"""LeNets with dropout after every layer, after one and after none, against plain PyTorch; the job at the size of a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pyrodrop
from pyrodrop import Fit, cli, guides, zoo
from pyrodrop.analysis.experiments import cnn
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.analysis.zoo.check import _cut
from pyrodrop.analysis.zoo.train import measure
from pyrodrop.data import Dataset, mnist
from pyrodrop.zoo.rotated_digit import DECAY, LR

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


@pytest.mark.few(1)
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
    one, other = ours.recipe(digits), theirs.recipe(digits)
    assert [one[key] for key in ("network", "prior", "posterior")] == [
        other[key] for key in ("network", "prior", "posterior")
    ]
    pairs = zip(ours.build(digits)[1].parameters(), theirs.build(digits)[1].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_errors_and_their_standard_errors() -> None:
    """Of eight labels 3 and 2 are wrong, one of them in both: differences 1, 1, -1 and five 0."""

    def prediction(classes: list[int]) -> Tensor:
        return F.one_hot(torch.tensor(classes), 2)[None] * 0.8 + 0.1

    test = Dataset(torch.zeros(8, 1), torch.zeros(8, dtype=torch.long))
    found = cnn.scores(prediction([1, 1, 1, 0, 0, 0, 0, 0]), prediction([1, 0, 0, 1, 0, 0, 0, 0]), test)  # type: ignore[arg-type]
    assert (found["mc"], found["averaged"], found["difference"]) == (37.5, 25.0, 12.5)
    apart = torch.tensor([1.0, 1, -1, 0, 0, 0, 0, 0])
    assert found["se"] == pytest.approx(100 * float(apart.std()) / 8**0.5)
    assert found["log_density"] == pytest.approx(float(torch.tensor([0.1] * 3 + [0.9] * 5).log().mean()))
    assert cnn._binomial(37.5, 8) == pytest.approx(100 * (0.375 * 0.625 / 8) ** 0.5)


def test_the_papers_statements_are_asked_of_the_numbers() -> None:
    def row(mc: float, mean: float) -> dict[str, float]:
        return {"mc": mc, "averaged": mean, "difference": mc - mean, "se": 0.1}

    as_published = {"lenet-all": row(0.5, 1.5), "lenet-ip": row(0.7, 0.7), "lenet-none": row(0.9, 0.9)}
    assert list(cnn.statements(as_published).values()) == [True, True, True]
    assert list(cnn.statements({**as_published, "lenet-all": row(0.8, 0.85)}).values()) == [False, False, False]
    assert list(cnn.statements({**as_published, "lenet-none": row(1.6, 1.6)}).values()) == [True, False, True]


@pytest.mark.more
def test_the_job_goes_on_and_its_end_is_the_entrys(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test errors after 3 and 6 steps; the second run computes nothing; the last point is a training of 6 steps at once."""
    split = _cut(mnist(flat=False, progress=False), 640, 100)
    monkeypatch.setattr(cnn, "mnist", lambda **_: split)
    monkeypatch.setattr(cnn, "POINTS", (3,))
    words = ["run", "cnn", "--steps", "6", "--device", "cpu", "--out", str(tmp_path), "--quiet"]
    assert cli.main(words) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["steps"] for row in results["errors"].values()] == 3 * [3, 6]
    monkeypatch.setattr(cnn, "fit_resumed", None)
    assert cli.main(words) == 0
    assert "reused" in capsys.readouterr().out
    for net in DROPPED:
        measured = measure(zoo.entry(f"cnn/{net}"), [split], steps=6, device="cpu", engine="pyro", progress=False)
        last = results["errors"][f"{net}-6"]
        assert measured.scores["error_percent"] == pytest.approx(last["mc"], abs=1.01)
        assert measured.scores["error_percent_averaged"] == pytest.approx(last["averaged"], abs=1.01)
        network = plain(net, measured.fits[0]).eval()
        wrong = network(split.test.x.double()).argmax(-1) != split.test.y
        assert measured.scores["error_percent_averaged"] == pytest.approx(100 * float(wrong.double().mean()), abs=1.01)
