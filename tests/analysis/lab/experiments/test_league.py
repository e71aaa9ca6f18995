"""The league: rows by our own arithmetic, files of every kind, and the page from what is stored."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch

import pyrodrop
from pyrodrop import guides, zoo
from pyrodrop.analysis.lab.experiments.league import measure, rows, submission
from pyrodrop.analysis.lab.experiments.references import PROBLEMS

if not os.environ.get("PYRODROP_DATA"):  # the exact posterior that all tests are of is one of data that are downloaded
    pytest.skip("needs the data sets: set PYRODROP_DATA to a folder that holds them", allow_module_level=True)

ROOT = Path(__file__).parents[4]
TRAIN, TEST = PROBLEMS["foong"].data()
EXACT: Any = zoo.load("exact/foong", device="cpu")


def prior(size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Draws of the prior."""
    random, scales = np.random.default_rng(0), dict(enumerate(PROBLEMS["foong"].scales))
    return {
        name: random.normal(0, scales[int(name[7])] if name.endswith("weight") else 1.0, (size, *value.shape[2:]))
        for name, value in EXACT.samples.items()
    }


PRIOR = prior(40)
BY_NAME = {f"foong.{name}": value for name, value in PRIOR.items()}


def f_of(w: dict[str, np.ndarray[Any, Any]], x: Any) -> np.ndarray[Any, Any]:
    """The network written out, ``[draws, points]``."""
    h = np.maximum(x.double().numpy() @ w["layers.0.weight"].swapaxes(-1, -2) + w["layers.0.bias"][:, None], 0)
    return (h @ w["layers.1.weight"].swapaxes(-1, -2) + w["layers.1.bias"][:, None])[..., 0]  # type: ignore[no-any-return]


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def of(file: Path, **options: Any) -> Any:
    return submission.submit(file, **options)["problems"]["foong"]


def same(row: rows.Row, other: rows.Row) -> None:
    known = {column: value for column, value in row.items() if value is not None}
    assert known == pytest.approx({column: value for column, value in other.items() if value is not None}, rel=1e-5)


