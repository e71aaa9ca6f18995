"""Error by size on images: the network and the noise of its methods against plain PyTorch, and the job."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from scipy.integrate import quad
from scipy.special import dawsn
from torch import Tensor, nn

import pyrodrop
from pyrodrop import cli, data, likelihoods, models, priors
from pyrodrop.analysis.experiments import kingma_fig1b
from pyrodrop.analysis.experiments.error_by_size import COLORS
from pyrodrop.analysis.experiments.kingma_fig1b import METHODS, network, training
from pyrodrop.reparam import LocalReparam, reparameterize
from pyrodrop.scaling import Standardize
from pyrodrop.zoo.kingma import METHODS as OF_DIGITS

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")

SITES = ("conv1", "conv2", "dense1", "dense2", "out")
LEARNED = 3 / 7  # alpha of the drop rate 0.3, from which learned ones start
ALPHAS = {  # of the first layer and of the others; alpha of the rates 0.2 and 0.5 is 1/4 and 1
    "gaussian-a": (0.25, 1.0),
    "gaussian-b": (0.25, 1.0),
    "variational-a": (LEARNED, LEARNED),
    "variational-a2": (LEARNED, LEARNED),
    "variational-b": (LEARNED, LEARNED),
}


class Plain(nn.Module):
    """The network of the figure's caption: maps, units, stride and softplus."""

    def __init__(self, few: int, many: int, hidden: int, area: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, few, kernel_size=5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(few, many, kernel_size=5, stride=2, padding=2)
        self.dense1 = nn.Linear(many * area, hidden)
        self.dense2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.softplus(self.conv2(F.softplus(self.conv1(x)))).reshape(len(x), -1)
        return self.out(F.softplus(self.dense2(F.softplus(self.dense1(h)))))


@pytest.mark.parametrize(("scale", "sizes"), [(0.25, (8, 16, 32)), (0.5, (16, 32, 64)), (1.0, (32, 64, 128))])
def test_the_network_is_the_plain_one(scale: float, sizes: tuple[int, int, int]) -> None:
    """The same weights and the same images, of which every channel is standardised."""
    loc, spread = torch.tensor([0.49, 0.48, 0.45]), torch.tensor([0.25, 0.24, 0.26])
    channels = Standardize(loc.reshape(3, 1, 1), spread.reshape(3, 1, 1))
    images = data.Dataset(torch.rand(6, 3, 32, 32), torch.arange(6), inputs=channels)
    model, plain = network(images, method="none", scale=scale), Plain(*sizes, 8 * 8)
    model.standardize(images)
    plain.load_state_dict({**model.weight_sites(), **{name: model.free[name] for name in model.free}})
    by_hand = torch.stack([(images.x[:, c] - loc[c]) / spread[c] for c in range(3)], 1)
    torch.testing.assert_close(model.outputs(model.weight_sites(), images.x), plain(by_hand))


def small(method: str) -> tuple[models.NetworkModel, Tensor]:
    """A network of the same kind for images of 8 x 8, and an image."""
    model = models.ConvNet((3, 8, 8), scale=0.1, prior=METHODS[method].prior(), likelihood=likelihoods.Categorical())
    return model, torch.randn(3, 8, 8)


def by_hand(model: models.NetworkModel, method: str, x: Tensor) -> Tensor:
    """The outputs under the noise of a method, in plain PyTorch: one noise per example and input unit, which is a channel of
    a convolution (binary, A), or one per example and output, at every position (B)."""
    w = {name.removesuffix(".weight"): weight.detach() for name, weight in model.weight_sites().items()}
    b = {name.removesuffix(".bias"): model.free[name].detach() for name in model.free}
    h = x
    for site in SITES:
        first = site == "conv1"

        def affine(
            x: Tensor, weight: Tensor, bias: Tensor | None = None, conv: bool = site.startswith("conv")
        ) -> Tensor:
            return F.conv2d(x, weight, bias, 2, 2) if conv else F.linear(x, weight, bias)

        h = h.flatten(1) if site == "dense1" else h
        shape = (*h.shape[:2], *[1] * (h.dim() - 2))
        if method == "binary":
            rate = 0.2 if first else 0.5
            y = affine(h * (torch.rand(shape) >= rate), w[site], b[site])
        elif method.endswith("b"):
            variance = ALPHAS[method][not first] * affine(h**2, w[site] ** 2)
            y = affine(h, w[site], b[site]) + variance.sqrt() * torch.randn_like(variance)
        else:
            y = affine(h * (1 + math.sqrt(ALPHAS[method][not first]) * torch.randn(shape)), w[site], b[site])
        h = y if site == "out" else F.softplus(y)
    return h


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ["binary", *ALPHAS])
def test_local_noise_of_a_method_is_that_written_by_hand(method: str) -> None:
    """Mean, variance and covariance of the ten outputs of one image, 20,000 times each, in standard errors."""
    count = 20_000
    model, image = small(method)
    x = image.expand(count, 3, 8, 8)
    wrapped, guide = reparameterize(model, METHODS[method].guide(model), LocalReparam())
    with torch.no_grad():
        ours = poutine.replay(wrapped, trace=poutine.trace(guide).get_trace(x))(x).double()
        theirs = by_hand(model, method, x).double()
    apart = (ours.mean(0) - theirs.mean(0)) / ((ours.var(0) + theirs.var(0)) / count).sqrt()
    assert float(apart.abs().max()) < 4.5
    products = [(z[:, :, None] * z[:, None, :]) for z in (y - y.mean(0) for y in (ours, theirs))]
    errors = (sum(p.var(0) for p in products) / count) ** 0.5
    assert float(((products[0].mean(0) - products[1].mean(0)) / errors).abs().max()) < 4.5


