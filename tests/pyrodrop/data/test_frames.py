"""Data frames as data sets, against pandas.get_dummies, NumPy and rows computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset, Split
from pyrodrop.data.columns import Columns

N = 40
RNG = np.random.default_rng(0)
DF = pd.DataFrame(
    {
        "age": RNG.normal(40, 10, N),
        "kind": RNG.choice(["b", "a", "c"], N),
        "member": RNG.random(N) > 0.5,
        "rooms": RNG.integers(1, 5, N),
        "price": RNG.normal(300, 50, N),
        "tax": RNG.normal(3, 1, N),
    },
    index=RNG.permutation(N),
)


def dataset() -> Dataset:
    return Dataset.from_frame(DF.drop(columns="tax"), "price")


def test_one_hot_columns_are_those_of_get_dummies() -> None:
    data = dataset()
    want = pd.get_dummies(DF[["age", "rooms", "member", "kind"]], columns=["kind"], dtype=float)
    assert data.columns is not None
    assert data.columns.names == tuple(name.replace("kind_", "kind=") for name in want.columns)
    np.testing.assert_array_equal(data.x.numpy(), want.to_numpy(np.float32))
    np.testing.assert_array_equal(data.y.numpy(), DF[["price"]].to_numpy(np.float32))


def test_numbers_are_standardised_and_indicators_are_not() -> None:
    data = dataset()
    assert data.inputs is not None
    assert data.targets is not None
    numbers = DF[["age", "rooms"]].to_numpy()
    want = (numbers - numbers.mean(0)) / numbers.std(0)
    np.testing.assert_allclose(data.inputs(data.x)[:, :2], want, atol=1e-5)
    assert torch.equal(data.inputs(data.x)[:, 2:], data.x[:, 2:])
    price = DF["price"].to_numpy()
    np.testing.assert_allclose(data.targets(data.y)[:, 0], (price - price.mean()) / price.std(), atol=1e-5)


def test_declared_categories_keep_their_order_and_have_columns_without_rows() -> None:
    declared = pd.CategoricalDtype(["c", "z", "a", "b"])
    data = Dataset.from_frame(DF.astype({"kind": declared})[["kind", "tax"]], "tax", categories=["kind"])
    want = pd.get_dummies(DF["kind"].astype(declared), dtype=float)
    np.testing.assert_array_equal(data.x.numpy(), want.to_numpy(np.float32))


def test_new_frames_are_read_by_name_and_with_the_first_ones_categories_and_scale() -> None:
    """One row, in another order, with further columns and without some of the categories."""
    data = dataset()
    row = DF.iloc[[7]].assign(further="x")[["further", "kind", "price", "rooms", "member", "age"]]
    assert torch.equal(data.columns.x(row), data.x[[7]])
    test = data.like(row)
    assert (test.inputs, test.targets) == (data.inputs, data.targets)
    assert torch.equal(test.y, data.y[[7]])
    assert torch.equal(data.rows([7]).like(row).y, test.y)  # type: ignore[arg-type]


def test_text_bools_and_named_numbers_as_target_are_class_labels() -> None:
    words = Dataset.from_frame(DF, "kind")
    assert words.columns is not None
    assert words.columns.classes == ("a", "b", "c")
    np.testing.assert_array_equal(words.y.numpy(), np.unique(DF["kind"], return_inverse=True)[1])
    assert words.targets is None
    bools = Dataset.from_frame(DF, "member")
    np.testing.assert_array_equal(bools.y.numpy(), DF["member"].astype(int))
    rooms = Dataset.from_frame(DF, "rooms", categories=["rooms"])
    np.testing.assert_array_equal(rooms.y.numpy(), DF["rooms"] - 1)
    assert Dataset.from_frame(DF, "rooms").y.dtype == torch.float32


def polars_of(frame: pd.DataFrame) -> Any:
    polars = pytest.importorskip("polars")
    return polars.DataFrame({name: frame[name].tolist() for name in frame})


def pyarrow_of(frame: pd.DataFrame) -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table({name: frame[name].tolist() for name in frame})


def sparse_of(frame: pd.DataFrame) -> Any:
    kinds = {"age": float, "rooms": int, "member": bool, "tax": float}
    return frame.astype({name: pd.SparseDtype(kinds[name]) for name in frame if name in kinds})


@pytest.mark.parametrize("library", [polars_of, pyarrow_of, sparse_of])
def test_frames_of_other_libraries_are_those_of_pandas(library: Any) -> None:
    """In a data set, a split, at prediction and as plain numbers; other categories are refused."""
    frame = library(DF)
    want, got = (Dataset.from_frame(df, "price") for df in (DF, frame))
    assert got.columns.words() == want.columns.words()  # type: ignore[union-attr]
    assert got.fingerprint == want.fingerprint
    split, like = (Split.from_frame(df, "member", seed=1) for df in (frame, DF))
    assert split.test.fingerprint == like.test.fingerprint
    assert torch.equal(want.columns.x(frame), want.x)
    assert torch.equal(
        Dataset(library(DF[["age", "rooms"]]), library(DF)["tax"]).x, Dataset(DF[["age", "rooms"]], DF["tax"]).x
    )
    holes = DF.reset_index(drop=True).astype({"age": object})
    holes.loc[5, "age"] = None
    assert float(want.columns.x(library(holes))[5, 0]) == pytest.approx(DF["age"].median())
    with pytest.raises(ValueError, match=r"column 'age', must have a number .* NaN or null in 1 rows .* in row 5"):
        Dataset(library(holes[["age"]]), DF["tax"])
    with pytest.raises(ValueError, match=r"column 'kind', .*'a', 'b', 'c'; got 'd' in 40 rows"):
        want.columns.x(library(DF.assign(kind="d")))


def test_numbers_of_classes_are_not_taken_for_values() -> None:
    """Labels 10, 20, 30 are the numbers 0, 1, 2: a Gaussian around these is of nothing that the user has."""
    plain = pd.DataFrame({"x": np.linspace(-1, 1, 6), "y": [10, 20, 30] * 2})
    model = models.MLP([1, 3, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    guide = guides.MeanField(model)
    for y in (plain["y"], plain["y"].astype(str)):
        data = Dataset.from_frame(plain.assign(y=y), "y", categories=["y"])
        with pytest.raises(ValueError, match=r"numbers 0 to 2 for .*10.*30.* Gaussian.*use likelihoods.Categorical"):
            pyrodrop.fit(model, guide, data, steps=1, engine="pyro")
    for same in ([0, 1] * 3, [False, True] * 3):  # numbers that are the values
        data = Dataset.from_frame(plain.assign(y=same), "y", categories=["y"])
        pyrodrop.fit(model, guide, data, steps=1, engine="pyro")
    three = models.MLP([1, 3, 3], prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    data = Dataset.from_frame(plain, "y", categories=["y"])
    assert (
        pyrodrop.fit(three, guides.MeanField(three), data, steps=1, engine="pyro").predict(data.x, 2).f.shape[-1] == 3
    )


def test_whole_numbers_that_float64_does_not_hold_are_refused() -> None:
    for target in ("price", "id"):
        with pytest.raises(ValueError, match=r"column 'id', must have whole numbers of at most 2\*\*53.* got 1.15292e"):
            Dataset.from_frame(DF.assign(id=2**60 + np.arange(N)), target)


def linear() -> Any:
    return models.from_module(nn.Linear(6, 1), priors.Gaussian(), likelihoods.Gaussian(1e-3, learned=True))


def test_a_fit_predicts_at_a_frame_by_its_names(tmp_path: Path) -> None:
    """In another order of columns; also after it was saved and loaded."""
    data, model = dataset(), linear()
    run = pyrodrop.fit(model, guides.MeanField(model), data, steps=3, lr=0.01, engine="pyro")
    shuffled = DF[["kind", "rooms", "price", "member", "age"]]
    want = run.predict(data.x, 4).f
    assert torch.equal(run.predict(shuffled, 4).f, want)  # type: ignore[arg-type]
    model = linear()
    loaded = pyrodrop.Fit.load(run.save(tmp_path / "fit"), model, guides.MeanField(model))
    assert torch.equal(loaded.predict(shuffled, 4).f, want)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x must have the columns of the data set by name.*without 'age'"):
        run.predict(shuffled.drop(columns="age"))  # type: ignore[arg-type]


def test_a_file_says_all_of_its_columns() -> None:
    kinds = pd.Categorical(DF["kind"], categories=["a", "b", "c"])
    columns = Dataset.from_frame(DF.assign(kind=kinds), "kind").columns
    again = Columns.of_words(json.loads(json.dumps(columns.words())), "file")  # type: ignore[union-attr]
    assert vars(again) == vars(columns)


def test_columns_of_files_of_another_encoding_are_refused() -> None:
    data = dataset()
    assert data.columns is not None
    stored = data.columns.words()
    with pytest.raises(ValueError, match="file is damaged: .*codes of categories, which are no longer read"):
        Columns.of_words({**stored, "encode": "codes"}, "file")
