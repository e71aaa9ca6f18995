"""Data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import pyrodrop
from pyrodrop import data, guides
from pyrodrop.data import Dataset
from pyrodrop.data.splits import standardized
from pyrodrop.scaling import Standardize, varies
from tests.small import mlp, normal


def test_mauna_loa_is_the_weekly_records_monthly_means() -> None:
    """Against statsmodels' copy of the record, where it is installed."""
    co2 = data.mauna_loa()
    assert (len(co2.train), len(co2.test)) == (272, 249)
    x, y = torch.cat([co2.train.x, co2.test.x]), torch.cat([co2.train.y, co2.test.y])
    assert x.shape == y.shape == (521, 1)
    assert bool((x.diff(dim=0) > 0).all())
    assert float(co2.train.x[0]) == pytest.approx(1958.2083, abs=1e-3)
    record = pytest.importorskip("statsmodels.datasets.co2", reason="statsmodels is not installed").load_pandas().data
    months = record["co2"].resample("MS").mean().dropna()
    torch.testing.assert_close(y[:, 0].double(), torch.tensor(months.to_numpy()), atol=1e-4, rtol=0)
    assert isinstance(months, pd.Series)


def test_gals_series_are_the_published_ones(data_folder: Path) -> None:
    """Sizes and ranges as the reference states them."""
    co2, solar = data.gal2016("co2"), data.gal2016("solar")
    assert (len(co2.train), len(co2.test)) == (272, 1000)
    assert float(co2.train.x.min()) == pytest.approx(-1.72569, abs=1e-5)
    assert float(co2.train.x.max()) == pytest.approx(1.72569, abs=1e-5)
    assert [float(v) for v in (co2.train.y.min(), co2.train.y.max())] == pytest.approx([-1.9838, 2.1922], abs=1e-4)
    assert float(co2.test.x.max()) == pytest.approx(3.72369, abs=1e-5)
    assert not co2.truth
    assert len(solar.train) > 200


def test_the_test_part_of_gals_solar_series_is_what_its_gaps_lack(data_folder: Path) -> None:
    """Together one value a year; where the parts meet, the steps are as small as within them."""
    solar = data.gal2016("solar")
    assert solar.truth
    x, order = torch.cat([solar.train.x, solar.test.x])[:, 0].sort()
    torch.testing.assert_close(x.diff(), torch.full([374], float(x[1] - x[0])), atol=1e-6, rtol=1e-4)
    steps = torch.cat([solar.train.y, solar.test.y])[order, 0].diff().abs()
    meet = (order < len(solar.train)).int().diff() != 0
    assert int(meet.sum()) == 10
    assert float(steps[meet].mean()) < 1.5 * float(steps[~meet].mean())


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("value", [0.1, 1000.1, 1.6e9])
def test_rounding_errors_are_not_blown_up(value: float, sign: int) -> None:
    """The column differs by 2 floating-point steps in one row. Divided by the standard deviation, it would be 300 there."""
    column = torch.full((100_000, 1), sign * value)
    column[3] = torch.nextafter(torch.nextafter(column[3], torch.tensor(9e9)), torch.tensor(9e9))
    step = float(column[3] - column[0])
    scaling = Standardize.of(column)
    standard = scaling(column)
    assert not varies(column)
    assert float(standard[0]) == 0
    assert float(standard[3]) == min(step, 1.0)
    assert torch.equal(scaling.inverse(standard), column)
    assert varies(column + 10 * step * (torch.arange(100_000)[:, None] % 2))


def test_columns_of_float64_that_vary_by_less_than_float32_shows_are_standardised_in_float64() -> None:
    """They lie around the middle of two float32 numbers, which are 60 of their standard deviations apart."""
    x = 1000 + 2.0**-15 + 1e-6 * torch.randn(500, 1, dtype=torch.float64)
    y = torch.randn(500, 1, dtype=torch.float64)
    own = standardized(torch.cat([x, y], 1), y, "table")
    assert own.inputs is not None
    assert own.y.dtype == torch.float32
    torch.testing.assert_close(own.inputs(own.x)[:, :1], (x - x.mean()) / x.std(correction=0), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="table has a constant y"):
        standardized(y, torch.full_like(y, 0.1), "table")


@pytest.mark.parametrize("ones", [1, 6, 70, 500])
def test_zeros_and_ones_differ_by_2_however_rare_the_ones_are(ones: int) -> None:
    """Those of six rows in 1,000 by 13 if the standard deviation of the column divides them."""
    generator = torch.Generator().manual_seed(0)
    rare = torch.cat([torch.ones(ones, 1), torch.zeros(1000 - ones, 1)])
    other = torch.randn(1000, 2, generator=generator) * 5 + 3
    x = torch.cat([rare, 7 - 0.01 * rare, other], 1)
    inputs = data.Dataset(x, other[:, :1]).standardized().inputs
    assert inputs is not None
    z = inputs(x).float()
    torch.testing.assert_close(z.mean(0), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(z[0, :2] - z[-1, :2], torch.tensor([2.0, -2.0]), atol=1e-3, rtol=0)
    torch.testing.assert_close(z[:, 2:].std(0, correction=0), torch.ones(2))
    df = pd.DataFrame(x.double().numpy(), columns=list("abcd")).assign(y=other[:, 0].double().numpy())
    of_frame = data.Dataset.from_frame(df, "y").inputs
    assert of_frame is not None
    torch.testing.assert_close(of_frame.scale, inputs.scale, check_dtype=False)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.45, 0.9])
