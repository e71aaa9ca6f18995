"""Every job at the size of a test: it writes its results, and a second run finds what is finished and writes the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pyrodrop import cli, zoo
from pyrodrop.analysis.jobs import JOBS
from pyrodrop.analysis.lab.experiments.references.posteriors import POSTERIORS
from pyrodrop.analysis.zoo.check import _cut
from pyrodrop.data import mnist

LAB = "pyrodrop.analysis.lab.experiments"
ROTATED, LEARNING = f"{LAB}.rotated_digit.experiment", f"{LAB}.active_learning.digits"


def few_digits(*, flat: bool = False, **_: Any) -> Any:
    return _cut(mnist(flat=flat), 300, 100)


# Options, and values in place of those of modules; of co2, kingma-table1 and peers there are tests with their numbers.
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "active-learning": (
        "--labels 20 --seeds 2 --steps 2 --naval-labels 6 --naval-seeds 2 --naval-steps 2 --trained-labels 20 "
        "--trained-seeds 2 --trained-steps 2 --jobs 1",
        {f"{LEARNING}.mnist": few_digits},
    ),
    "concrete": (
        "--seeds 2 --sizes 10 --jobs 1",
        {"pyrodrop.zoo.entries.CONCRETE_WIDTH": 16, "pyrodrop.zoo.entries.CONCRETE_EPOCHS": {10: 30}},
    ),
    "critiques": ("--panels osband --preset quick --jobs 1", {}),
    "kingma-fig1a": ("--widths 12 --methods none variational-a2 --epochs 2 --digits 500 --seeds 2 --jobs 1", {}),
    "published": ("", {}),
    "references": (
        "--problems co2 --preset quick",
        {f"{LAB}.references.experiment.POSTERIORS": {name: POSTERIORS[name] for name in ("point", "MC dropout .05")}},
    ),
    "remedies": ("--sections spread --seeds 2 --preset quick --jobs 1", {}),
    "rotated-digit": (
        "--steps 3",
        {f"{ROTATED}.mnist": few_digits, f"{ROTATED}.DRAWS": 4, f"{ROTATED}.SHOWN": 10, f"{ROTATED}.SEARCHED": 1},
    ),
    "sbc": ("--count 60 --steps 5 --posteriors exact mc-dropout --jobs 1", {}),
    "solar": ("--seeds 2 --steps 3", {}),
    "sparse": ("--net lenet-300-100 --epochs 21 --digits 300", {f"{LAB}.sparse.experiment.mnist": few_digits}),
    "uci": ("--data yacht --splits 2 --guides bernoulli --protocol quick --jobs 1", {}),
}


def test_every_job_has_a_test() -> None:
    assert SMALL.keys() | {"co2", "kingma-table1", "peers"} == JOBS.keys()


def mark(name: str) -> Any:
    slow = name in ("active-learning", "critiques", "remedies", "sparse")
    return pytest.param(name, marks=[] if name == "published" else pytest.mark.slow if slow else pytest.mark.more)


@pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
@pytest.mark.parametrize("name", [mark(name) for name in SMALL])
def test_a_job_in_little(name: str, tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, patches = SMALL[name]
    for target, value in patches.items():
        monkeypatch.setattr(target, value)
    monkeypatch.setitem(zoo.ENTRIES, "rnn/solar", dataclasses.replace(zoo.entry("rnn/solar"), draws=20))
    words = ["run", name, *options.split(), "--out", str(tmp_path / "run"), "--quiet"]

    def results() -> dict[str, Any]:
        assert cli.main(words) == 0
        files = set((tmp_path / "run").glob("*.json")) - {tmp_path / "run" / "run.json"}
        contents = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
        measured_again = {"seconds": 0, "compressed": 0, "settings": 0}
        return {name: content | measured_again for name, content in contents.items()}

    first = results()
    assert "co2.json" in first if name == "references" else "results.json" in first
    assert results() == first
