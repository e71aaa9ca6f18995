"""Frames with text, categories, gaps and sparse columns, in recipes and in estimators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import pyrodrop
from pyrodrop import Replicates, recipes
from pyrodrop.data import Dataset
from pyrodrop.data.columns import Columns, read_inputs
from pyrodrop.sklearn import NetworkClassifier, NetworkRegressor

RNG = np.random.default_rng(0)
SIZE = 60
HIDDEN, STEPS = (8,), 20


def frame() -> pd.DataFrame:
    """Every kind of column; gaps are in the columns named so."""
    number = RNG.normal(5, 2, SIZE)
    gaps = np.where(np.arange(SIZE) % 7 == 3, np.nan, number**2)
    text = np.array(["red", "green", "blue"], dtype=object)[np.arange(SIZE) % 3]
    holes = np.where(np.arange(SIZE) % 5 == 1, None, text[::-1])
    size = pd.Categorical(np.array(["s", "m"])[np.arange(SIZE) % 2], ["s", "m", "l"], ordered=True)
    return pd.DataFrame({
        "text": text, "number": number, "gaps": gaps, "whole": np.arange(SIZE) % 4,
        "powers": 10.0 ** (np.arange(SIZE) % 7 - 3), "bool": number > 5,
        "holes": holes, "size": size, "sparse": pd.arrays.SparseArray(np.where(np.arange(SIZE) % 9 == 0, 2.0, 0.0)),
        "maybe": pd.array([None if n % 8 == 1 else n % 3 == 0 for n in range(SIZE)], dtype="boolean"),
        "y": number + (text == "red") + RNG.normal(0, 0.1, SIZE),
    })  # fmt: skip


def test_inputs_are_those_of_pandas() -> None:
    """Medians, `get_dummies` with a column of missing values, and 0 and 1 where numbers were missing."""
    df = frame()
    data = Dataset.from_frame(df, "y")
    assert torch.equal(recipes.regressor(df, target="y").data.x, data.x)
    numbers = df[["number", "gaps", "whole", "powers", "sparse"]].astype(float)
    bools = df[["bool", "maybe"]].astype("Float64").astype(float)
    holes = pd.get_dummies(df["holes"], dummy_na=True)
    want = [
        numbers.fillna(numbers.median()), bools.fillna(bools.mode().iloc[0]), numbers[["gaps"]].isna(),
        bools[["maybe"]].isna(),
        pd.get_dummies(df["text"]), holes, pd.get_dummies(df["size"]),
    ]  # fmt: skip
    np.testing.assert_allclose(data.x, pd.concat(want, axis=1).to_numpy(float), rtol=1e-6)
    assert data.columns is not None
    assert data.columns.names == (
        "number", "gaps", "whole", "powers", "sparse", "bool", "maybe", "gaps is missing", "maybe is missing", "text=blue",
        "text=green", "text=red", "holes=blue", "holes=green", "holes=red", "holes is missing", "size=s", "size=m", "size=l",
    )  # fmt: skip
    assert data.inputs is not None
    filled = numbers.fillna(numbers.median())[["number", "gaps", "whole", "powers"]]
    np.testing.assert_allclose(data.inputs.loc[:4], filled.mean(), rtol=1e-5)
    np.testing.assert_allclose(data.inputs.scale[5:], 1.0)  # all but numbers stay 0 and 1
    new = df.head(2).assign(number=np.nan, text=None, gaps=np.nan)  # gaps in columns that had none
    x = data.columns.x(new)
    assert x[0, 0] == pytest.approx(df["number"].median())
    assert x[0, 7] == 1
    assert x[0, 9:12].tolist() == (pd.get_dummies(df["text"]).columns == df["text"].mode()[0]).astype(float).tolist()
    again = Columns.of_words(json.loads(json.dumps(data.columns.words())), "file")
    torch.testing.assert_close(again.x(new), x)


def test_of_as_many_ones_as_zeros_a_gap_is_zero() -> None:
    columns, _ = read_inputs(pd.DataFrame({"on": pd.array([True, False, None], dtype="boolean")}), "X")
    assert columns.x(pd.DataFrame({"on": [None, True]}, dtype="boolean")).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("classes", [False, True])
def test_both_doors_predict_the_same(classes: bool, tmp_path: Path) -> None:
    df, label = frame(), "kind" if classes else "y"
    if classes:
        df = df.assign(kind=np.where(df["y"] > 5, "high", "low")).drop(columns="y")
    make = recipes.classifier if classes else recipes.regressor
    estimator = (NetworkClassifier if classes else NetworkRegressor)(
        HIDDEN, members=2, max_steps=STEPS, draws=50, random_state=0
    )
    inputs, y = df.drop(columns=label), df[label]
    estimator.fit(inputs, y)
    seed = np.random.RandomState(0).randint(2**31 - 1)
    run = make(df, target=label, hidden=HIDDEN).fit(2, steps=STEPS, seed=seed, progress=False)
    new = inputs.iloc[::-1].assign(number=np.nan)
    want = run.predict(new, 50, seed=0).mean.numpy()
    got = estimator.predict_proba(new) if classes else estimator.predict(new)[:, None]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    for number, each in enumerate((run, estimator.run_)):  # the encoder is in the file
        each.save(tmp_path / f"{number}.pt")
        loaded = Replicates.load(tmp_path / f"{number}.pt")
        torch.testing.assert_close(loaded.predict(new, 50, seed=0).mean, torch.from_numpy(want), rtol=2e-5, atol=1e-6)


def test_arrays_have_the_rules_of_frames() -> None:
    numbers = frame()[["number", "gaps", "whole"]]
    columns, scale = read_inputs(numbers.to_numpy(float), "X")
    data = recipes.regressor(numbers.assign(y=RNG.normal(size=SIZE)), target="y").data
    torch.testing.assert_close(columns.table(numbers.to_numpy(float)), data.x)
    torch.testing.assert_close(scale.loc, data.inputs.loc)  # type: ignore[union-attr]
    torch.testing.assert_close(scale.scale, data.inputs.scale)  # type: ignore[union-attr]


@pytest.mark.parametrize("read", [
    lambda df: recipes.regressor(df, target="y"), lambda df: NetworkRegressor().fit(df.drop(columns="y"), df["y"]),
])  # fmt: skip
def test_columns_that_are_refused(read: Any) -> None:
    df = frame()
    with pytest.raises(
        TypeError,
        match=r"numbers or categories in every column; got column 'when' of dtype Datetime.*\(date - date.min\(\)\)",
    ):
        read(df.assign(when=pd.date_range("2020-01-01", periods=SIZE)))
    with pytest.raises(ValueError, match="column 'name', must have text whose values repeat.*got 60 values in 60 rows"):
        read(df.assign(name=[f"person {n}" for n in range(SIZE)]))
    with pytest.raises(TypeError, match="'mixed' of dtype Object"):
        read(df.assign(mixed=pd.Series([1, "a"] * (SIZE // 2), dtype=object)))
    with pytest.raises(ValueError, match="column 'number', must be finite"):
        read(df.assign(number=np.inf))


def test_calls_that_are_refused() -> None:
    df = frame()
    with pytest.raises(TypeError, match="target must name the column of y of a data frame"):
        recipes.regressor(df)
    with pytest.raises(ValueError, match="target must be finite; got 1 NaN"):
        recipes.regressor(df.assign(y=df["y"].where(df.index != 3)), target="y")
    with pytest.raises(TypeError, match="target names a column of a data frame; got the str 'y' for a tuple"):
        recipes.classifier((torch.randn(20, 2), torch.arange(20) % 2), target="y")
    inputs = df.drop(columns="y")
    model = NetworkRegressor(HIDDEN, members=1, max_steps=3).fit(inputs, df["y"])
    with pytest.raises(ValueError, match="column 'text', must have the categories.*got 'pink' in 60 rows: declare"):
        model.predict(inputs.assign(text="pink"))
    with pytest.raises(TypeError, match="X must be a data frame"), pytest.warns(UserWarning, match="feature names"):
        model.predict(np.zeros((3, inputs.shape[1])))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(inputs.rename(columns={"text": "colour"}))


def test_polars_frames_are_read_the_same() -> None:
    polars = pytest.importorskip("polars")
    df = frame().drop(columns=["size", "sparse"])
    columns = {name: [None if pd.isna(v) else v for v in values.tolist()] for name, values in df.items()}
    torch.testing.assert_close(
        pyrodrop.recipes.regressor(polars.DataFrame(columns), target="y").data.x,
        recipes.regressor(df, target="y").data.x,
    )
