"""The UCI table: protocol, units, penalties, and what is stored of a cell."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm

import pyrodrop
from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.experiments.uci import cell as uci_cell
from pyrodrop.analysis.lab.experiments.uci.cell import Cell, cells, divided, run_cell, score
from pyrodrop.analysis.lab.experiments.uci.columns import COLUMNS, POSTERIORS, Part, Plan
from pyrodrop.analysis.lab.experiments.uci.protocol import PROTOCOLS, RATES, SETTINGS, Point
from pyrodrop.analysis.lab.experiments.uci.table import (
    paired,
    rows_of,
    z_score,
)
from pyrodrop.analysis.reports.score_table import mean_and_error
from pyrodrop.data import uci
from pyrodrop.data.files import FILES
from pyrodrop.data.published import UCI
from pyrodrop.prediction.draws import drawn
from pyrodrop.training.elbo import elbo_terms

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
CPU = torch.device("cpu")
PLAN = Plan(3, 128, (50,), "grid", "released", 7, CPU)
SEARCH = Cell("yacht", "bernoulli", "gal2018", "auto", "released", 2, 0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, data_folder: Path) -> None:
    """Protocols of two epochs and 20 draws."""
    for name, protocol in list(PROTOCOLS.items()):
        monkeypatch.setitem(PROTOCOLS, name, replace(protocol, factor=1, draws=20))
    monkeypatch.setitem(SETTINGS, "yacht", SETTINGS["yacht"]._replace(epochs=2))


@pytest.mark.parametrize("name", UCI)
def test_the_grid_is_that_of_the_published_files(name: str, data_folder: Path) -> None:
    folder = (data_folder / FILES[name].place).parent
    read = {f: np.loadtxt(folder / f"{f}.txt") for f in ("dropout_rates", "tau_values", "n_epochs", "n_hidden")}
    assert list(RATES) == read["dropout_rates"].tolist()
    assert list(SETTINGS[name].precisions) == read["tau_values"].tolist()
    assert (SETTINGS[name].epochs, SETTINGS[name].hidden) == (read["n_epochs"], read["n_hidden"])
    points = PROTOCOLS["gal2018"].points(name)
    assert len(points) == 12
    assert {point.length_scale for point in points} == {0.01}
    assert PROTOCOLS["gal2018"].epochs(name) == (2000 if name == "protein" else 4000)


def test_the_last_fifth_of_the_training_rows_validates(data_folder: Path) -> None:
    """As the released code divides: the first int(.8 n) train, and standardise."""
    table = uci("boston")
    train, held_out = divided(table, 4)
    raw = np.loadtxt(data_folder / "uci" / "bostonHousing" / "data.txt")[table.rows[4][0].numpy()]
    count = int(0.8 * len(raw))
    np.testing.assert_allclose(train.y.numpy(), raw[:count, 13:], rtol=1e-6)
    np.testing.assert_allclose(held_out.x.numpy(), raw[count:, :13], rtol=1e-6)
    assert float(train.targets.scale) == pytest.approx(raw[:count, 13].std(), rel=1e-6)  # type: ignore[union-attr]
    assert held_out.targets is train.targets


@pytest.mark.parametrize("penalty", ["released", "paper"])
def test_the_penalty_is_the_released_codes_or_the_papers(penalty: Any, data_folder: Path, float64: None) -> None:
    """Gradients of the divergence, against the penalties written out for Keras' weight p M."""
    data, point = uci("boston")[0].train, Point(0.15, 0.1, 0.5)
    model, guide = COLUMNS["bernoulli"].build(data, replace(PLAN, penalty=penalty), point, 0)
    model.standardize(data)
    kl = elbo_terms(model, guide, data.x, data.y).kl
    ours = torch.autograd.grad(kl, [guide.loc[name] for name in guide.sites])  # type: ignore[attr-defined]
    n, s, p, length, tau = len(data), float(data.targets.scale), 0.9, 0.5, 0.15  # type: ignore[union-attr]
    weights = [guide.loc[name].detach().requires_grad_() for name in guide.sites]  # type: ignore[attr-defined]
    if penalty == "released":
        loss = n * tau * s**2 / 2 * sum(length**2 * p / (2 * n * tau) * (p * m).square().sum() for m in weights)
    else:
        loss = n * tau * sum(p * length**2 / (2 * n * tau) * m.square().sum() for m in weights)
    for mine, theirs in zip(ours, torch.autograd.grad(loss, weights), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)
    assert model.weight_sites().keys() == {"layers.0.weight", "layers.1.weight"}, "biases have no prior"


