"""What is stored of a run: scores of the weights that are kept."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pyrodrop import cli, guides, likelihoods, models, priors, zoo
from pyrodrop.analysis.lab.zoo import record
from pyrodrop.analysis.zoo import card, references, train
from pyrodrop.data import Dataset, Split
from pyrodrop.prediction.stored import Stored
from pyrodrop.zoo import trained
from pyrodrop.zoo.entry import Entry
from pyrodrop.zoo.sources import SOURCES

AS_LOADED = [name for name in zoo.ENTRIES if "as_loaded" in references.load(name)["result"]]


def network(data: Dataset) -> Any:
    return models.MLP([2, 4000, 3], prior=priors.ARD("weight"), likelihood=likelihoods.Categorical(), seed=None)


def classes(rows: int) -> Dataset:
    x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(rows))
    return Dataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0))


@pytest.mark.parametrize("guide", [guides.MeanField, functools.partial(guides.ARDDropout, log_variance=1.0)])
def test_a_reference_has_the_scores_of_what_loads(
    guide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the run have more digits; its loss stays."""
    split = Split("s", classes(40), classes(50), "m", "kg", "here")
    monkeypatch.setitem(SOURCES, "small", SOURCES["line-1000"].__class__("classes", lambda: [split]))
    settings = {"steps": 5, "engine": "traced", "device": "cpu", "progress": False}
    of = Entry("own/wide", "w", "here", "small", network, guide, lambda data: settings, {}, draws=5)
    monkeypatch.setitem(zoo.ENTRIES, "own/wide", of)
    monkeypatch.setattr(references, "FOLDER", tmp_path / "reference")
    assert cli.main(["run", "own/wide", "--out", str(tmp_path / "own/wide"), "--seed", "3", "--quiet"]) == 0
    ran = json.loads((tmp_path / "own/wide/results.json").read_text())
    record.main("own/wide", full=True, seeds=[3], save=tmp_path / "zoo")
    first = references.load("own/wide")["result"]
    assert first == trained.header(Stored.read(tmp_path / "zoo/own/wide.safetensors")).content["result"]
    fit: Any = trained.restore(of, tmp_path / "zoo/own/wide.safetensors", "cpu")
    density = float(fit.predict(split.test.x, 5, seed=3).log_density(split.test.y).double().mean())
    assert first["scores"]["log_density"] == pytest.approx(density, abs=1e-7)
    assert first["scores"]["log_density"] != ran["result"]["scores"]["log_density"]
    assert first["scores"]["training_nll"] == ran["models"]["own/wide"]["training_nll"]
    changed = {"scores": 0, "seeds": 0, "seconds": 0}
    assert first | changed == ran["result"] | changed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
@pytest.mark.parametrize("name", AS_LOADED)
def test_scores_as_loaded_are_those_without_pruned_weights(name: str, data_folder: Path) -> None:
    entry = zoo.entry(name)
    scores = train.scored([zoo.load(name)], train.load_splits(entry), entry.draws, 0).scores
    stored = references.load(name)["result"]["as_loaded"]
    assert {score: scores[score] for score in stored} == pytest.approx(stored, abs=0.03, rel=1e-3)  # of 10,000 digits


def test_a_card_says_what_its_scores_are_of() -> None:
    assert len(AS_LOADED) == 4
    for name in AS_LOADED:
        content = references.load(name)
        facts = dict(card.facts(zoo.entry(name), content["recipe"], content))
        error = content["result"]["as_loaded"]["error_percent"]
        assert facts["as loaded"].startswith(f"error_percent {error:.4g}, log_density -0.0")
