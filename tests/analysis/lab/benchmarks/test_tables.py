"""The outside judge for tables: which tables, folds, scores, opponents, and what the page says of the stored numbers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats
from sklearn.linear_model import Ridge

from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.benchmarks.tables import __main__ as command
from pyrodrop.analysis.lab.benchmarks.tables import chosen, methods, report
from pyrodrop.analysis.lab.benchmarks.tables.chosen import fold, names, table
from pyrodrop.analysis.lab.benchmarks.tables.scores import Mixture

QUOTAS = {
    "regression": {"UCI": 11, "scikit-learn": 1, "statsmodels": 6, "R": 46},
    "classification": {"scikit-learn": 4, "KEEL": 16},
}


def test_the_kept_tables_have_their_numbers_and_are_in_both_halves_by_turns() -> None:
    entries = list(chosen.chosen().values())
    assert (len(names()), len(names("classification"))) == (64 + 20, 20)
    for kind, quotas in QUOTAS.items():
        for source, quota in quotas.items():
            of_source = [entry for entry in entries if (entry.kind, entry.source) == (kind, source)]
            assert len(of_source) == quota + 20 * (source == "R")
            hashes = [hashlib.sha256(entry.name.encode()).hexdigest() for entry in of_source]
            assert hashes == sorted(hashes)
            halves = [entry.half for entry in of_source]
            assert halves[:quota] == [("finding", "judging")[k % 2] for k in range(quota)]
            assert halves[quota:] == ["later"] * 20 * (source == "R")
    assert sorted(names(half="finding") + names(half="judging") + names(half="later")) == sorted(names())
    for call in (lambda: names("regressions"), lambda: names(half="both"), lambda: table("uci/year")):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"no (kind of table|half of the tables|table) is called"):
            call()


def test_columns_are_encoded_as_the_rule_says() -> None:
    """Against a table encoded by hand."""
    pd = pytest.importorskip("pandas")
    random = np.random.RandomState(0)
    size = 70
    number, category = random.randn(size), random.choice(["b", "a", "c"], size)
    empty = np.where(np.arange(size) < 10, np.nan, number)
    y = random.randn(size)
    frame = pd.DataFrame(
        {
            "rownames": random.randn(size),
            "day": np.arange(size) * 2 + 5,
            "empty": empty,
            "category": category,
            "yes": random.rand(size) < 0.5,
            "mostly empty": np.where(np.arange(size) < 40, np.nan, number),
            "constant": 1.0,
            "names": [f"row {k}" for k in range(size)],
            "in cents": 100 * y + 7,
            "y": np.where(np.arange(size) == 30, np.nan, y),
            "few": random.randint(0, 5, size),
        }
    )
    x, target = chosen._encoded(frame, "y", "regression")
    left = np.arange(size) != 30
    want = [np.where(np.isnan(empty), np.median(empty[left & ~np.isnan(empty)]), empty), np.isnan(empty)]
    want += [category == "a", category == "b", category == "c", frame["yes"], frame["few"]]
    np.testing.assert_array_equal(target, y[left])
    np.testing.assert_array_equal(x, np.column_stack(want)[left].astype(float))


def test_every_row_of_a_table_is_tested_once() -> None:
    x, y = table("sklearn/diabetes")
    together = np.column_stack([x, y])
    tests = []
    for k in range(chosen.FOLDS):
        (x_train, y_train), (x_test, y_test) = fold("sklearn/diabetes", k)
        tests.append(np.column_stack([x_test, y_test]))
        both = np.concatenate([np.column_stack([x_train, y_train]), tests[-1]])
        np.testing.assert_array_equal(np.unique(both, axis=0), np.unique(together, axis=0))
    np.testing.assert_array_equal(np.unique(np.concatenate(tests), axis=0), np.unique(together, axis=0))
    assert [len(rows) for rows in tests] == [89, 89, 88, 88, 88]


def test_scores_of_a_normal_distribution_are_those_of_closed_forms() -> None:
    """The CRPS of N(m, s^2) is s (z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)) with z = (y - m) / s."""
    random = np.random.RandomState(0)
    mean, sd, y = random.randn(50), 0.2 + random.rand(50), 2 * random.randn(50)
    got = methods.scores_of_regression(Mixture(np.zeros(50), mean[:, None], sd[:, None]), y)
    z = (y - mean) / sd
    crps = sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    low, high = stats.norm.interval(0.95, mean, sd)
    interval = high - low + 40 * np.maximum(low - y, 0) + 40 * np.maximum(y - high, 0)
    assert got["crps"] == pytest.approx(crps.mean(), rel=2e-3)  # 199 levels
    assert got["interval"] == pytest.approx(interval.mean(), rel=1e-5)
    assert got["log_density"] == pytest.approx(stats.norm.logpdf(y, mean, sd).mean(), rel=1e-9)
    assert got["coverage"] == np.mean((y >= low) & (y <= high))
    assert got["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))


def test_a_mixture_has_the_density_and_quantiles_of_its_components() -> None:
    """Against SciPy's normal distributions and quadrature, for one set of components that is shifted to every row."""
    means, sds = np.array([[-1.0, 0.5, 3.0]]), np.array([[0.2, 1.0, 0.4]])
    mixture = Mixture(np.array([0.0, 10.0]), means, sds)
    quantiles = mixture.quantiles(np.array([0.025, 0.5, 0.9]))

    def density(value: float) -> float:
        return float(np.exp(mixture.log_density(np.array([value, 10 + value]))[1]))

    assert density(0.7) == pytest.approx(stats.norm.pdf(0.7, means, sds).mean())
    for level, quantile in zip((0.025, 0.5, 0.9), quantiles[0], strict=True):
        assert integrate.quad(density, -10, quantile, points=[-1.0])[0] == pytest.approx(level, abs=1e-6)
    np.testing.assert_allclose(quantiles[1], 10 + quantiles[0])
    np.testing.assert_allclose(mixture.mean, [2.5 / 3, 10 + 2.5 / 3])


