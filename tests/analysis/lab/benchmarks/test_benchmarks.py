"""The frame of benchmarks, and what single ones compute."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop.analysis.jobs import JOBS
from pyrodrop.analysis.lab import ROOT, tidy
from pyrodrop.analysis.lab.benchmarks import replicates, sampling_programs, steps, timing
from pyrodrop.analysis.lab.benchmarks.timing import Bench, command, elsewhere, moves_all, shown
from pyrodrop.analysis.lab.peers import networks
from pyrodrop.analysis.lab.programs.posteriors import POSTERIORS, PYRO, of_network


class Weight:
    """A parameter that a call moves, or leaves as it is."""

    def __init__(self, step: float) -> None:
        self.value, self.step = torch.zeros(2), step

    def make(self) -> Any:
        return (lambda: self.value.add_(self.step)), [self.value]


def test_a_bench_measures_rows_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds by step, an error beside them, seeds with their means, and what is in the file is not measured again."""
    monkeypatch.setattr(timing, "interleaved", lambda calls, *_: dict.fromkeys(calls, 2.0))
    variants = {"first": Weight(1.0), "still": Weight(0.0)}
    calls: list[str] = []

    def makers(problem: int, device: str) -> Any:
        calls.append(f"{problem} on {device}")
        return {name: weight.make for name, weight in variants.items()}

    bench = Bench("little", {"one": 1, "two": 2}, makers, failures=True, per=lambda problem, *_: 1e6 * problem)
    out = tmp_path / "out.csv"
    command(bench.run, [str(out), "--rounds", "3", "--names", "two"])
    command(bench.run, ["--out", str(out), "--rounds", "1"])
    assert calls == ["2 on cpu", "1 on cpu"]
    rows = {(row["problem"], row["method"]): row for row in tidy.read(out)}
    assert [rows[name, "first"]["seconds"] for name in ("one", "two")] == [2e6, 4e6]
    assert {row["study"] for row in rows.values()} == {"little-cpu"}
    assert "leaves 1 of 1 parameters as they are" in rows["one", "still"]["error"]
    assert {"commit", "date", "machine", "versions"} <= tidy.about(out)["made"][0].keys()
    with pytest.raises(RuntimeError, match="one, still leaves 1 of 1"):
        dataclasses.replace(bench, failures=False).measured("one", 1)
    seeds = Bench(
        "seeds", {"a": 2.0}, measure=lambda a, rounds, device: {"m": [{"score": a * k} for k in range(rounds)]}
    )
    command(seeds.run, [str(out), "--rounds", "3"])
    assert [row["score"] for row in tidy.read(out) if row["study"] == "seeds-cpu"] == [0.0, 2.0, 4.0]
    assert shown(seeds.measured("a", 3)) == {"m": {"score": 2.0, "score se": pytest.approx(2 / 3**0.5)}}
    with pytest.raises(ValueError, match="no row of seeds is called 'b'"):
        seeds.run(names=["b"])


def test_the_benchmark_of_sampling_counts_effective_draws_and_sees_another_posterior() -> None:
    """Independent draws of numbers of two sites; of a network, draws of f at points."""
    torch.manual_seed(0)
    one, other = ({"beta": torch.randn(8, 500, 3), "alpha": 2 + torch.randn(8, 500)} for _ in range(2))
    found, again = (sampling_programs.Means.of("ar", draws) for draws in (one, other))
    assert found.effective == pytest.approx(4000, rel=0.1)
    assert found.means == pytest.approx([2, 0, 0, 0], abs=0.1)  # sites by name
    assert found.errors == pytest.approx([4000**-0.5] * 4, rel=0.1)
    assert found.apart(again) < 4
    assert found.apart(sampling_programs.Means.of("ar", one | {"alpha": 0.2 + one["alpha"]})) > 4


@pytest.mark.usefixtures("data_folder")
def test_the_network_of_the_samplers_has_the_density_of_its_program() -> None:
    model, data = sampling_programs.problem_of("network, 2-50-1")
    potential = pyrodrop.potential(model, data, engine="traced")
    points = [potential.initial_params(seed) for seed in range(2)]
    draws = {name: torch.stack([point[name] for point in points])[None] for name in points[0]}
    ours = of_network(sampling_programs.sites_of_program(draws), pyrodrop.data.foong2020())["log density"][0]
    assert float(ours.diff()) == pytest.approx(float(potential(points[0]) - potential(points[1])), rel=1e-4)


@pytest.mark.parametrize("name", ["ar", pytest.param("kidscore", marks=pytest.mark.more)])
def test_a_program_of_posteriordb_has_the_means_of_posteriordb(name: str) -> None:
    program, arguments = POSTERIORS[name].to(PYRO)
    sampled = pyrodrop.sample(program, arguments, chains=16, draws=100, tune=400, engine="traced", progress=False)
    found = sampling_programs.Means.of(name, sampled.samples)
    assert found.effective > 300
    assert found.apart(sampling_programs.reference(name)) < 4


@pytest.mark.more
def test_the_networks_train() -> None:
    """All variants make steps that change every parameter, but for compiled ones."""
    name, known = "13-50-1", networks.networks()
    assert {of for of, *_ in (*replicates.CASES.values(), *steps.ROWS.values())} <= known.keys()
    network = dataclasses.replace(known[name], steps=2)
    for step, parameters in (networks.plain(network), networks.ours(network, "Bernoulli", "traced")):
        moves_all(step, parameters, name)
    loop = replicates.stacked(network, 2, "traced")
    moves_all(lambda: loop.advance(2), loop.parameters.values(), name)


def test_every_piece_of_make_gpu_starts_what_there_is() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "--file", "analysis/lab/gpu.mk"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    jobs = [match[1] for line in lines if (match := re.search(r"-m pyrodrop run ([\w-]+)", line))]
    scripts = [match[1] for line in lines if (match := re.search(r"-m (pyrodrop\.[\w.]+) --device", line))]
    assert len(jobs) + len(scripts) == len(lines) - 1 > 6
    assert set(jobs) <= JOBS.keys()
    assert all(importlib.util.find_spec(script) for script in scripts)


def test_a_function_runs_in_a_process_of_its_own() -> None:
    assert elsewhere(os.getenv, "PYRODROP_CACHE", PYRODROP_CACHE="there") == "there"
    assert elsewhere(os.getpid) != os.getpid()
