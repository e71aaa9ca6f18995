"""Every job at the size of a test: it writes its results, and a second run finds what is finished and writes the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pyrodrop import cli
from pyrodrop.analysis.jobs import JOBS
from pyrodrop.data import mnist

LAB = "pyrodrop.analysis.lab.experiments"
ROTATED = f"{LAB}.rotated_digit.experiment"


def few_digits(*, flat: bool = False, **_: Any) -> Any:
    split = mnist(flat=flat)
    return dataclasses.replace(split, train=split.train.first(300), test=split.test.first(100))


# Options, and values in place of those of modules; of co2, kingma-table1 and peers there are tests with their numbers.
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "concrete": (
        "--seeds 2 --sizes 10 --jobs 1",
        {"pyrodrop.zoo.entries.CONCRETE_WIDTH": 16, "pyrodrop.zoo.entries.CONCRETE_EPOCHS": {10: 30}},
    ),
    "kingma-fig1a": ("--widths 12 --methods none variational-a2 --epochs 2 --digits 500 --seeds 2 --jobs 1", {}),
    "published": ("", {}),
    "references": ("--problems co2 --preset quick", {}),
    "rotated-digit": (
        "--steps 3",
        {f"{ROTATED}.mnist": few_digits, f"{ROTATED}.DRAWS": 4, f"{ROTATED}.SHOWN": 10, f"{ROTATED}.SEARCHED": 1},
    ),
    "sparse": ("--net lenet-300-100 --epochs 21 --digits 300", {f"{LAB}.sparse.experiment.mnist": few_digits}),
    "uci": ("--data yacht --splits 2 --guides bernoulli --protocol quick --jobs 1", {}),
}


def test_every_job_has_a_test() -> None:
    assert SMALL.keys() | {"co2", "kingma-table1", "peers"} == JOBS.keys()


def mark(name: str) -> Any:
    slow = name == "sparse"
    return pytest.param(name, marks=[] if name == "published" else pytest.mark.slow if slow else pytest.mark.more)


@pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
@pytest.mark.parametrize("name", [mark(name) for name in SMALL])
def test_a_job_in_little(name: str, tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, patches = SMALL[name]
    for target, value in patches.items():
        monkeypatch.setattr(target, value)
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
