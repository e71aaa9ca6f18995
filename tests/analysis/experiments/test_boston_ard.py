"""The table of pytorch_ard: the objective, the scores and the job."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from pyrodrop import cli, fit
from pyrodrop.analysis.experiments import boston_ard
from pyrodrop.data import Dataset
from pyrodrop.elbo import elbo_terms
from pyrodrop.guides import SparseDropout

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


@pytest.fixture
def data() -> Dataset:
    noise = torch.Generator().manual_seed(0)
    return Dataset(torch.randn(40, 13, generator=noise), 3 + torch.randn(40, 1, generator=noise))


def test_the_objective_is_the_mean_squared_error(data: Dataset) -> None:
    """The expected minus log likelihood, but for its constant."""
    model, guide = boston_ard._build(data, None, 0)
    with torch.no_grad():
        w = [guide.loc[name] for name in ("0.weight", "2.weight")]
        b = [value for name, value in model.named_parameters() if "bias" in name]
        f = torch.relu(torch.tanh(data.x @ w[0].T + b[0]) @ w[1].T + b[1])
        nll = float(elbo_terms(model, guide, data.x, data.y).nll)
    error = float(((f - data.y) ** 2).mean())
    assert nll == pytest.approx(error + 20 * math.log(2 * math.pi * 20), rel=1e-5)


def test_scores_are_of_the_weights_that_are_left(data: Dataset) -> None:
    """By numpy: means where log alpha < 3, zeros elsewhere; the training error is that of a draw with noise."""
    model, guide = boston_ard._build(data, 0.1, 0)
    assert isinstance(guide, SparseDropout)
    run = fit(model, guide, data, steps=300, lr=1e-2, kl_weight=1e-3, estimator="local", seed=0, progress=False)
    noisy, clean, dropped = boston_ard._scores(run, data, data, 0)
    w, kept = {}, 0
    for name in ("0.weight", "2.weight"):
        loc = run.guide.loc[name].detach().numpy().astype(float)  # type: ignore[attr-defined]
        alpha = run.guide.log_variance[name].detach().numpy() - np.log(loc**2)  # type: ignore[attr-defined]
        w[name], kept = np.where(alpha < 3, loc, 0.0), kept + int((alpha < 3).sum())
    b = [v.detach().numpy() for k, v in run.model.named_parameters() if "bias" in k]  # type: ignore[attr-defined]
    f = np.maximum(np.tanh(data.x.numpy() @ w["0.weight"].T + b[0]) @ w["2.weight"].T + b[1], 0)
    assert clean == pytest.approx(((f - data.y.numpy()) ** 2).mean(), rel=1e-4)
    assert dropped == pytest.approx(100 * (1 - kept / sum(v.size for v in w.values())))
    assert 0 < dropped < 100
    assert noisy != boston_ard._scores(run, data, data, 1)[0], "a draw has the noise of the weights"


@pytest.mark.more
def test_the_job_runs(tmp_path: Path, data_folder: Path) -> None:
    words = ["run", "boston-ard", "--splits", "2", "--steps", "2", "--jobs", "1", "--out", str(tmp_path), "--quiet"]
    assert cli.main(words) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["columns"]) == list(results["published"]) == list(boston_ard.FACTORS)
    assert all(len(values) == 2 for row in results["columns"].values() for values in row.values())
    assert results["published"]["reg 1"] == {"MSE train": 33.682, "MSE test": 30.231, "dropped %": 99.29}
    train, test = boston_ard._split(1)
    assert (len(train), len(test)) == (404, 102), "four fifths of 506"