def test_the_network_starts_as_keras_starts_it(data_folder: Path) -> None:
    """Glorot & Bengio's uniform distribution for p M, and zeros."""
    data = uci("boston")[0].train
    model, guide = COLUMNS["bernoulli"].build(data, replace(PLAN, hidden=(2000,)), Point(0.1, 0.1, 0.01), 0)
    first = 0.9 * guide.loc["layers.0.weight"].detach()  # type: ignore[attr-defined]
    bound = math.sqrt(6 / (13 + 2000))
    assert float(first.abs().max()) == pytest.approx(bound, rel=1e-3)
    assert float(first.square().mean()) == pytest.approx(bound**2 / 3, rel=0.03)
    assert float(first.mean()) == pytest.approx(0, abs=4 * bound / math.sqrt(3 * first.numel()))
    assert all(bool((bias == 0).all()) for bias in model.parameters())


def test_tau_is_in_raw_units(data_folder: Path) -> None:
    """RMSE and log density from the weights alone, in float64 by numpy and scipy, for y in its own units."""
    split = uci("concrete")[0]
    (fit,) = COLUMNS["bernoulli"].predictors([Part(split.train, Point(0.05, 0.05, 0.01))], PLAN, 0, False)
    assert isinstance(fit, pyrodrop.Fit)
    ours = score(fit, split.test, 200, seed=11)
    torch.manual_seed(11)
    (block,) = drawn(fit.model, fit.guide, split.test.x[:1], 200, torch.device("cpu"))
    loc = {name: fit.guide.loc[name].detach() for name in block.noise}  # type: ignore[attr-defined]
    weights = {name: loc[name] * noise[:, None] for name, noise in block.noise.items()}  # columns kept or dropped
    bias = [fit.model.free[f"layers.{i}.bias"].detach().double().numpy() for i in (0, 1)]  # type: ignore[attr-defined]
    raw_x, raw_y = split.train.x.double().numpy(), split.train.y.double().numpy()
    x = (split.test.x.double().numpy() - raw_x.mean(0)) / raw_x.std(0)
    first, second = (weights[f"layers.{i}.weight"].double().numpy() for i in (0, 1))
    hidden = np.maximum(np.einsum("thq,nq->tnh", first, x) + bias[0], 0)
    f = (np.einsum("toh,tnh->tno", second, hidden) + bias[1]) * raw_y.std() + raw_y.mean()
    y = split.test.y.double().numpy()
    densities = (
        logsumexp(-0.5 * 0.05 * (y - f[..., :]) ** 2, axis=0) - math.log(200) + 0.5 * math.log(0.05 / (2 * math.pi))
    )
    rows = np.arange(len(y))
    assert ours.rmse == pytest.approx(np.sqrt(((f.mean(0) - y) ** 2).mean()), rel=1e-5)
    assert ours.rmse_of_one_pass == pytest.approx(np.sqrt(((f[rows, rows] - y) ** 2).mean()), rel=1e-5)
    assert ours.log_density == pytest.approx(densities.mean(), rel=1e-5)


@pytest.mark.parametrize("guide", COLUMNS)
def test_every_column_has_an_elbo(guide: str, data_folder: Path) -> None:
    """With each kind of noise; a learned precision has a learning rate of its own."""
    column, data = COLUMNS[guide], uci("yacht")[0].train
    for kind, outputs in (("grid", 1), ("learned", 1), ("heteroscedastic", 2)):
        model, posterior = column.build(data, replace(PLAN, precision=kind), Point(0.5, 0.1, 0.01), 0)
        model.standardize(data)
        terms = elbo_terms(model, posterior, data.x, data.y)
        assert bool(torch.isfinite(sum(terms)))
        assert model.outputs(posterior.draw(3), data.x).shape == (3, len(data), outputs)
    assert column.rate_of("likelihood.precision") == 10 * column.rate_of("loc.layers.0.weight")


