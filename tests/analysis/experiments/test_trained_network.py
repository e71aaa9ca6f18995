"""The experiment on a network that was trained without pyrodrop: on a small problem, and on MNIST."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pyrodrop import cli
from pyrodrop.analysis.experiments import trained_network
from pyrodrop.analysis.experiments.trained_network import network
from pyrodrop.data import Dataset, Split
from pyrodrop.files import read_tensors

READ_AS = ["16 columns of 4.weight", "128 columns of 11.weight"]


def made(seed: int, count: int) -> Dataset:
    """Images of noise, in which row 2 c + 4 is bright for class c."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 10
    x = 0.5 * torch.rand(count, 1, 28, 28, generator=generator)
    x[torch.arange(count), 0, 2 * y + 4] += 0.2
    return Dataset(x, y)


@pytest.mark.more
def test_the_experiment_on_a_small_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    split = Split("rows", made(0, 640), made(1, 200), "grey value", "row", "")
    monkeypatch.setattr(trained_network, "mnist", lambda **_: split)
    words = ["--epochs", "2", "--steps", "20", "--draws", "30", "--device", "cpu", "--quiet"]
    assert cli.main(["run", "trained-network", *words, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "loss.backward()" in shown
    assert shown.count("nn.Dropout") == 2
    content = json.loads((tmp_path / "results.json").read_text())
    assert [row[3] for row in content["table"][:2]] == READ_AS
    assert content["table"][1][4] == pytest.approx((640 * 1e-4 * 0.5) ** -0.5)
    rows = content["scores"]
    same(rows["30 hand-made passes"], rows["reading, 30 draws"])
    same(rows["after fit, 30 draws"], rows["after fit, 30 passes of to_module"])
    assert rows["evaluation mode"]["nll_se"] == 0
    state, _ = read_tensors(tmp_path / "network.safetensors")
    net = network().eval()
    net.load_state_dict(state)
    with torch.no_grad():
        accuracy = (net(split.test.x).argmax(-1) == split.test.y).double().mean()
    assert rows["after fit, to_module in evaluation mode"]["accuracy"] == pytest.approx(float(accuracy))


def same(hand: dict[str, float], drawn: dict[str, float]) -> None:
    """Two NLLs differ by at most four standard errors of their difference, and both have an error."""
    error = (hand["nll_se"] ** 2 + drawn["nll_se"] ** 2) ** 0.5
    assert 0 < error < 0.1
    assert abs(hand["nll"] - drawn["nll"]) < 4 * error
    assert abs(hand["accuracy"] - drawn["accuracy"]) < 0.05


def test_passes_by_hand_drop_units_and_leave_the_network_as_it_is() -> None:
    torch.manual_seed(0)
    net = network().eval()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.rand(3, 1, 28, 28)
    p = trained_network._passes(net, x, 4)
    assert p.shape == (4, 3, 10)
    assert not torch.equal(p[0], p[1])
    assert not net.training
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_the_error_of_an_nll_is_its_standard_deviation_over_repetitions() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(20) % 3
    logits = torch.randn(500, 50, 1, 3, generator=generator) + torch.randn(20, 3, generator=generator)
    scores = [trained_network._scores(part.softmax(-1), y) for part in logits]
    spread = torch.tensor([score["nll"] for score in scores]).std()
    assert float(torch.tensor([score["nll_se"] for score in scores]).mean()) == pytest.approx(float(spread), rel=0.1)


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="draws must be at least 1; got 0"):
        trained_network.run(draws=0, out=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_on_mnist(tmp_path: Path, data_folder: Path) -> None:
    """One epoch on all of MNIST: the reading predicts as the passes do, 500 steps raise the ELBO, and the network that
    comes back predicts as the fit does."""
    content = trained_network.run(epochs=1, device="cpu", out=tmp_path, quiet=True)
    assert [row[3] for row in content["table"][:2]] == READ_AS
    rows = content["scores"]
    same(rows["100 hand-made passes"], rows["reading, 100 draws"])
    same(rows["after fit, 100 draws"], rows["after fit, 100 passes of to_module"])
    assert all(row["accuracy"] > 0.97 for row in rows.values())
    before, after = content["elbo"]["before"], content["elbo"]["after"]
    assert after["value"] - before["value"] > 3 * (before["se"] ** 2 + after["se"] ** 2) ** 0.5