def test_a_row_is_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = of(npz(tmp_path, **BY_NAME))
    draws = {name: value.double().flatten(0, 1).numpy() for name, value in EXACT.samples.items()}
    exact, f = f_of(draws, TEST.x), f_of(PRIOR, TEST.x)
    w2 = np.sqrt(((np.repeat(np.sort(f, 0), 16, 0) - np.sort(exact, 0)) ** 2).mean(0)).mean()  # each of ours is 16
    row = result["row"]
    assert row["wasserstein"] == pytest.approx(w2 / exact.std(0).mean(), rel=1e-4)
    assert row["spread"] == pytest.approx(np.median(f.std(0, ddof=1) / exact.std(0, ddof=1)), rel=1e-3)
    x = TRAIN.x.double().numpy()
    far = x.mean(0) + 3 * (x - x.mean(0))
    nearest = (((far[:, None] - x) / x.std(0, ddof=1)) ** 2).sum(-1).min(1)
    away = torch.tensor(far[np.argsort(-nearest)[: len(x) // 2]])
    spreads = [f_of(w, away).std(0, ddof=1) for w in (PRIOR, draws)]
    assert row["away"] == pytest.approx(np.quantile(spreads[0] / spreads[1], 0.5), rel=1e-3)
    nearer = sum(row["wasserstein"] > other["wasserstein"] for other in rows.league("foong").values())  # type: ignore[operator]
    assert (result["place"], result["of"], result["draws"]) == (nearer + 1, len(rows.league("foong")) + 1, 40)
    shown = capsys.readouterr().out
    assert "> mine" in shown
    assert (
        f"mine is number {nearer + 1} of {result['of']} on foong, by 40 draws, which is fewer than the 640 of" in shown
    )


def test_functions_have_the_row_of_their_weights_but_for_what_is_elsewhere(tmp_path: Path) -> None:
    want = of(npz(tmp_path, **PRIOR), problem="foong")["row"]
    got = of(npz(tmp_path, f=f_of(PRIOR, TEST.x)[..., None]), problem="exact/foong", name="a method")["row"]
    same(got, want | {"away": None})


@pytest.mark.more
@pytest.mark.parametrize("name", list(PROBLEMS))
def test_the_exact_draws_are_first(name: str, tmp_path: Path) -> None:
    samples: Any = zoo.load(f"exact/{name}").samples  # type: ignore[union-attr]
    file = npz(tmp_path, **{f"{name}.{site}": value.numpy() for site, value in samples.items()})
    result = submission.submit(file, out=tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == result
    of_problem = result["problems"][name]
    assert of_problem["place"] == 1
    assert of_problem["row"]["wasserstein"] < 1e-3
    assert of_problem["row"]["away"] == pytest.approx(1, abs=1e-3)
    assert of_problem["row"]["to_reference"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "has no arrays"),
        ({"fong.f": np.zeros(3)}, "names must begin with a problem, co2, mnist.*got 'fong.f'"),
        ({"foong.g": np.zeros(3)}, "must have of foong f, or layers.0.bias.*; it has g"),
        ({"foong.f": np.zeros((40, 201))}, r"f must be \[draws, 100, 1\] or \[chains, draws, 100, 1\]; got shape \[40, 201"),
        ({"foong.f": np.zeros((0, 100, 1))}, "got shape"),
        ({"foong.f": np.full((3, 100, 1), np.nan)}, "f must be finite; got 300 NaN or infinite"),
        ({"foong.f": np.full((3, 100, 1), 1e200)}, "draws of foong that are too large"),
        ({"foong.f": np.full((3, 100, 1), "x")}, "f must be a tensor.*dtype <U1"),
        ({"foong.f": np.array([None])}, "is no .npz file with arrays: Object arrays cannot be loaded"),
        ({"foong.layers.0.weight": PRIOR["layers.0.weight"]}, "it has layers.0.weight"),
        ({**BY_NAME, "foong.layers.1.bias": np.zeros((39, 1))}, "as many draws"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        of(npz(tmp_path, **arrays))


def test_damaged_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.npz").write_bytes(b"PK\x03\x04 no such thing")
    with pytest.raises(ValueError, match="mine.npz is no .npz file with arrays"):
        of(tmp_path / "mine.npz")
    with pytest.raises(ValueError, match="no exact posterior is called 'fong'"):
        of(tmp_path / "mine.npz", problem="fong")
    file = npz(tmp_path, f=np.zeros((9, 100, 1)))
    monkeypatch.setattr(submission, "LARGEST", 1000)
    with pytest.raises(ValueError, match="must be at most 1,000 bytes when it is read; it is 7,"):
        of(file, problem="foong")


# What is stored


def test_what_the_page_says_of_the_league() -> None:
    leagues = {name: rows.league(name) for name in PROBLEMS}
    w2: dict[str, dict[str, float]] = {
        name: {method: row["wasserstein"] or 0.0 for method, row in each.items()} for name, each in leagues.items()
    }
    nearer = [each[f"ensemble {m}"] < each[m] for each in w2.values() for m in each if f"ensemble {m}" in each]
    text = (ROOT / "docs" / "league.md").read_text()
    assert f"{sum(nearer)} of {len(nearer)} cells" in text
    chains = {m for m in w2["co2"] if m.startswith(("blackjax, ", "numpyro, NUTS", "pyrodrop, sample"))}
    for name in set(PROBLEMS) - {"mnist"}:
        assert min(w2[name].keys() - chains, key=lambda method: w2[name][method]) == "pyrodrop, exact last layer"
    for name in ("co2", "foong"):
        for method in ("mean field", "numpyro, AutoNormal"):
            assert 0.89 < w2[name][method] / w2[name]["point"] < 1.05
    counts = {name: rows.Referee(name).draws for name in ("co2", "mnist")}
    assert f"{counts['co2']} on co2 and foong" in text
    assert f"{counts['mnist']} on mnist" in text


@pytest.mark.more
def test_a_league_is_measured_from_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyro.set_rng_seed(0)
    model = PROBLEMS["foong"].model()
    fits = pyrodrop.fit_replicates(
        model, guides.MeanField(model), TRAIN, count=2, steps=1, engine="traced", progress=False
    )
    (tmp_path / "foong").mkdir()
    fits.save(tmp_path / "foong" / "mean-field.safetensors")
    monkeypatch.setattr(measure, "POSTERIORS", {"mean field": guides.MeanField})
    monkeypatch.setattr(measure, "TAGS", ["mean-field"])
    made = measure.measured("foong", tmp_path)
    referee = rows.Referee("foong")
    single = [referee.row("m", fit.predict(TEST.x, 640)) for fit in fits]
    w2 = [row["wasserstein"] for row in single]
    assert made["mean field"]["wasserstein"] == pytest.approx(np.mean(w2), rel=1e-5)
    assert made["mean field"]["wasserstein se"] == pytest.approx(np.std(w2, ddof=1) / 2**0.5, rel=1e-4)
    assert made["ensemble mean field"]["wasserstein se"] is None
    assert made["ensemble mean field"]["wasserstein"] == pytest.approx(
        referee.row("m", fits.predict(TEST.x, 640))["wasserstein"], rel=1e-5
    )
    monkeypatch.setenv("PYRODROP_ZOO", str(tmp_path))
    kept = zoo.load("exact/foong.mean-field")
    assert isinstance(kept, pyrodrop.Fit)
    assert torch.equal(kept.predict(TEST.x, 5).f, fits[0].predict(TEST.x, 5).f)