def test_a_column_that_is_mostly_one_value_is_divided_by_half_of_how_far_the_others_lie(share: float) -> None:
    """By NumPy: counts are 4 in most rows. One with other values in 45 % or 90 % of its rows has its standard deviation."""
    rng = np.random.default_rng(0)
    column = np.where(rng.random(2000) < share, 4 + rng.gamma(2.0, 3.0, 2000), 4.0)
    others = column[column != 4] - 4
    want = max(column.std(), np.sqrt(np.mean(others**2)) / 2)
    assert bool(want > 1.01 * column.std()) is (share < 0.3)
    made = Standardize.of_inputs(torch.from_numpy(column)[:, None])
    assert float(made.scale) == pytest.approx(want)
    assert float(made.loc) == pytest.approx(column.mean())


def test_standardisation_and_its_inverse() -> None:
    values = torch.randn(50, 3) * torch.tensor([1.0, 10.0, 0.0]) + 4
    scaling = Standardize.of(values)
    standard = scaling(values)
    torch.testing.assert_close(standard.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(standard.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaling.inverse(standard), values)
    with pytest.raises(
        ValueError, match="scale is the positive scale to divide by and must be a finite number above 0; got 0"
    ):
        Standardize(0.0, 0.0)


@pytest.mark.parametrize("array", [True, False], ids=["arrays", "tensors"])
def test_what_the_caller_changes_afterwards_reaches_nothing(array: bool) -> None:
    """All that is kept is a copy; a data set that is itself changed is no longer that of its fit."""
    x, y = (normal(6, size, seed=size, dtype=torch.float64) for size in (2, 1))
    given = (x.numpy(), y.numpy()) if array else (x, y)
    model = mlp(2, 3, 1).double()
    exact, rows = guides.ExactLastLayer(model, guides.Point), data.Dataset(*given)
    exact.condition_on(x, y)
    fit = pyrodrop.fit(model, guides.MeanField(model), rows, steps=2, progress=False)
    made: list[tuple[Any, Any]] = [
        (rows, lambda it: it.fingerprint),
        (data.Dataset({"a": given[0]}, given[1]), lambda it: it.fingerprint),
        (data.Keywords({"x": [given[0]], "y": given[1]}), lambda it: it.fingerprint),
        (Standardize(x[0], x[1].exp()), lambda it: str(it(x.new_ones(1, 2)))),
        (exact, lambda it: str(it.mean())),
        (fit, lambda it: str(it.elbo(2))),
    ]
    before = [ask(it) for it, ask in made]
    x *= 3
    y -= 7
    assert [ask(it) for it, ask in made] == before
    rows.y += 1
    with pytest.raises(ValueError, match="elbo needs the data that this fit was trained on"):
        fit.elbo(2)


IDS, MASK, KINDS = torch.arange(12).reshape(6, 2), torch.ones(6, 2), torch.arange(6) % 2


def test_a_tuple_and_a_mapping_are_kept_as_they_are() -> None:
    pair = Dataset((IDS, MASK.numpy()), KINDS)
    assert isinstance(pair.x, tuple)
    assert len(pair) == 6
    assert torch.equal(pair.x[0], IDS)
    assert torch.equal(pair.x[1], MASK)
    named = Dataset.of(({"ids": IDS, "length": torch.full((6,), 2)}, KINDS))
    assert list(named.x) == ["ids", "length"]
    assert named.x["length"].shape == (6,)  # only a single vector becomes a column
    assert Dataset((1.0, 2.0), torch.zeros(2)).x.shape == (2, 1)  # type: ignore[arg-type]  # numbers are one array
    assert Dataset(np.ones(3), np.zeros(3)).x.shape == (3, 1)  # type: ignore[arg-type]


def test_rows_are_those_of_every_tensor() -> None:
    targets = Standardize(1.0, 2.0)
    whole = Dataset({"ids": IDS, "mask": MASK}, KINDS.double(), targets=targets)
    for part, rows in (
        (whole.first(2), [0, 1]),
        (whole.rows(torch.tensor([4, 1])), [4, 1]),
        (whole.rows(KINDS == 1), [1, 3, 5]),
    ):
        assert torch.equal(part.x["ids"], IDS[rows])
        assert torch.equal(part.x["mask"], MASK[rows])
        assert torch.equal(part.y, KINDS[rows].double())
        assert part.targets is targets


def test_only_one_tensor_of_real_numbers_is_standardised() -> None:
    for x, said in (((IDS, MASK), "x is a tuple of 2"), (IDS, "x has dtype torch.int64")):
        with pytest.raises(ValueError, match=said):
            Dataset(x, KINDS.float()).standardized()
        with pytest.raises(ValueError, match=said):
            Dataset(x, KINDS, inputs=Standardize(0.0, 2.0))
    with pytest.raises(ValueError, match="y has dtype torch.int64"):
        Dataset(MASK, KINDS).standardized()
