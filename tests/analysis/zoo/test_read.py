"""Networks with dropout of their own: the guide is that which `pyrodrop.read` finds, draws are passes of the module."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.linear_model import Ridge

import pyrodrop
from pyrodrop import zoo
from pyrodrop.analysis.zoo import references
from pyrodrop.zoo import entries, networks
from pyrodrop.zoo.entry import Entry
from pyrodrop.zoo.sources import SOURCES

PASSES = 1000


@pytest.mark.parametrize("name", entries.READ)
def test_what_each_dropout_becomes_is_what_the_docstring_says(name: str) -> None:
    """And the guide of the entry drops what the guide of the reading drops, with its rates."""
    entry: Entry = zoo.entry(f"read/{name}")
    x = torch.randn(4, 22, 1) if name == "lstm" else torch.randn(4, 1, 14, 14)
    likelihood = entry.model.keywords["likelihood"]()  # type: ignore[attr-defined]
    reading = pyrodrop.read(
        entries.READ[name][0](), x, likelihood=likelihood, weight_decay=networks.READ_DECAY, num_data=10
    )
    ours = entry.guide(reading.model)  # type: ignore[arg-type]
    assert ours.describe() == reading.guide.describe()  # type: ignore[union-attr]
    shown = {(row[0], row[3].partition(" ")[2].partition(" of ")[0]) for row in reading.rows() if row[2] is not None}
    columns = {
        "resnet": {"blocks.0.conv2.weight", "blocks.2.conv2.weight", "head.weight"},
        "transformer": {"head.weight"},
        "lstm": {"head.weight"},
    }[name]
    assert {layer for layer, kind in shown if kind == "columns"} == columns
    assert any(layer == "-" for layer, _ in shown) == (name != "resnet")


def test_what_is_said_of_the_forecast_is_so(data_folder: Path) -> None:
    ours, [split] = references.scores("read/lstm"), SOURCES["solar/plain"].load()
    (x, y), (new, truth) = ((rows.x.flatten(1).double(), rows.y.double()) for rows in (split.train, split.test))
    rmse = ((Ridge().fit(x, y).predict(new).reshape(-1, 1) - truth.numpy()) ** 2).mean() ** 0.5
    said = " ".join((entries.__doc__ or "").split())
    assert f"RMSE of {rmse:.3f} against {ours['rmse']:.3f}" in said
