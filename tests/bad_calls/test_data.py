"""Bad data: what is no array of numbers, and what only looks bad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

from pyrodrop.data import Dataset, Split
from pyrodrop.data.dataset import check_inputs
from pyrodrop.scaling import Standardize

from .harness import Call, Case, cases
from .kinds import COUNT, FLAG, INSIDE, NAME, OBJECT, POSITIVE, UNCHECKED, Kind, Shows, kind, tensor
from .shared import N, X, Y

TABLE = {"a": np.arange(N), "b": np.linspace(0, 1, N)}
SAME = np.stack([TABLE["a"], TABLE["b"]], 1)


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({**TABLE, **columns})


# What no array of numbers is, of whatever shape.
NO_ARRAY = tensor(N, 2).but("another axis") | Kind({
    "set": lambda: {1.0, 2.0},
    "generator": lambda: (float(i) for i in range(N)),
    "ragged": lambda: [[1.0], [1.0, 2.0]] * 4,
    "masked rows": lambda: list(np.ma.masked_array(np.ones((N, 2)), np.eye(N, 2))),
    "ragged arrays": lambda: [np.ones(1), np.ones(2)] * 4,
    "list of tensors": lambda: [torch.ones(2)] * N,
    "list of None": lambda: [None] * N,
    "bytes": lambda: b"12345678",
    "csr": lambda: torch.eye(N).to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(N, 2), 0.1, 0, torch.quint8),
    "float8": lambda: torch.ones(N, 2).to(torch.float8_e4m3fn),
    "complex array": lambda: np.ones((N, 2), dtype=complex),
    "text": lambda: np.full((N, 2), "1.0"),
    "dates": lambda: np.full((N, 2), "2020-01-01", dtype="datetime64[D]"),
    "records": lambda: np.zeros(N, dtype=[("a", "f8"), ("b", "f8")]),
    "beyond int64": lambda: np.full((N, 2), 2**63, dtype=np.uint64),
    "NaN array": lambda: np.full((N, 2), np.nan),
    "too long double": lambda: np.full((N, 2), np.longdouble("1e400")),
    "category": lambda: frame(c=pd.Categorical(list("abababab"))),
    "words of a table": lambda: frame(c=list("abababab")),
    "dates of a table": lambda: frame(c=pd.date_range("2020-01-01", periods=N)),
    "durations of a table": lambda: frame(c=pd.to_timedelta(range(N))),
    "complex of a table": lambda: frame(c=np.ones(N) * 1j),
    "NaN of a table": lambda: frame(c=[np.nan, *range(N - 1)]),
    "NA of a table": lambda: frame(c=pd.array([None, *range(N - 1)], dtype="Int64")),
    "objects of a table": lambda: frame(c=np.full(N, None)),
    "category column": lambda: pd.Series(list("abababab"), dtype="category"),
    "NA column": lambda: pd.Series([None, *range(N - 1)], dtype="Int64", name="price"),
    "words column": lambda: pd.Series(list("abababab")),
    "no columns": lambda: pd.DataFrame(index=range(0)),
    "equal names": lambda: pd.DataFrame(SAME, columns=["a", "a"]),
})  # fmt: skip


def equals(want: Any, dtype: torch.dtype) -> Any:
    """Checks that x has these values and this dtype."""
    want = np.asarray(want)

    def check(result: Any) -> None:
        got = result.x if isinstance(result, Dataset) else result
        want_columns = want[:, None] if want.ndim == 1 else want
        assert (got.dtype, tuple(got.shape)) == (dtype, want_columns.shape)
        assert not got.requires_grad
        assert np.array_equal(got.double().numpy(), want_columns.astype(float))

    return check


F64, I64 = torch.float64, torch.int64
WORKS = {
    "float64 array": (lambda: SAME, equals(SAME, F64)),
    "float32 array": (lambda: SAME.astype("f4"), equals(SAME.astype("f4"), torch.float32)),
    "float16 array": (lambda: SAME.astype("f2"), equals(SAME.astype("f2"), torch.float16)),
    "long double": (lambda: SAME.astype(np.longdouble), equals(SAME, F64)),
    "big endian": (lambda: SAME.astype(">f8"), equals(SAME, F64)),
    "big-endian int": (lambda: SAME.astype(">i4"), equals(SAME.astype(int), torch.int32)),
    "negative strides": (lambda: SAME[::-1, ::-1], equals(SAME[::-1, ::-1], F64)),
    "odd strides": (lambda: packed()["a"], equals(np.arange(N), F64)),
    "read-only": (lambda: np.broadcast_to(SAME[:1], (N, 2)), equals(np.broadcast_to(SAME[:1], (N, 2)), F64)),
    "transposed": (lambda: np.asfortranarray(SAME), equals(SAME, F64)),
    **{
        f"{kind}": (lambda kind=kind: SAME.astype(kind), equals(SAME.astype(kind), dtype))
        for kind, dtype in {
            "u1": torch.uint8,
            "u2": I64,
            "u4": I64,
            "u8": I64,
            "i1": torch.int8,
            "?": torch.bool,
        }.items()
    },
    "uint16 tensor": (lambda: torch.arange(N).to(torch.uint16), equals(range(N), I64)),
    "no mask set": (lambda: np.ma.masked_array(SAME), equals(SAME, F64)),
    "matrix": (lambda: np.matrix(SAME), equals(SAME, F64)),
    "frame": (frame, equals(SAME, F64)),
    "frame of whole numbers": (lambda: frame()[["a"]], equals(TABLE["a"], I64)),
    "frame of bools and floats": (
        lambda: frame(a=TABLE["a"] > 3),
        equals(np.stack([TABLE["a"] > 3, TABLE["b"]], 1), F64),
    ),
    "nullable frame": (lambda: frame().convert_dtypes(), equals(SAME, F64)),
    "frame of several levels": (
        lambda: pd.DataFrame(SAME, columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2)])),
        equals(SAME, F64),
    ),
    "sparse frame": (lambda: frame().astype(pd.SparseDtype("f8")), equals(SAME, F64)),
    "sparse column": (lambda: frame().astype(pd.SparseDtype("f8"))["b"], equals(TABLE["b"], F64)),
    "series": (lambda: frame()["b"], equals(TABLE["b"], F64)),
    "series by place": (lambda: frame().set_index(np.arange(N)[::-1])["b"], equals(TABLE["b"], F64)),
    "nullable series": (lambda: pd.Series(TABLE["a"], dtype="Int32"), equals(TABLE["a"], torch.int32)),
    "index": (lambda: pd.Index(TABLE["b"]), equals(TABLE["b"], F64)),
    "xarray": (lambda: xr.DataArray(SAME), equals(SAME, F64)),
    "list": (lambda: SAME.tolist(), equals(SAME.astype("f4"), torch.float32)),
    "list of whole numbers": (lambda: list(range(N)), equals(range(N), I64)),
    "range": (lambda: range(N), equals(range(N), I64)),
    "list of arrays": (lambda: list(SAME), equals(SAME, F64)),
    "memory": (lambda: memoryview(TABLE["b"]), equals(TABLE["b"], F64)),
    "with gradient": (lambda: torch.tensor(SAME, requires_grad=True), equals(SAME, F64)),
    "of a graph": (lambda: 2 * torch.tensor(SAME, requires_grad=True), equals(2 * SAME, F64)),
    "parameter": (lambda: torch.nn.Parameter(torch.tensor(SAME)), equals(SAME, F64)),
    "negative bit": (lambda: torch.tensor(SAME + 0j).conj().imag, equals(0 * SAME, F64)),
    "expanded": (lambda: torch.ones(1, 2).expand(N, 2), equals(np.ones((N, 2)), torch.float32)),
    "bfloat16": (lambda: torch.ones(N, 2).bfloat16(), equals(np.ones((N, 2)), torch.bfloat16)),
}


def packed() -> np.ndarray[Any, Any]:
    """Records whose real numbers are 9 bytes apart."""
    records = np.zeros(N, dtype=np.dtype([("flag", "u1"), ("a", "f8")], align=False))
    records["a"] = np.arange(N)
    return records


def data() -> Dataset:
    return Dataset(X, Y)


def people(**columns: Any) -> pd.DataFrame:
    return frame(kind=list("abcabcab"), price=np.linspace(1.0, 3.0, N) ** 2, **columns)


NO_FRAME = OBJECT | Kind({
    "array": lambda: SAME, "series": lambda: frame()["a"], "class": lambda: pd.DataFrame, "pair": lambda: (X, Y),
    "no rows": lambda: people()[:0], "equal names": lambda: pd.concat([people(), people()], axis=1),
    "levels": lambda: pd.concat({"one": people()}, axis=1),
    "names": Shows("1.5", lambda: people().rename(columns={"a": 1.5})),
})  # fmt: skip
NO_PEOPLE = NO_FRAME | Kind({
    "missing": Shows("'a' in 1 rows", lambda: people().assign(a=[None, *range(N - 1)])),
    "infinite": Shows("inf in row 0", lambda: people().assign(b=[np.inf, *range(N - 1)])),
    "missing word": Shows("'kind' in 1 rows", lambda: people().assign(kind=[None, *"abcabca"])),
})  # fmt: skip
NO_TRAINING_FRAME = NO_PEOPLE | Kind({
    "words": Shows("'c' of dtype", lambda: people(c=list("abcabcab"))),
    "mixed": Shows("'c' of dtype Object", lambda: people(c=[1, "x"] * 4)),
    "dates": Shows("'c' of dtype Datetime", lambda: people(c=pd.date_range("2020", periods=N))),
    "durations": Shows("'c' of dtype Duration", lambda: people(c=pd.to_timedelta(range(N)))),
    "complex": Shows("'c' of dtype Unknown", lambda: people(c=1j * np.ones(N))),
    "objects": Shows("'c' of dtype Object", lambda: people(c=[[1]] * N)),
    "categorical": Shows("'c' of dtype Categorical", lambda: people(c=pd.Categorical(list("abcabcab")))),
    "two kinds": Shows("dtype Object", lambda: people().assign(kind=["a", 1] * 4)),
    "dates as categories": Shows("dtype Datetime", lambda: people().assign(kind=pd.date_range("2020", periods=N))),
    "intervals as categories": Shows("Interval(", lambda: people().assign(kind=pd.cut(range(N), 2))),
    "too large": Shows("1e+39", lambda: people(t=1e39 * np.arange(N))),
})  # fmt: skip
NO_NEW_FRAME = NO_PEOPLE | Kind({
    "no column": Shows("without 'b'", lambda: people().drop(columns="b")),
    "unseen": Shows("'z' in 1 rows", lambda: people().assign(kind=list("abcabcaz"))),
    "words for numbers": Shows("dtype", lambda: people().assign(a=list("abcabcab"))),
    "numbers for words": Shows("0, 1, 2, 3, 4 and 3 more in 8 rows", lambda: people().assign(kind=range(N))),
})  # fmt: skip
NO_COLUMN = kind(
    None_=None, unknown="nosuch", number=1.0, bool=True, dict={}, unknown_in_list=["nosuch"], upper="Price"
)
FRAME_ARGS = {
    "target": NO_COLUMN | kind(empty=[], twice=["price", "price"], words_and_numbers=["price", "kind"]),
    "categories": NO_COLUMN | kind(twice=["kind", "kind"]),
    "encode": NAME,
    "standardise": NO_COLUMN.but("bool") | kind(words=["kind"]),
}


def from_people() -> Dataset:
    return Dataset.from_frame(people(), "price", categories=["kind"])


def in_words(data: Dataset) -> tuple[str, ...]:
    assert data.columns is not None
    return data.columns.names


NAMES_OF_PEOPLE = ("a", "b", "kind=a", "kind=b", "kind=c")
SPLIT = {"name": "a", "train": data(), "test": data(), "x_unit": "", "y_unit": "", "source": ""}
CALLS = [
    Call(
        "data.Dataset",
        lambda: {"x": X, "y": Y},
        {
            "x": NO_ARRAY,
            "y": NO_ARRAY.but("list of tensors", "NaN of a table", "NA of a table", "NA column")
            | {"tuple of arrays": lambda: (np.ones(N), np.ones(3))},
            "inputs": OBJECT.but("None") | {"other width": lambda: Standardize(torch.zeros(3), torch.ones(3))},
            "targets": OBJECT.but("None") | {"other width": lambda: Standardize(torch.zeros(3), torch.ones(3))},
        },
        works={f"x: {label}": case for label, case in WORKS.items()},
    ),
    Call(
        "data.Keywords",
        lambda: {"values": {"x": X}},
        {"values": OBJECT.but("dict") | {"number for a name": Shows("1", lambda: {1: X})}},
    ),
    Call("data.dataset.check_inputs", lambda: {"x": X}, {"x": NO_ARRAY}, function=check_inputs),
    Call(
        "data.Dataset.of",
        lambda: {"data": (X, Y)},
        {
            "data": OBJECT
            | {
                "one tensor": lambda: torch.ones(2, N),
                "array": lambda: np.ones((2, N)),
                "table": frame,
                "mapping": lambda: {"x": X, "y": Y},
                "one": lambda: (X,),
                "three": lambda: (X, Y, Y),
            }
        },
        function=Dataset.of,
    ),
    Call("data.Dataset.first", lambda: {"count": 2}, {"count": COUNT | {"more": lambda: N + 1}}, function=data().first),
    Call(
        "data.Dataset.rows",
        lambda: {"chosen": slice(2)},
        {
            "chosen": Kind(
                {
                    "None": lambda: None,
                    "number": lambda: 1,
                    "word": lambda: "x",
                    "floats": lambda: torch.ones(2),
                    "matrix": lambda: torch.ones(2, 2).long(),
                    "beyond": lambda: torch.tensor([N]),
                    "short mask": lambda: torch.ones(3) > 0,
                    "before": lambda: torch.tensor([-N - 1]),
                }
            )
        },
        function=data().rows,
        works={
            "chosen: bytes are rows": (
                lambda: torch.tensor([0, 1], dtype=torch.uint8),
                lambda subset: torch.equal(subset.y, Y[:2]),
            ),
            "chosen: list": (lambda: [2, -1], lambda subset: torch.equal(subset.x, X[[2, -1]])),
            "chosen: array of bools": (lambda: np.arange(N) > 5, lambda subset: len(subset) == 2),
        },
    ),
    Call(
        "data.Split",
        lambda: dict(SPLIT),
        {
            "test": OBJECT | {"other inputs": lambda: Dataset((X, X), Y)},
            "period": POSITIVE.but("None"),
            "truth": FLAG,
            **dict.fromkeys(("name", "x_unit", "y_unit", "source"), UNCHECKED),
        },
        function=Split,
    ),
    Call(
        "data.Dataset.from_frame",
        lambda: {"df": people(), "target": "price", "categories": ["kind"]},
        {"df": NO_TRAINING_FRAME.but("string"), **FRAME_ARGS},
        works={
            "df: any index": (lambda: people().set_index([[7] * N]), lambda made: in_words(made) == NAMES_OF_PEOPLE),
            "df: nullable": (lambda: people().convert_dtypes(), lambda made: torch.equal(made.x, from_people().x)),
            "categories: one name": (lambda: "kind", lambda made: torch.equal(made.x, from_people().x)),
            "standardise: names": (lambda: ["a"], lambda made: made.inputs.loc.tolist() == [3.5, 0, 0, 0, 0]),
        },
    ),
    Call(
        "data.Dataset.x_of",
        lambda: {"df": people()},
        {"df": NO_NEW_FRAME},
        function=lambda df: from_people().x_of(df),
        works={
            "df: other order": (
                lambda: people(z=list("zzzzzzzz"))[["price", "kind", "z", "b", "a"]],
                lambda x: torch.equal(x, from_people().x),
            ),
            "df: one row": (lambda: people()[:1], lambda x: torch.equal(x, from_people().x[:1])),
        },
    ),
    Call(
        "data.Dataset.like",
        lambda: {"df": people()},
        {"df": NO_NEW_FRAME | {"no target": Shows("without 'price'", lambda: people().drop(columns="price"))}},
        function=lambda df: from_people().like(df),
    ),
    Call(
        "data.Split.from_frame",
        lambda: {"df": people(), "target": "price", "categories": ["kind"]},
        {
            "df": NO_TRAINING_FRAME.only("None", "array", "missing", "words"),
            "target": FRAME_ARGS["target"].only("None", "unknown"),
            "test": INSIDE | kind(nearly_all=0.9),
        },
    ),
]


@pytest.mark.few(7)
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_data(case: Case) -> None:
    assert case.wrong() == {}


def test_a_table_names_its_column_and_row() -> None:
    with pytest.raises(ValueError, match=r"x, column 'b', .*NaN or null in 2 rows of a DataFrame.*first in row 3"):
        Dataset(pd.DataFrame({"a": range(5), "b": [1, 2, 3, np.nan, np.nan]}, index=list("abcde")), range(5))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"y, column 'kind', must be of real numbers; got dtype Categorical"):
        Dataset(X, pd.Series(list("abababab"), dtype="category", name="kind"))  # type: ignore[arg-type]


def test_rows_are_matched_and_nested_tensors_are_none() -> None:
    with pytest.raises(ValueError, match="one row per observation each; got 3 and 8 rows"):
        Dataset(X[:3], Y)
    with pytest.raises(TypeError, match="rows of one shape; got a nested tensor"):
        Dataset(torch.nested.nested_tensor([torch.ones(2)] * N), Y)