@pytest.mark.more
@pytest.mark.parametrize("guide", ["gp", pytest.param("nngp", marks=pytest.mark.slow)])
def test_gaussian_processes_are_columns(guide: str, tmp_path: Path, data_folder: Path) -> None:
    """Scores against the closed form of their own Gaussian distribution; no grid, and no other noise than their own."""
    cell = replace(SEARCH, guide=guide, splits=1)
    [row] = run_cell(cell, tmp_path, CPU, False)["rows"]
    assert "validation 0" not in row
    split = uci("yacht")[0]
    (process,) = POSTERIORS[guide].predictors([Part(split.train, cell.points()[0])], cell.plan(CPU), 100_000, False)
    distribution = process.predict(split.test.x, 1).distribution  # type: ignore[union-attr]
    mean, sd = distribution.mean[0].numpy(), distribution.variance[0].sqrt().numpy()
    y = split.test.y.double().numpy()
    assert row["rmse"] == pytest.approx(np.sqrt(((y - mean) ** 2).mean()), rel=1e-5)
    assert row["log_density"] == pytest.approx(norm.logpdf(y, mean, sd).mean(), rel=1e-5)
    assert row["rmse"] < 1.5
    with pytest.raises(ValueError, match=f"precision of {guide} is auto or learned; got grid"):
        replace(cell, precision="grid").points()


def test_a_point_whose_training_fails_is_not_chosen() -> None:
    assert uci_cell._best([-3.0, -math.inf, -2.0]) == 2
    with pytest.raises(FloatingPointError, match="no point of the grid"):
        uci_cell._best([-math.inf, -math.inf])


def published(protocol: str, name: str, score: str) -> list[float]:
    """The numbers of the splits, as the file has them."""
    file = Path(__file__).parents[4] / "analysis" / "reference" / "uci" / "published" / f"{protocol}.json"
    numbers: list[float] = json.loads(file.read_text(encoding="utf-8"))["sets"][name][score]
    return numbers


PLANS = {"settings": replace(SEARCH, protocol="gal2016")}


def test_a_table_by_hand() -> None:
    """Three splits of yacht, paired with the first three published ones."""
    assert mean_and_error([1.1, 1.2, 1.3]) == pytest.approx((1.2, 0.1 / math.sqrt(3)))
    assert mean_and_error([2.0]) == (2.0, None)
    assert paired([1.0, 2.0], [0.5, 1.9, 7.0]) == pytest.approx((0.3, 0.2))
    assert z_score((0.3, 0.2)) == pytest.approx(1.5)
    assert z_score((0.3, None)) is None
    scores = {"rmse": [1.1, 1.2, 1.3], "log_density": [-1.5, -1.5, -1.5]}
    stored = {(name, "bernoulli"): scores | PLANS for name in ("yacht",)}
    apart = np.array([1.1, 1.2, 1.3]) - published("gal2016", "yacht", "rmse")[:3]
    z = apart.mean() / (apart.std(ddof=1) / math.sqrt(3))
    assert rows_of(stored, "rmse", "gal2016")[1:] == [
        ["yacht", "1.109 ± 0.087", f"1.200 ± 0.058 ({z:+.1f})"],
    ]  # fmt: skip


def test_a_cell_is_stored_as_rows(short: None, tmp_path: Path) -> None:
    """A row per split, read again with the points of its grid."""
    cell = replace(SEARCH, precision="learned", penalty="paper")
    rows = run_cell(cell, tmp_path, CPU, False)["rows"]
    assert [row["seed"] for row in rows] == [0, 1]
    tidy.put(tmp_path / "uci.csv", rows)
    [(key, content)] = cells("gal2018", tmp_path / "uci.csv").items()
    assert key == ("yacht", "bernoulli, learned, paper")
    assert content["settings"] == replace(cell, splits=2)
    for split, row in enumerate(rows):
        values = [of_point[split] for of_point in content["validation"]]
        assert values[content["chosen"][split]] == max(values)
        assert content["log_density"][split] == pytest.approx(row["log_density"], rel=1e-6)
    assert len(content["points"]) == len(RATES) == len(content["validation"])
