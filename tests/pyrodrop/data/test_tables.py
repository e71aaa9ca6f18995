"""Tables: their columns and splits are the published ones, their standardisation is that of the training rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import train_test_split

from pyrodrop import data
from pyrodrop.data.files import FILES
from pyrodrop.data.published import UCI

TABLES = {"airfoil": ("airfoil.csv", "target", 5), "bikes": ("bike_sharing_hour.csv.gz", "cnt", 1)}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_its_file_and_its_first_split_that_of_bde(name: str, data_folder: Path) -> None:
    file, target, count = TABLES[name]
    frame = pd.read_csv(data_folder / "tables" / file)
    if name == "bikes":
        assert (frame["cnt"] == frame["casual"] + frame["registered"]).all()
        frame = frame.drop(columns=["instant", "dteday", "casual", "registered"])
    whole = data.uci(name)
    np.testing.assert_array_equal(whole.x, frame.drop(columns=target).to_numpy(float))
    np.testing.assert_array_equal(whole.y, frame[[target]].to_numpy(float))
    train, test = train_test_split(np.arange(len(frame)), test_size=0.2, random_state=0)
    assert (len(whole), whole.rows[0][0].tolist(), whole.rows[0][1].tolist()) == (count, train.tolist(), test.tolist())


@pytest.mark.parametrize("name", UCI)
def test_the_splits_are_the_published_ones(name: str, data_folder: Path) -> None:
    """The first and the last published test index files of every set, and how many splits there are."""
    folder = (data_folder / FILES[name].place).parent
    table = data.uci(name)
    count = int((folder / "n_splits.txt").read_text())
    assert len(table) == count
    for number in (0, count - 1):
        published = np.loadtxt(folder / f"index_test_{number}.txt").astype(int)
        assert table.rows[number][1].tolist() == published.tolist()
    sizes = {(len(train), len(test)) for train, test in table.rows}
    assert len(sizes) == 1, "splits of one size, which replicates of a fit need"
    features = np.loadtxt(folder / "index_features.txt").astype(int).tolist()
    target = int((folder / "index_target.txt").read_text())
    raw = torch.from_numpy(np.loadtxt(folder / "data.txt"))
    torch.testing.assert_close(table.x, raw[:, features])
    torch.testing.assert_close(table.y, raw[:, [target]])


def test_a_split_is_standardised_by_its_training_rows(data_folder: Path) -> None:
    """Against numpy; the columns of naval that never change are only centred."""
    table = data.uci("naval")
    split = table[3]
    train, test = table.rows[3]
    assert sorted(torch.cat([train, test]).tolist()) == list(range(11934))
    assert split.train.x.shape == (10741, 16)
    assert split.test.y.shape == (1193, 1)
    assert split.test.inputs is split.train.inputs
    assert split.test.targets is split.train.targets
    raw = table.x[train].numpy()
    sd = raw.std(0)
    constant = raw.min(0) == raw.max(0)
    assert constant.sum() == 2
    sd[constant] = 1
    want = (raw - raw.mean(0)) / sd
    torch.testing.assert_close(split.train.inputs(split.train.x).double().numpy(), want, atol=2e-3, rtol=0)
    assert bool((split.train.inputs(split.train.x)[:, constant] == 0).all())
    y = table.y[train].numpy()
    np.testing.assert_allclose(split.train.targets(split.train.y).numpy(), (y - y.mean()) / y.std(), atol=1e-4)
    assert [s.name for s in table[:2]] == ["naval-0", "naval-1"]


def test_mistakes_are_said_in_words(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (data_folder / "uci" / "yacht" / "data.txt").read_bytes()
    monkeypatch.setenv("PYRODROP_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"published file of yacht is expected at .*uci/yacht/data.txt, but this file does not"
    ):
        data.uci("yacht")
    file = tmp_path / "uci" / "yacht" / "data.txt"
    file.parent.mkdir(parents=True)
    file.write_bytes(content[:-2])
    with pytest.raises(
        ValueError,
        match="not the published file of yacht: the SHA-256 hash of its content is [0-9a-f]+ and should be .*; remove it",
    ):
        data.uci("yacht")
