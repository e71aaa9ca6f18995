"""The published figures: the list, the rules by hand, and that the stored outcome and the page are up to date."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from pyrodrop.analysis.lab import RESULTS
from pyrodrop.analysis.lab.experiments.published import experiment
from pyrodrop.analysis.lab.experiments.published.compare import SETS, apart, measured, same
from pyrodrop.analysis.lab.experiments.published_figures import STORED, Figure, Outcome, figures
from pyrodrop.analysis.zoo.references import FOLDER
from pyrodrop.zoo.sources import SOURCES


def found(paper: str, **of: str) -> tuple[Figure, Outcome]:
    """The one figure of this paper with these words in its attributes, and its outcome."""
    rows = [figure for figure in figures() if figure.paper == paper]
    for name, words in of.items():
        rows = [figure for figure in rows if words in getattr(figure, name)]
    assert len(rows) == 1, rows
    return rows[0], rows[0].outcome


def test_the_denominators() -> None:
    """Of the stored rows, counted here: what somebody published of a method of this zoo, once."""
    with STORED.open(newline="", encoding="utf-8") as file:
        known = [
            row["status"]
            for row in csv.DictReader(file)
            if row["error"]
            and row["paper"] != "quadrature"
            and row["where"] != "Table 1"
            and row["status"] != "foreign"
        ]
    total = experiment.tally(figures())["all"]
    columns = ("figures", "of this zoo", "repeated", "with an error", "within 2 s.e.", "outside")
    assert [total[name] for name in columns] == [324, 266, 20, 134, 98, 13]
    assert [len(known), known.count("within"), known.count("outside"), known.count("missing")] == [134, 98, 13, 23]
    of_uci = [figure.outcome.status == "within" for figure in figures() if figure.data in SETS and not figure.repeated]
    page = " ".join((RESULTS / "README.md").read_text(encoding="utf-8").split())
    assert f"Of the 98 within two standard errors, {sum(of_uci)} are of MC dropout on UCI data" in page
    statuses = ("within 2 s.e.", "outside", "equal", "unequal", "no error", "missing")
    assert sum(total[status] for status in statuses) == total["of this zoo"] - total["repeated"]
    for name in total:
        assert sum(row[name] for paper, row in experiment.tally(figures()).items() if paper != "all") == total[name]


def test_the_process_of_figure_2_at_the_printed_hyperparameters(data_folder: Path) -> None:
    """Its log marginal likelihood by NumPy: not the published one, and half a digit of the length scale moves it further."""
    figure, outcome = found("quadrature", metric="-logML")
    train = SOURCES["gal2016/co2"].load()[0].train
    x, y = train.x.double().numpy(), train.y.double().numpy()[:, 0]

    def evidence(length: float) -> float:
        k = np.exp(-((x - x.T) ** 2) / (2 * length**2)) + 0.01 * np.eye(len(x))
        quadratic: float = y @ np.linalg.solve(k, y)
        return float(quadratic + np.linalg.slogdet(2 * np.pi * k)[1]) / 2

    assert outcome.status == "compared"
    assert outcome.ours[3] == pytest.approx(evidence(0.0271), abs=1e-3)
    assert abs(outcome.ours[3] - figure.value[3]) > 0.1
    assert "half a digit is .13" in outcome.reason
    assert [round(abs(evidence(length) - evidence(0.0271)), 2) for length in (0.02705, 0.02715)] == [0.13, 0.13]


def test_the_stored_outcome_is_up_to_date(data_folder: Path) -> None:
    """Compared anew: nothing else than what is stored. Numbers of another machine differ in their last digits."""
    for figure, now in zip(figures(), experiment.compare(), strict=True):
        fresh, old = now.outcome, figure.outcome
        assert (fresh.status, fresh.reason, fresh.file) == (old.status, old.reason, old.file), figure
        assert (fresh.z is None) == (old.z is None), figure
        assert fresh.z is None or fresh.z == pytest.approx(old.z, rel=1e-3, abs=2e-3), figure
        if isinstance(old.ours, list):
            assert [o for o in fresh.ours if isinstance(o, str)] == [o for o in old.ours if isinstance(o, str)], figure


def test_paired_by_split_by_hand() -> None:
    """Both files read here, with numpy."""
    figure, outcome = found("released", where="original", data="yacht", metric="test RMSE")
    with (RESULTS / "uci.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["study"] == "gal2016" and row["problem"] == "yacht"]
    ours = np.array([float(row["rmse"]) for row in rows if row["method"] == "bernoulli"])
    theirs = np.array(json.loads((FOLDER / "uci/published/gal2016.json").read_text())["sets"]["yacht"]["rmse"])
    d = ours - theirs
    assert outcome.z == pytest.approx(d.mean() / (d.std(ddof=1) / math.sqrt(20)))
    assert outcome.ours == pytest.approx(ours.mean())
    assert theirs.mean() == pytest.approx(figure.value, rel=1e-6)


def test_one_run_of_figure_1a_by_hand() -> None:
    """Its standard error is the standard deviation between runs, pooled over the cells with five."""
    figure, outcome = found("kingma2015", method="Variational dropout B", metric="500 units")
    cells = json.loads((RESULTS / "kingma-fig1a-paper.json").read_text())["errors"]
    spread = np.sqrt(np.mean([(np.sqrt(5) * cell["se"]) ** 2 for cell in cells.values() if cell["se"]]))
    error = cells["variational-b-500"]["error_percent"]
    assert cells["variational-b-500"]["se"] is None
    assert outcome.z == pytest.approx((error - figure.value) / np.hypot(figure.error, spread))


def test_statuses() -> None:
    assert apart(3.0, 0.3, 2.0, 0.4) == pytest.approx(2.0)
    assert apart(3.0, None, 2.0, 0.5) == pytest.approx(2.0)
    assert apart(3.0, None, 2.0, None) is None
    assert measured(1.0, -1.99, "why", "f").status == "within"
    assert measured(1.0, 2.01, "why", "f") == Outcome("outside", 1.0, 2.01, "why", "f")
    assert measured(1.0, None, "why", "f").status == "compared"
    assert same([1.0, 2.0], [1.0, 2.0000001]).status == "equal"
    assert same({"a": 1.0}, {"a": 1.1}).status == "unequal"
    assert same({"a": 1.0, "b": 1.0}, {"a": 1.0}).status == "unequal"
    assert same({"weight_decay": 0.0}, {"weight_decay": 5e-7}).status == "unequal", "small is not nothing"
    assert same([3e-5, 1.0051], [0.0, 1.005], rtol=0.0, atol=5e-4).status == "equal", "the printed digits"
    assert same([6e-4, 1.005], [0.0, 1.005], rtol=0.0, atol=5e-4).status == "unequal"
    assert same([1.0], [1.0, 1.0]).status == "unequal"


def test_the_figures_are_those_of_the_list(data_folder: Path) -> None:
    """Where the list of published figures lies beside the data: value by value, and the denominators."""
    path = data_folder.parent / "reference" / "published.json"
    if not path.is_file():
        pytest.skip("needs the list of published figures beside the data")
    theirs = json.loads(path.read_text(encoding="utf-8"))
    ours = figures()
    assert [(f.where, f.data, f.method, f.metric, f.value, f.error) for f in ours] == [
        (r["table_or_figure"], r["data_set"], r["method"], r["metric"], r["value"], r.get("uncertainty"))
        for r in theirs
    ]
