"""The main job, as it is run by default: its results have the statements of figure 2."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import cli, guides, likelihoods, models, priors
from pyrodrop.analysis.lab.experiments.co2 import learned
from pyrodrop.analysis.zoo.averaged import averaged, last_units
from pyrodrop.data import Dataset, mauna_loa


def _run(out: Path, *options: str, num_threads: int = 1) -> Path:
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    assert cli.main(["run", "co2", "--out", str(out), "--quiet", *options]) == 0
    torch.set_num_threads(threads)
    return out


@pytest.fixture(scope="module")
def whole_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the job as `make co2` runs it."""
    out = _run(tmp_path_factory.mktemp("whole"), num_threads=2)
    return json.loads((out / "results.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_figure_2(whole_results: dict[str, Any]) -> None:
    """(a) no spread, (b) back to the prior, (c) growing, (d) bounded; TanH follows what it can of the cycle."""
    results = whole_results
    models, prior_sd = results["models"], results["settings"]["gaussian_processes"]["gp-se"]["prior_sd"]
    assert models["weight-averaging"]["sd_last_train"] == models["weight-averaging"]["sd_far"] == 0
    assert models["gp-se"]["sd_far"] == pytest.approx(prior_sd, rel=0.02)
    assert models["mc-dropout-relu"]["sd_far"] > 1.5 * models["mc-dropout-relu"]["sd_last_train"] > 0
    tanh = [models[f"mc-dropout-tanh-{rate}"] for rate in ("0.1", "0.2")]
    assert all(0 < row["sd_far"] < 2 * row["sd_last_train"] for row in tanh)
    assert 0.5 < tanh[0]["sd_far"] / tanh[1]["sd_far"] < 2
    assert all(0.9 < row["yearly_cycle"] / row["yearly_cycle_possible"] < 1.1 for row in tanh)
    assert models["mc-dropout-relu"]["yearly_cycle_possible"] < 0.1  # which is why its curve is the trend


def test_share_of_the_yearly_cycle() -> None:
    """Of a known share of a known cycle on any parabola."""
    series = mauna_loa()
    t = series.train.x.double()
    cycle = torch.sin(2 * torch.pi * t) + 0.3 * torch.cos(4 * torch.pi * t)
    made = dataclasses.replace(series, train=Dataset(t, 5 * cycle + t**2 / 100, inputs=series.train.inputs))
    assert learned.cycle_share(made, 2 * cycle - 3 * t) == pytest.approx(0.4, rel=1e-6)
    assert learned.rmse(made, made.train.y + 2) == pytest.approx(2)


def test_what_a_layer_can_carry_is_the_least_squares_fit_over_all_masks() -> None:
    """Every mask of three units with its probability, as rows of one least-squares problem."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    y, rate = torch.randn(12, 1, generator=generator, dtype=torch.float64), 0.3
    rows, targets = [], []
    for mask in itertools.product((0.0, 1.0), repeat=3):
        root = math.prod(1 - rate if kept else rate for kept in mask) ** 0.5
        masked = features * torch.tensor(mask, dtype=torch.float64) / (1 - rate)
        rows.append(root * torch.cat([masked, torch.ones(12, 1)], 1))
        targets.append(root * y)
    best = torch.linalg.lstsq(torch.cat(rows), torch.cat(targets)).solution
    torch.testing.assert_close(learned.carried(features, y, rate), features @ best[:3] + best[3])


def test_the_last_units_times_the_last_weight_are_the_mean_of_weight_averaging() -> None:
    train = mauna_loa().train
    model = models.MLP([1, 5, 4, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    average = averaged(pyrodrop.fit(model, guides.BernoulliDropout(model, 0.2), train, steps=1))
    bias, weight = average.model.free["layers.2.bias"], average.guide.mean()["layers.2.weight"]
    mean = train.targets.inverse(last_units(average, train.x) @ weight.T + bias)
    torch.testing.assert_close(mean, average.predict(train.x, 1).mean)


@pytest.mark.slow
def test_numbers_are_in_the_range_they_should_be(whole_results: dict[str, Any]) -> None:
    """The strong GP predicts within a few ppm; a network that follows the trend beats one that flattens out."""
    models = whole_results["models"]
    assert models["gp-strong"]["rmse"] < 3
    assert models["mc-dropout-relu"]["rmse"] < 6
    assert models["mc-dropout-relu"]["log_density"] > models["weight-averaging"]["log_density"]
    assert (
        models["gp-strong"]["log_density"] > models["mc-dropout-relu"]["log_density"] > models["gp-se"]["log_density"]
    )
