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
import xarray as xr

import pyrodrop
from pyrodrop import cli, guides, likelihoods, models, priors
from pyrodrop.analysis.lab.experiments.co2 import experiment as co2
from pyrodrop.analysis.lab.experiments.co2 import learned
from pyrodrop.analysis.lab.experiments.co2.models import MEANINGS, print_models
from pyrodrop.analysis.zoo.averaged import averaged, last_units
from pyrodrop.data import Dataset, mauna_loa


def _run(out: Path, *options: str, num_threads: int = 1) -> Path:
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    assert cli.main(["run", "co2", "--out", str(out), "--quiet", *options]) == 0
    torch.set_num_threads(threads)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a short run: what is written and how it is read, not what the figure shows."""
    return _run(tmp_path_factory.mktemp("co2"), "--steps", "20")


@pytest.fixture(scope="module")
def whole_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the job as `make co2` runs it."""
    out = _run(tmp_path_factory.mktemp("whole"), num_threads=2)
    return json.loads((out / "results.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())  # type: ignore[no-any-return]


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


def test_every_row_is_explained_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Made-up numbers, each another one, and none where the later months are not known."""
    assert co2.PANELS.keys() == MEANINGS.keys()
    settings = {"data": "mauna-loa", "preset": "default", "seed": 0, "device": "cpu"}
    for known in (True, False):
        rows: dict[str, Any] = {
            name: {"elbo_convention": None, "rmse": 1.25 + n if known else None, "coverage_95": 0.5 if known else None}
            | {"sd_last_train": 100.5 + n, "sd_far": 200.5 + n}
            for n, name in enumerate(co2.PANELS)
        }
        print_models(rows, "ppm", settings)
        said = " ".join(capsys.readouterr().out.partition("What each row is")[2].split())
        error = "1.25" if known else "-"
        assert f"no uncertainty, sd 200.50 far from all data, while it is off by {error} on later months." in said
        assert "returns to its prior: sd 101.50 at the last month and 201.50 far out." in said
        assert f"Of the later months {'50%' if known else '-'} lie in its 95 % intervals" in said


@pytest.mark.more
def test_draws_can_be_read_back(folder: Path, results: dict[str, Any]) -> None:
    series = mauna_loa()
    with xr.open_datatree(folder / "draws.nc", engine="h5netcdf") as tree:
        assert tree.attrs["y_unit"] == "ppm"
        assert tree["observed_data"]["y"].shape == (272,)
        for name, row in results["models"].items():
            group = tree[f"{name}/predictions"]
            assert group["f"].dims == ("chain", "draw", "obs_id")
            assert group["f"].shape == group["y"].shape == (1, co2.DRAWS, 249)
            assert group["f"].attrs["units"] == "ppm"
            error = group["f"].mean(("chain", "draw")).values - series.test.y[:, 0].numpy()
            of_the_mean = float((group["f"].var(("chain", "draw")).mean() / co2.DRAWS) ** 0.5)  # its standard error
            assert float((error**2).mean() ** 0.5) == pytest.approx(row["rmse"], rel=0.05, abs=4 * of_the_mean)