def test_scores_of_classes_are_those_by_hand() -> None:
    p, y = np.array([[0.7, 0.3], [0.0, 1.0], [0.6, 0.4]]), np.array([0, 0, 1])
    got = methods.scores_of_classification(p, y)
    assert got["log_density"] == pytest.approx((np.log(0.7) + np.log(np.finfo(float).eps) + np.log(0.4)) / 3)
    assert got["brier"] == pytest.approx((2 * 0.09 + 2 + 2 * 0.36) / 3)
    assert got["error"] == pytest.approx(2 / 3)
    assert got["ece"] == pytest.approx((0.3 + 1 + 0.6) / 3)


NEEDS = {"quantile forest": "quantile_forest", "NGBoost": "ngboost", "CatBoost": "catboost"}


@pytest.mark.parametrize("name", [name for name in methods.REGRESSIONS if name != "pyrodrop"])
def test_opponents_learn_a_function_and_its_noise(name: str) -> None:
    """y = sin(3 x) + N(0, .2^2): no log density is above that of the truth by three standard errors, or far below it.

    With 200 rows the standard deviations of boosting become much too small.
    """
    pytest.importorskip(NEEDS.get(name, "sklearn"))
    random = np.random.RandomState(0)
    size = 2000 if name in ("NGBoost", "CatBoost") else 200
    x = random.uniform(-1, 1, (size + 100, 2))
    y = np.sin(3 * x[:, 0]) + 0.2 * random.randn(len(x))
    predicted = methods.REGRESSIONS[name]((x[:size], y[:size]), x[size:], 0)
    assert isinstance(predicted, Mixture)
    got = methods.scores_of_regression(predicted, y[size:])
    truth = stats.norm.logpdf(y[size:], np.sin(3 * x[size:, 0]), 0.2)
    assert truth.mean() - 1 < got["log_density"] < truth.mean() + 3 * truth.std() / 10
    assert got["rmse"] < 0.35 or name == "ridge"
    assert 0.8 < got["coverage"] <= 1


def test_the_noise_of_ridge_regression_is_that_of_rows_that_are_left_out() -> None:
    """Against fits without each row, at the penalty that the shortest of these errors chooses."""
    random = np.random.RandomState(0)
    x = random.randn(25, 3)
    x = (x - x.mean(0)) / x.std(0)
    y = x.sum(1) + random.randn(25)
    errors = {}
    for alpha in np.logspace(-4, 4, 25):
        left = [Ridge(alpha).fit(np.delete(x, k, 0), np.delete(y, k)).predict(x[k : k + 1])[0] for k in range(25)]
        errors[alpha] = np.mean((np.array(left) - y) ** 2)
    alpha = min(errors, key=lambda penalty: errors[penalty])
    predicted = methods.ridge((x, y), x, 0)
    np.testing.assert_allclose(predicted.mean, Ridge(alpha).fit(x, y).predict(x))
    np.testing.assert_allclose(predicted.sds, np.sqrt([[errors[alpha]]]))


