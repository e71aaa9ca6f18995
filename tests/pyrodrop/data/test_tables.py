"""Airfoil and bikes: their columns and splits, against pandas and scikit-learn, and the grades of wine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import train_test_split

from pyrodrop import data
from pyrodrop.zoo.sources import SOURCES

FILES = {"airfoil": ("airfoil.csv", "target", 5), "bikes": ("bike_sharing_hour.csv.gz", "cnt", 1)}


@pytest.mark.parametrize("name", FILES)
def test_a_table_is_its_file_and_its_first_split_that_of_bde(name: str, data_folder: Path) -> None:
    file, target, count = FILES[name]
    frame = pd.read_csv(data_folder / "tables" / file)
    if name == "bikes":
        assert (frame["cnt"] == frame["casual"] + frame["registered"]).all()
        frame = frame.drop(columns=["instant", "dteday", "casual", "registered"])
    whole = getattr(data, name)()
    np.testing.assert_array_equal(whole.x, frame.drop(columns=target).to_numpy(float))
    np.testing.assert_array_equal(whole.y, frame[[target]].to_numpy(float))
    train, test = train_test_split(np.arange(len(frame)), test_size=0.2, random_state=0)
    assert (len(whole), whole.rows[0][0].tolist(), whole.rows[0][1].tolist()) == (count, train.tolist(), test.tolist())


def test_grades_of_wine_are_its_numbers_less_three(data_folder: Path) -> None:
    """Between 23 and 32 % of the test rows are in the training part too."""
    splits, numbers, twins = SOURCES["uci/wine-grades"].load(), data.uci("wine"), []
    for split, of_numbers in zip(splits, numbers, strict=False):
        for rows, real in ((split.train, of_numbers.train), (split.test, of_numbers.test)):
            assert torch.equal(rows.x, real.x)
            assert torch.equal(rows.y.float() + 3, real.y[:, 0])
        assert split.test.inputs is split.train.inputs
        assert split.train.y.unique().tolist() == list(range(6))
        known = set(map(tuple, split.train.x.tolist()))
        twins.append(np.mean([tuple(row) in known for row in split.test.x.tolist()]))
    assert len(splits) == 5
    assert (round(min(twins), 2), round(max(twins), 2)) == (0.23, 0.32)


def test_larynx_has_ends_of_times_and_folds_that_are_all_of_it() -> None:
    """Sizes as Klein & Moeschberger (2003), section 1.8, have them: 90 men, stages of 33, 17, 27 and 13, 50 deaths."""
    rows = data.larynx()
    assert torch.bincount(rows.x[:, 1].long()).tolist() == [0, 33, 17, 27, 13]
    died = rows.y[:, 0] == rows.y[:, 1]
    assert (len(rows), int(died.sum())) == (90, 50)
    assert bool(rows.y[~died, 1].isposinf().all())
    assert bool(((rows.x[:, 0] > 40) & (rows.x[:, 0] < 90) & (rows.y[:, 0] < 11)).all())
    splits = SOURCES["larynx"].load()
    tested = torch.cat([split.test.x for split in splits])
    assert sorted(map(tuple, tested.tolist())) == sorted(map(tuple, rows.x.tolist()))
    for split in splits:
        assert (len(split.train), len(split.test)) == (72, 18)
        torch.testing.assert_close(split.train.inputs.loc, split.train.x.mean(0))
        assert split.test.inputs is split.train.inputs
