"""A convolutional network with batch normalisation on MNIST: eight replicates are the eight fits alone, whatever they start
from, and a killed run goes on to the same bits. In float64, where rounding stays small for as many steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.networks.alone import drawn_as_alone
from pyrodrop.data import Dataset, mnist

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("data_folder", "float64")]
ROWS, STEPS, COUNT = 3000, 240, 8
SETTINGS: dict[str, Any] = {
    "steps": STEPS, "batch_size": 96, "lr": 3e-3, "progress": False,
}  # fmt: skip


def digits() -> tuple[Dataset, Dataset]:
    split = mnist(flat=False, progress=False)
    sets = [Dataset(part.x[:ROWS].double(), part.y[:ROWS]) for part in (split.train, split.test)]
    return sets[0], sets[1]


def made() -> tuple[models.NetworkModel, guides.Guide]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=2, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 12, 5, stride=2, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(192, 10),
    )  # fmt: skip
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    return model, guides.BernoulliDropout(model, 0.1, mask_input=False)


def state_of(fit: Any) -> dict[str, Tensor]:
    return {f"{p}.{n}": v for p, part in (("m", fit.model), ("g", fit.guide)) for n, v in part.state_dict().items()}


def accuracy(fit: Any, test: Dataset) -> float:
    return float((fit.predict(test.x, 4).f.softmax(-1).mean(0).argmax(-1) == test.y).double().mean())


@pytest.mark.parametrize("starts", ["model", "new"])
def test_eight_replicates_are_the_eight_fits(starts: Any) -> None:
    train, test = digits()
    model, guide = made()
    with drawn_as_alone(*range(COUNT)):
        many = pyrodrop.fit_replicates(model, guide, train, count=COUNT, starts=starts, engine="traced", **SETTINGS)
    for r, one in enumerate(many):
        pair = pyrodrop.restart(model, guide, r) if starts == "new" else (model, guide)
        alone = pyrodrop.fit(*pair, train, seed=r, engine="pyro", **SETTINGS)
        got, wanted = state_of(one), state_of(alone)
        for name, value in wanted.items():
            torch.testing.assert_close(got[name], value, rtol=1e-6, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")
        torch.testing.assert_close(
            one.predict(test.x[:200], 5).f, alone.predict(test.x[:200], 5).f, rtol=1e-5, atol=1e-5
        )
        assert accuracy(one, test) == accuracy(alone, test) > 0.9
        assert int(one.model.network[1].num_batches_tracked) == STEPS
        print(f"{starts}, seed {r}: accuracy {accuracy(one, test):.4f}, alone {accuracy(alone, test):.4f}, largest "
              f"difference {max(float((got[n] - v).abs().max()) for n, v in wanted.items()):.1e}")  # fmt: skip


@pytest.mark.parametrize("engine", ["pyro", "traced", "compiled"])
def test_a_killed_run_goes_on_to_the_same_bits(engine: Any, tmp_path: Path) -> None:
    """Killed by the system in its third epoch, between two savings."""
    whole = run(engine)
    path = tmp_path / "state"
    killed = subprocess.run([sys.executable, "-P", __file__, engine, str(path)], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert path.exists()
    resumed = run(engine, checkpoint=pyrodrop.Checkpoint(path, every=20))
    assert resumed.settings["engine"] == engine
    assert torch.equal(resumed.history, whole.history)
    for name, value in state_of(whole).items():
        assert torch.equal(state_of(resumed)[name], value), name


def run(engine: str, **settings: Any) -> Any:
    model, guide = made()
    data = digits()[0]
    return pyrodrop.fit(model, guide, data, engine=engine, **{**SETTINGS, "batch_size": 100, "steps": 120, **settings})  # type: ignore[arg-type]


def die(_: Any, epochs: int) -> None:
    if epochs == 3:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    run(sys.argv[1], checkpoint=pyrodrop.Checkpoint(sys.argv[2], every=20), after_epoch=die)
