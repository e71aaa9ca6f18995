"""The benchmark of prediction, at a small size: it checks distributions, times every form and writes what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pyrodrop.analysis.benchmarks import calibration, potential, predict, reading, sampling


@pytest.mark.more
def test_the_benchmark_of_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [predict.Case((3, 8, 7, 2), 30, 4, 0.5), predict.Case((3, 8, 1), 30, 4, 0.5)]
    predict.main(["--rounds", "2", "--out", str(tmp_path / "out.json")], cases, masks=2000)
    record = json.loads((tmp_path / "out.json").read_text())
    assert [list(part["ratio"]) for part in record["prediction"]] == [
        ["loop", "draws", "moments", "joint=False"],
        ["loop", "draws", "moments", "joint=False", "analytic"],
    ]
    for part in record["prediction"]:
        seconds = part["seconds"]
        assert part["ratio"] == pytest.approx({name: each / seconds["loop"] for name, each in seconds.items()})
        assert all(0 < deviation < predict.WITHIN for deviation in part["largest_deviation_se"].values())
    assert "3-8-7-2, 30 points, 4 passes" in capsys.readouterr().out


def test_a_variant_with_another_distribution_is_not_timed() -> None:
    case = predict.Case((3, 8, 1), 30, 4, 0.5)
    fit, loop = predict.twins(case)
    with torch.no_grad():
        loop[0].weight.mul_(1.5)  # type: ignore[operator]
    with pytest.raises(SystemExit, match="draws of 3-8-1 differs from the loop's distribution"):
        predict.check_distribution("draws", fit, loop, torch.randn(20, 3), case)


def test_the_benchmark_of_networks_that_were_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    cases = [
        reading.Case("small", lambda: small, lambda: torch.randn(5, 3)),
        reading.Case("absent", lambda: small, lambda: torch.randn(5, 3), needs="package_that_nobody_has"),
    ]
    reading.main(["--rounds", "1", "--passes", "7", "--out", str(tmp_path / "out.json")], cases)
    (row,) = json.loads((tmp_path / "out.json").read_text())["reading"]
    assert (row["network"], row["passes"]) == ("small", 7)
    assert row["ratio"] == pytest.approx(row["seconds"]["predict"] / row["seconds"]["loop"])
    assert "small" in capsys.readouterr().out


def test_the_benchmark_of_potentials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, start = potential.variants(3, ("traced",))
    potential.timed(found, start, 2, 1, tmp_path / "out.json")
    record = json.loads((tmp_path / "out.json").read_text())
    microseconds = record["microseconds"]
    assert list(microseconds) == ["Pyro", "Pyro, jitted", "ours, traced", "ours, traced, without autograd"]
    assert record["times as fast"] == pytest.approx({n: microseconds["Pyro"] / us for n, us in microseconds.items()})
    assert "times as fast as Pyro" in capsys.readouterr().out
    pyros = found["Pyro"]
    found["wrong"] = lambda values: (pyros(values)[0], pyros(values)[1] + 1)
    with pytest.raises(SystemExit, match="wrong differs from Pyro in energy or gradient"):
        potential.check(found, start)


def test_the_benchmark_of_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibration.main(3, 2, 4, tmp_path / "out.json")
    record = json.loads((tmp_path / "out.json").read_text())
    assert {name: record[name] for name in ("count", "steps", "num_draws")} == {"count": 3, "steps": 2, "num_draws": 4}
    assert 0 < record["cpu_seconds"] < 60
    assert record["times_as_fast"] == pytest.approx(3 * record["one_fit_alone_cpu_seconds"] / record["cpu_seconds"])
    assert "3 data sets x 2 steps" in capsys.readouterr().out


def test_what_was_measured_of_calibration_meets_the_target() -> None:
    """1,000 data sets x 2,000 steps of 13-50-1 within 100 s of one core."""
    path = Path(predict.__file__).resolve().parent / "results" / "calibration-cpu.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["count"], record["steps"]) == (1000, 2000)
    assert record["cpu_seconds"] < 100


def test_the_benchmark_of_sampling_counts_effective_samples() -> None:
    f = np.random.default_rng(0).standard_normal((8, 500, 3))
    row = sampling.row(f, seconds=2.0, before=6.0, steps=10_000)
    assert row["effective"] == pytest.approx(4000, rel=0.1)  # independent draws
    assert row["median per s"] == row["effective"] / 2
    assert row["median, tuning too"] == row["effective"] / 8
    assert row["us per step"] == 200
    assert row["R-hat"] == pytest.approx(1, abs=0.01)


def test_the_benchmark_of_sampling_sees_another_posterior() -> None:
    random = np.random.default_rng(0)
    one, other = random.standard_normal((2, 8, 500, 3))
    assert max(sampling.agreement(one, other).values()) < 4
    assert sampling.agreement(one, other + 0.2)["mean"] > 4
    assert sampling.agreement(one, other * 1.2)["sd"] > 4


def test_the_benchmark_of_sampling_has_one_model(data_folder: Path) -> None:
    pytest.importorskip("numpyro", reason="needs NumPyro: see analysis/benchmarks/peers.txt")
    for make in sampling.CASES.values():
        case = make()
        sampling.same_energy(case)
