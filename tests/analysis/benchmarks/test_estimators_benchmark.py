"""The regressor on airfoil: the stored numbers that the page shows, and what is measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyrodrop.analysis.benchmarks import estimators

STORED = Path(estimators.__file__).with_name("results") / "estimators-cpu.json"


def test_the_stored_rows_are_those_of_the_script() -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))["airfoil"]
    assert set(stored) == {*estimators.HOW, estimators.XGBOOST}
    assert all(len(splits) == estimators.SPLITS for splits in stored.values())


def test_only_what_is_asked_for_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[str, int]] = []

    def scores(split: int, how: str) -> dict[str, float]:
        measured.append((how, split))
        return {"rmse": float(len(measured))}

    monkeypatch.setattr(estimators, "scores", scores)
    file = tmp_path / "estimators.json"
    estimators.main([str(file)])
    assert [how for how, split in measured if split == 0][: len(estimators.HOW)] == list(estimators.HOW)
    first = json.loads(file.read_text())["airfoil"]
    before = len(measured)
    estimators.main([str(file), "--again", "default"])
    assert measured[before:] == [("default", split) for split in range(estimators.SPLITS)]
    again = json.loads(file.read_text())["airfoil"]
    assert [row["rmse"] for row in again["default"]] == [before + 1 + k for k in range(estimators.SPLITS)]
    assert {how: again[how] for how in again if how != "default"} == {
        how: first[how] for how in first if how != "default"
    }


def test_the_table_has_the_split_of_bde_and_the_mean_of_the_others() -> None:
    """RMSE .1, .2 and .4 in the others: their mean is .3 and its standard error .1."""
    splits = [{"rmse": value, "density": 1.0, "density_of_moments": 0.5, "seconds": 7.0} for value in (0.1, 0.2, 0.4)]
    text = estimators.text({"default": splits})
    assert "| default | bde's | 0.100 | -1.000 | -0.500 | 7 |" in text
    assert "| default | 2 more | 0.300 ± 0.100 | -1.000 ± 0.000 | -0.500 ± 0.000 | 7 |" in text
