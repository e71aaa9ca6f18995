"""Data, inputs and observations: what everything that takes them refuses, what is no array, and what only looks bad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import pyrodrop
from pyrodrop import analysis, guides, metrics, priors
from pyrodrop.analysis.gp import GaussianProcess, GaussianProcessClassifier
from pyrodrop.data import Dataset, Split
from pyrodrop.data.dataset import check_inputs
from pyrodrop.scaling import Standardize

from .judge import Table, assert_refused, table
from .shared import (
    LABELS,
    QUICK,
    N,
    X,
    Y,
    classifier,
    fit,
    fit_with,
    mlp,
    model,
    of_classes,
    prediction,
    process,
    replicates,
    sampled,
)

GP: dict[str, Any] = {"kernel": "squared-exponential", "learn": False, "progress": False}
TAKES_DATA: dict[str, Callable[[Any], Any]] = {
    "fit": lambda data: fit_with(data=data),
    "fit_replicates": lambda data: pyrodrop.fit_replicates(
        mlp(), guides.Point(mlp()), data, count=2, steps=1, progress=False
    ),
    "Training": lambda data: pyrodrop.Training(mlp(), guides.Point(mlp()), data),
    "Fit.elbo": lambda data: fit().elbo(2, data),
    "sample": lambda data: pyrodrop.sample(mlp(), data, max_steps=1, progress=False),
    "potential": lambda data: pyrodrop.potential(mlp(), data, engine="traced"),
    "Sampled.log_likelihood": lambda data: sampled().log_likelihood(data),
    "compare": lambda data: pyrodrop.compare({"a": fit()}, data, num_samples=2),
    "to_arviz": lambda data: pyrodrop.to_arviz(fit(), data, num_samples=2),
    "analysis.loo": lambda data: analysis.loo(fit(), data, num_samples=25, force=True),
    "analysis.log_density": lambda data: analysis.log_density(fit(), data, num_samples=2),
    "priors.from_gp": lambda data: priors.from_gp(model(), data),
    "gp.GaussianProcess": lambda data: GaussianProcess(data, **GP),
    "gp.GaussianProcess.log_density": lambda data: process().log_density(data),
}
MORE_DATA: dict[str, Callable[[Any], Any]] = {
    "analysis.kfold": lambda data: analysis.kfold(mlp(), guides.Point(mlp()), data, k=2, steps=1, num_samples=2),
    "data.Dataset.of": Dataset.of,
    "recipes.regressor": lambda data: pyrodrop.recipes.regressor(data),
    "recipes.classifier": lambda data: pyrodrop.recipes.classifier(data),
}
TAKES_X: dict[str, Callable[[Any], Any]] = {
    **{
        name: lambda x, of=of: of((x, Y))
        for name, of in TAKES_DATA.items()
        if "arviz" not in name and "loo" not in name
    },
    "predict": lambda x: fit().predict(x, 2),
    "Fit.module": lambda x: fit().module(2, x=x),
    "Replicates.predict": lambda x: replicates().predict(x, 2),
    "Sampled.predict": lambda x: sampled().predict(x, 2),
    "analysis.sbc": lambda x: analysis.sbc(mlp(), guides.MeanField, x, count=2, num_draws=2, steps=1, progress=False),
    "gp.GaussianProcess.predict": lambda x: process().predict(x, 2),
}
TAKES_Y: dict[str, Callable[[Any], Any]] = {
    **{name: lambda y, of=of: of((X, y)) for name, of in TAKES_DATA.items()},
    "Prediction.log_density": lambda y: prediction().log_density(y),
    "Prediction.cdf": lambda y: prediction().cdf(y),
    "metrics.regression_scores": lambda y: metrics.regression_scores(prediction(), y),
}
TAKES_LABELS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda y: pyrodrop.fit(classifier().model, classifier().guide, (X, y), **QUICK),
    "Fit.elbo": lambda y: classifier().elbo(2, (X, y)),
    "potential": lambda y: pyrodrop.potential(classifier().model, (X, y), engine="traced"),
    "Prediction.log_density": lambda y: of_classes().log_density(y),
    "gp.GaussianProcessClassifier": lambda y: GaussianProcessClassifier((X, y), **GP),
    "metrics.classification_scores": lambda y: metrics.classification_scores(torch.full((N, 3), 1 / 3), y),
}
NO_DATA: dict[str, Any] = {
    r"a Dataset or a pair \(x, y\).*got a Tensor": torch.ones(2, N),
    r"(a Dataset or a pair|a tuple) \(x, y\).*got a tuple of (3|Tensor)": (X, Y, Y),
    r"(a Dataset or a pair|a tuple) \(x, y\).*got a tuple of (1|Tensor)": (X,), "got the float 1.0": 1.0,
}  # fmt: skip
NO_X: dict[str, Any] = {
    "x must be a tensor, a NumPy array, .*got the str 'x'": "x", "x must be .*complex64": X + 0j,
    "x must be finite; got": X * torch.nan,
    r"x .*must .*(\[N, 2\]|\[N, Q\]).*; got.*3|called on x of shape \[8, 2, 3\]": torch.ones(N, 2, 3),
    "x must contain at least one observation": X[:0],
    "got a masked array": np.ma.masked_array(X.numpy(), X.numpy() > 0.9),
    "x .*must be .*tensor.*got a tuple|must be Tensor, not tuple|takes 2 positional arguments": (X, X),
}  # fmt: skip
NO_Y: dict[str, Any] = {
    "y must be a tensor, a NumPy array, .*got the str 'x'": "x", "y must be .*complex64": Y + 0j,
    "y must be finite; got": Y * torch.nan,
    "y must be finite; got|inf": Y / 0,
    "y .*must have (the )?shape": Y[..., None], "y has 2 columns|y .*must have (the )?shape": torch.ones(N, 2),
    r"got (shape \[0, 1\]|8 and 0 rows)": Y[:0], "y.* (must be|needs) .*(numbers|floating).*got torch.bool": Y > 0,
    "got a masked array": np.ma.masked_array(Y.numpy(), Y.numpy() > 0.9), "array of dtype object": np.full((N, 1),
    None),
}  # fmt: skip
NO_LABELS: dict[str, Any] = {
    "one-hot|must be labels of shape|of the prediction": torch.eye(3).long()[LABELS],
    "whole numbers .*got torch.float64": LABELS.double(),
    "y must be .*complex": LABELS + 0j, "0 (...|to) .*got .*-1|-1 to 1": LABELS - 1,
    "y must be finite|whole numbers": torch.full((N,), torch.nan),
}  # fmt: skip


def product(callables: dict[str, Callable[[Any], Any]], refused: dict[str, Any]) -> Table:
    return {
        name: [(lambda of=of, v=value: of(v), said) for said, value in refused.items()]
        for name, of in callables.items()
    }


@pytest.mark.few(20)
@table(product(TAKES_DATA | MORE_DATA, NO_DATA))
def test_no_data(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


@pytest.mark.few(20)
@table(product(TAKES_X, NO_X))
def test_no_x(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


@pytest.mark.few(20)
@table(product(TAKES_Y, NO_Y))
def test_no_y(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


@pytest.mark.few(20)
@table(product(TAKES_LABELS, NO_LABELS))
def test_no_labels(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


TABLE = {"a": np.arange(N), "b": np.linspace(0, 1, N)}
SAME = np.stack([TABLE["a"], TABLE["b"]], 1)


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({**TABLE, **columns})


NO_ARRAY: dict[str, Any] = {
    "got None": None, "got True": True, "at least one tensor; got an empty dict": {},
    "at least one observation; got an empty list": [], "equally long rows; got a list": [[1.0], [1.0, 2.0]] * 4,
    "in equally long rows; got a list: ": [torch.ones(2)] * N, "masked": list(np.ma.masked_array(SAME, np.eye(N, 2))),
    "sparse": torch.ones(N, 2).to_sparse(), "meta": torch.ones(N, 2, device="meta"), "complex128": SAME + 0j,
    "datetime64": np.full((N, 2), "2020-01-01", dtype="datetime64[D]"), "dtype object": np.full((N, 2), None),
    "uint64: convert it to int64": np.full((N, 2), 2**63, dtype=np.uint64),
    "float128": np.full((N, 2), np.longdouble("1e400")), "column 'c', .*String": frame(c=list("abababab")),
    "column 'c', must have a number in every row; got NaN or null in 1 rows": frame(c=[np.nan, *range(N - 1)]),
    "column 'price'.* in every row": pd.Series([None, *range(N - 1)], dtype="Int64", name="price"),
    "must .*got": pd.DataFrame(index=range(0)),
    "different names; got a DataFrame": pd.DataFrame(SAME, columns=["a", "a"]),
}  # fmt: skip


@pytest.mark.few(20)
@table(product({"data.Dataset": lambda x: Dataset(x, Y), "data.check_inputs": check_inputs}, NO_ARRAY))
def test_no_array(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


def packed() -> np.ndarray[Any, Any]:
    """Records whose real numbers are 9 bytes apart."""
    records = np.zeros(N, dtype=np.dtype([("flag", "u1"), ("a", "f8")], align=False))
    records["a"] = np.arange(N)
    return records


F64, I64 = torch.float64, torch.int64
ARRAYS: list[tuple[Any, Any, torch.dtype]] = [  # what is passed, its values, and the dtype of x
    *((SAME.astype(kind), SAME.astype(kind), dtype) for kind, dtype in {
        "f8": F64, "f2": torch.float16, "?": torch.bool, ">f8": F64, ">i4": torch.int32,
    }.items()),
    (SAME[::-1, ::-1], SAME[::-1, ::-1], F64),
    (packed()["a"], TABLE["a"], F64),
    (np.asfortranarray(SAME), SAME, F64),
    (frame(), SAME, F64),
    (frame(a=TABLE["a"] > 3), np.stack([TABLE["a"] > 3, TABLE["b"]], 1), F64),
    (frame().convert_dtypes(), SAME, F64),
    (frame().astype(pd.SparseDtype("f8")), SAME, F64),
    (frame().set_index(np.arange(N)[::-1])["b"], TABLE["b"], F64),
    (pd.Series(TABLE["a"], dtype="Int32"), TABLE["a"], torch.int32),
    (xr.DataArray(SAME), SAME, F64),
    (SAME.tolist(), SAME.astype("f4"), torch.float32),
    (range(N), TABLE["a"], I64),
    (list(SAME), SAME, F64),
    (torch.tensor(SAME + 0j).conj().imag, 0 * SAME, F64),
    (torch.ones(1, 2).expand(N, 2), np.ones((N, 2)), torch.float32),
]  # fmt: skip


@pytest.mark.few(12)
@pytest.mark.parametrize(("passed", "values", "dtype"), ARRAYS)
def test_arrays_keep_their_numbers(passed: Any, values: Any, dtype: torch.dtype) -> None:
    x = Dataset(passed, Y).x
    columns = np.asarray(values).reshape(N, -1)
    assert (x.dtype, tuple(x.shape), x.requires_grad) == (dtype, columns.shape, False)
    assert np.array_equal(x.double().numpy(), columns.astype(float))


TENS = torch.arange(2 * N).reshape(N, 2)
FORMS_OF_Y = [
    (Y[:, 0], Y), (Y.numpy().astype(">f4"), Y), (pd.Series(Y[:, 0].numpy(), index=range(N, 0, -1)), Y), (Y.tolist(), Y),
    (TENS[:, :1].byte().numpy(), TENS[:, :1].float()),
]  # fmt: skip
FORMS_OF_LABELS = [LABELS.numpy().astype(">i4"), pd.Series(LABELS.numpy(), dtype="Int8")]


@pytest.mark.few(4)
@pytest.mark.parametrize(("form", "y"), FORMS_OF_Y)
def test_forms_of_y(form: Any, y: torch.Tensor) -> None:
    torch.testing.assert_close(fit_with(data=(X, form)).losses, fit_with(data=(X, y)).losses, check_dtype=False)
    torch.testing.assert_close(prediction().log_density(form), prediction().log_density(y), check_dtype=False)
    want = metrics.regression_scores(prediction(), y)
    assert metrics.regression_scores(prediction(), form) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("form", FORMS_OF_LABELS)
def test_forms_of_labels(form: Any) -> None:
    """Against the log of the mean probability, by hand."""
    p = of_classes().f.softmax(-1).mean(0)
    torch.testing.assert_close(of_classes().log_density(form), p[torch.arange(N), LABELS].log())
    assert metrics.accuracy(p, form) == float((p.argmax(-1) == LABELS).float().mean())
    assert TAKES_LABELS["fit"](form).losses.equal(TAKES_LABELS["fit"](LABELS).losses)


def people(**columns: Any) -> pd.DataFrame:
    return frame(**{"kind": list("abcabcab"), "price": np.linspace(1.0, 3.0, N) ** 2, **columns})


def from_people(df: Any = None, target: Any = "price", categories: Any = ("kind",), **settings: Any) -> Dataset:
    return Dataset.from_frame(people() if df is None else df, target, categories=list(categories), **settings)


BOOLS = [True, False] * (N // 2)
FRAME_ONLY = {
    "got a ndarray": SAME, r"at least one row; got a DataFrame of shape \[0, 4\]": people()[:0],
    "different names; got a DataFrame": pd.concat([people(), people()], axis=1),
    "str or whole numbers; got .*1.5": people().rename(columns={"a": 1.5}),
    "column 'b', must be finite .*got inf in row 0": people().assign(b=[np.inf, *range(N - 1)]),
}  # fmt: skip
TRAINING_FRAME = {
    "got column 'c' of dtype Object": people(c=["a", 1] * 4),
    "column 'kind', must have text, numbers or bools as categories; got dtype Object": people(kind=["a", 1] * 4),
    r"as categories; got Interval\(": people(kind=pd.cut(range(N), 2)),
}
NEW_FRAME = {
    "columns of the data set by name, .*without 'b'": people().drop(columns="b"),
    "categories of the data set, 'a', 'b', 'c'; got 'z' in 1 rows": people(kind=list("abcabcaz")),
    "column 'a', must be of real numbers; got dtype String": people().assign(a=list("abcabcab")),
}
COLUMNS: dict[str, Any] = {
    "must be the name of a column or a list of names; got": 1.0,
    "must name columns of df, 'a', 'b', 'kind', 'price'; got 'nosuch'": "nosuch",
}
OTHER = Standardize(torch.zeros(3), torch.ones(3))
ROWS = {
    "chosen must be a tensor, .*got the str 'x'": "x",
    r"a slice, a vector of row indices or a boolean mask \[N\]; got torch.float32": torch.ones(2),
}  # fmt: skip
REFUSED: Table = {
    **product({"data.Dataset.from_frame": from_people}, FRAME_ONLY | TRAINING_FRAME),
    **product({"data.Columns.x": lambda df: from_people().columns.x(df)}, FRAME_ONLY | NEW_FRAME),
    **product({"data.Dataset.rows": lambda rows: Dataset(X, Y).rows(rows)}, ROWS),
    "data.Dataset.like": [
        (lambda: from_people().like(people().drop(columns="price")), "df must have .*without 'price'"),
        (lambda: from_people(people(a=BOOLS)).columns.x(people(a=[2] * N)), "had bools and must have bools"),
        (lambda: from_people().columns.x(people(a=BOOLS)), "had numbers and must have numbers; got dtype Boolean"),
    ],
    "columns of a frame": [
        *((lambda c=c: from_people(target=c), f"target {said}") for said, c in COLUMNS.items()),
        (lambda: from_people(categories=["nosuch"]), "categories must name columns of df, .*got 'nosuch'"),
        (lambda: from_people(categories=["kind", "kind"]), "categories must name every column once; got"),
        (lambda: Split.from_frame(people(), "price", categories=["kind"], test=0.9), "at least two training rows of 8"),
    ],
    "data.Dataset": [
        (lambda: Dataset(X, Y, inputs=OTHER), r"inputs must be one standardisation .*of shape \[2\]; got .*\[3\]"),
        (lambda: Dataset(X, Y / 0 * torch.ones(2)), "y must be finite; got"),
        (lambda: Dataset(X[:3], Y), "one row per observation each; got 3 and 8 rows"),
        (lambda: Dataset(torch.nested.nested_tensor([torch.ones(2)] * N), Y), "rows of one shape; got a nested tensor"),
        (lambda: Split("a", Dataset(X, Y), Dataset((X, X), Y), "", "", ""), "test must have the inputs of train, x"),
    ],
}


@pytest.mark.few(30)
@table(REFUSED)
def test_a_refusal(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


def test_forms_of_rows() -> None:
    data = Dataset(X, Y)
    assert torch.equal(data.rows(torch.tensor([0, 1], dtype=torch.uint8)).y, Y[:2])  # bytes are rows
    assert torch.equal(data.rows([2, -1]).x, X[[2, -1]])
    assert len(data.rows(np.arange(N) > 5)) == 2