def test_folds_are_measured_and_failures_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def mean(train: methods.Rows, x: np.ndarray, seed: int) -> Mixture:
        return Mixture(np.zeros(len(x)), np.full((len(x), 1), train[1].mean()), np.full((1, 1), train[1].std()))

    def broken(train: methods.Rows, x: np.ndarray, seed: int) -> Mixture:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(methods, "REGRESSIONS", {"ridge": mean, "GP": broken})
    command._warm.cache_clear()
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    command.main(one, names=["sklearn/diabetes"], methods=["ridge"], rounds=2)
    command.main(two, names=["sklearn/diabetes"], methods=["GP"], rounds=1)
    command._warm.cache_clear()
    cells = report.read(one)["sklearn/diabetes"]
    for k in range(2):
        (_, y_train), (_, y) = fold("sklearn/diabetes", k)
        assert cells[str(k)]["ridge"]["rmse"] == pytest.approx(np.sqrt(np.mean((y - y_train.mean()) ** 2)))
        assert cells[str(k)]["ridge"]["seconds"] >= 0
    tidy.merge(one, two)
    assert report.read(one)["sklearn/diabetes"]["0"]["GP"] == {"failed": "RuntimeError: no such thing"}
    assert report.read(one)["sklearn/diabetes"]["1"] == cells["1"]
    patterns = [group["rows"] for group in tidy.about(one)["made"]]
    assert patterns == [["tables-cpu/sklearn_diabetes/ridge"], ["tables-cpu/sklearn_diabetes/GP"]]
    tidy.merge(two, one)
    assert [group["rows"] for group in tidy.about(two)["made"]] == patterns


def filled(scores_of: dict[str, list[float]], tables: list[str]) -> dict[str, Any]:
    """Cells of one fold with these log densities, and CRPSs that are their negatives."""
    some = {"interval": 1.0, "coverage": 0.95, "rmse": 1.0, "seconds": 2.0}
    return {
        table: {"0": {m: {"log_density": each[t], "crps": -each[t]} | some for m, each in scores_of.items()}}
        for t, table in enumerate(tables)
    }


def test_ranks_are_those_by_hand_and_a_failure_is_last() -> None:
    tables = names("regression", "judging")[:4]
    of_methods = {"pyrodrop": [1.0, 2.0, 0.0, 5.0], "ridge": [0.0, 3.0, 0.0, 4.0], "GP": [-1.0, 1.0, -2.0, 6.0]}
    content = filled(of_methods, tables)
    content[tables[3]]["0"]["GP"] = {"failed": "no"}
    content[tables[0]]["1"] = {"ridge": content[tables[0]]["0"]["ridge"]}  # a fold that others do not have
    of = report.judged(content, "regression", "judging")
    assert of.methods == ["pyrodrop", "ridge", "GP"]
    want = np.array([[1, 2, 3], [2, 1, 3], [1.5, 1.5, 3], [1, 2, 3]])
    np.testing.assert_array_equal(of.ranks("log_density"), want)
    np.testing.assert_array_equal(of.ranks("crps"), want)
    assert report.judged(content, "regression", "finding").tables == []
    text = report.text(content, "regression", "judging")
    error = np.std([1, 2, 1.5, 1], ddof=1) / 2
    ours = f"| **pyrodrop** | 1.38 ± {error:.2f} | 1.38 ± {error:.2f} | 1.88 ± 0.12 | -1.00 | 4 | 2.0 | 2 |"
    assert ours in text
    assert "| GP | 3.00 ± 0.00 | 3.00 ± 0.00 |" in text
    assert "failed" in text
    entry = chosen.chosen()[tables[1]]
    assert f"| {entry.name} | {entry.rows} | {entry.columns} | " in text
    assert "| 2.00 | **3.00** | 1.00 | 95 % |" in text


def test_the_critical_difference_is_that_of_published_tables() -> None:
    """Demsar (2006), table 5a: q at 5 % for 2 to 10 methods."""
    published = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}
    for size, q in published.items():
        got = report.Judged(["table"] * 30, ["method"] * size, []).critical_difference
        assert got == pytest.approx(q * np.sqrt(size * (size + 1) / 180), rel=1e-3)