def log_uniform_kl(alpha: float) -> float:
    """2 times the integral of Dawson's function from 0 to sqrt(1 / (2 alpha))."""
    return 2 * quad(dawsn, 0, math.sqrt(1 / (2 * alpha)))[0]


@pytest.mark.parametrize("method", ["variational-a", "variational-a2", "variational-b"])
def test_the_divergence_counts_channels_under_a_and_weights_under_b(method: str) -> None:
    """After some steps, with the learned alpha of every layer. A2 trains with a third of it."""
    torch.manual_seed(0)
    model, _ = small(method)
    images = (torch.randn(60, 3, 8, 8), torch.arange(60) % 10)
    run = pyrodrop.fit(model, METHODS[method].guide(model), images, steps=5, batch_size=20, lr=0.05, estimator="local")
    units = {"conv1": 3, "conv2": 3, "dense1": 6 * 2 * 2, "dense2": 12, "out": 12}
    weights = {"conv1": 3 * 3 * 25, "conv2": 6 * 3 * 25, "dense1": 12 * 24, "dense2": 12 * 12, "out": 10 * 12}
    counts = weights if method == "variational-b" else units
    alphas = {name.removesuffix(".weight"): float(value) for name, value in run.guide.rates().items()}  # type: ignore[attr-defined]
    assert max(abs(alpha - LEARNED) for alpha in alphas.values()) > 0.01
    wanted = sum(counts[site] * log_uniform_kl(alphas[site]) for site in SITES)
    assert run.elbo(1).kl == pytest.approx(wanted, rel=1e-4)
    assert run.objective(1).kl == pytest.approx(wanted / 3 if method == "variational-a2" else wanted, rel=1e-4)


def test_methods_are_those_of_the_digits_with_the_rates_of_this_network() -> None:
    assert list(METHODS) == list(OF_DIGITS)
    assert [method.summary for method in METHODS.values()] == [method.summary for method in OF_DIGITS.values()]
    assert len(COLORS) == len(METHODS)
    assert not any(method.published for method in METHODS.values())
    for name, method in METHODS.items():
        model, _ = small(name)
        rates = [float(method.guide(model).rates().get(f"{site}.weight", 0.0)) for site in SITES]  # type: ignore[attr-defined]
        first, other = {"none": (0.0, 0.0), "binary": (0.2, 0.5), **ALPHAS}[name]
        assert rates == pytest.approx([first, *[other] * 4])
        assert isinstance(
            model.priors["conv1.weight"], priors.Gaussian if name in ("none", "binary") else priors.LogUniform
        )


def test_a_part_of_a_minibatch_is_a_step() -> None:
    assert training(torch.zeros(1050), epochs=3)["steps"] == 33  # type: ignore[arg-type]


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred random images in the place of CIFAR-10."""

    def load(*, progress: bool) -> data.Split:
        parts = [data.Dataset(torch.rand(n, 3, 32, 32), torch.arange(n) % 10) for n in (100, 40)]
        return data.Split("random", *parts, "", "", "")

    monkeypatch.setattr(kingma_fig1b, "cifar10", load)
    monkeypatch.setattr(kingma_fig1b, "STUDY", replace(kingma_fig1b.STUDY, load=load))
    monkeypatch.setattr("joblib.cpu_count", lambda: 1)


def words(out: Path, *more: str) -> list[str]:
    options = {"--methods": "none", "--scales": "0.1", "--epochs": "1", "--train": "100"}
    options |= {"--seeds": "2", "--out": str(out)} | dict(zip(more[::2], more[1::2], strict=True))
    return ["run", "kingma-fig1b", "--quiet", *(word for pair in options.items() for word in pair)]


@pytest.mark.more
def test_the_job_keeps_its_cells(tmp_path: Path, images: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(tmp_path)) == 0
    assert "CIFAR-10: test error" in " ".join(capsys.readouterr().out.split())
    content, written = (
        json.loads((tmp_path / "none-0.1.json").read_text()),
        (tmp_path / "none-0.1.json").stat().st_mtime_ns,
    )
    assert content["cell"] == {"method": "none", "scale": 0.1, "epochs": 1, "seeds": 2, "seed": 0, "train": 100}
    assert len(content["errors"]) == 2
    assert cli.main(words(tmp_path)) == 0
    assert "reused from" in capsys.readouterr().out
    assert (tmp_path / "none-0.1.json").stat().st_mtime_ns == written
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["errors"]["none-0.1"]["error_percent"] == pytest.approx(sum(content["errors"]) / 2)
    assert (tmp_path / "figure.png").stat().st_size > 1000
    (tmp_path / "none-0.1.json").write_text(
        (tmp_path / "none-0.1.json").read_text().replace('"train": 100', '"train": 90')
    )
    assert cli.main(words(tmp_path)) == 1
    assert "has a result of other settings (train is 90 there and 100 here)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--methods", "nun"], "no dropout method is called 'nun'"),
        (["--seeds", "0"], "seeds must be at least 1; got 0"),
        (["--scales", "0.01"], "scales is the factors of the widths and must be"),
        (["--epochs", "0"], "epochs must be at least 1; got 0"),
        (["--train", "0"], "train must be at least 1; got 0"),
        (["--train", "101"], "a whole number from 1 to 100; got 101"),
    ],
)
def test_mistakes_are_said_first(
    more: list[str], message: str, tmp_path: Path, images: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(tmp_path / "out", *more)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_cifar10_itself_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYRODROP_DATA", str(tmp_path))
    assert cli.main(["run", "kingma-fig1b", "--out", str(tmp_path / "out")]) == 1
    assert "cifar-10-binary.tar.gz" in capsys.readouterr().err
