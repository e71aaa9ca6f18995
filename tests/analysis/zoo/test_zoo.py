"""The zoo: every entry is whole, has a reference that is its own, and still does what the reference says."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyrodrop import Fit, cli, guides, zoo
from pyrodrop.analysis.lab.networks.alone import drawn_as_alone
from pyrodrop.analysis.zoo import card, references, train
from pyrodrop.analysis.zoo.train import load_splits, measure
from pyrodrop.data import Dataset
from pyrodrop.zoo import entries, networks
from pyrodrop.zoo.sources import SOURCES

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
YACHT = zoo.entry("uci/yacht")


@functools.cache
def training_data(source: str) -> Dataset:
    return SOURCES[source].load()[0].train  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", zoo.ENTRIES)
def test_every_entry_is_whole_and_has_a_reference(name: str) -> None:
    entry, kept = zoo.entry(name), references.load(name)
    assert entry.summary
    assert entry.source
    assert entry.purpose
    assert entry.data in SOURCES
    if isinstance(kept["result"], dict):
        assert set(entry.published) <= set(kept["result"]["scores"])


@pytest.mark.few(2)
@pytest.mark.parametrize("name", zoo.ENTRIES)
def test_every_reference_was_measured_on_what_the_entry_is(name: str, data_folder: Path) -> None:
    entry = zoo.entry(name)
    data = training_data(entry.data)
    assert references.recipe(entry, data) == references.load(name)["recipe"]
    model, guide = entry.build(data)
    assert list(guide.sites) == list(model.weight_sites())
    of_another_seed, _ = entry.build(data, seed=1)
    pairs = zip(model.weight_sites().values(), of_another_seed.weight_sites().values(), strict=True)
    assert not any(torch.equal(one, other) for one, other in pairs if one.dim() > 1)  # biases may start at 0


def test_the_kinks_of_a_series_are_spread_over_its_inputs() -> None:
    """First weights are uniform within the gain; w.x + b is 0 at a uniform point: moments in standard errors, and ends."""
    data = Dataset(torch.zeros(2, 1), torch.tensor([0.0, 1.0]))
    model = networks.series(data, widths=[1, 10_000, 1], activation="tanh", gain=30.0, scale=1.0)
    weight, bias = model.weight_sites()["layers.0.weight"][:, 0], model.free["layers.0.bias"].detach()
    kinks = -bias / weight
    assert float(weight.abs().max()) == pytest.approx(30, rel=1e-3)  # of 10,000 numbers
    assert float(kinks.abs().max()) == pytest.approx(3**0.5, abs=0.01)  # 10,000 uniform points: 5e-4 away, most often
    assert abs(float(kinks.mean())) < 4 / 10_000**0.5
    assert float(kinks.square().mean()) == pytest.approx(1, abs=4 * (0.8 / 10_000) ** 0.5)  # E[u^4] - 1 = 9 / 5 - 1


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda text: text[:100], "is not valid JSON"),
        (lambda text: text.replace('"recipe"', '"verse"'), "lacks recipe"),
        (lambda text: text.replace('"entry": "uci/yacht"', '"entry": "uci/boston"'), "is that of uci/boston"),
        (lambda text: "[]", "must be a JSON object; it has a list"),
    ],
)
def test_a_broken_reference_is_named(
    break_it: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = references.file("uci/yacht").read_text()
    monkeypatch.setattr(references, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="uci/yacht has no reference"):
        references.load("uci/yacht")
    (tmp_path / "uci").mkdir()
    references.file("uci/yacht").write_text(break_it(text))
    with pytest.raises(ValueError, match=f"the reference of uci/yacht.*{message}"):
        references.load("uci/yacht")


def test_scores_are_means_over_splits_of_fits_alone(data_folder: Path) -> None:
    """Two splits as replicates: each the fit alone with its seed, scored alone."""
    splits = load_splits(YACHT, 2)
    with drawn_as_alone(0, 1):
        both = measure(YACHT, splits, draws=10, steps=20, engine="traced", device="cpu", progress=False)
    alone = [
        YACHT.fit(split.train, seed=number, steps=20, engine="pyro", device="cpu", progress=False)
        for number, split in enumerate(splits)
    ]
    errors = []
    for number, (fit, split) in enumerate(zip(alone, splits, strict=True)):
        mean = fit.predict(split.test.x, 10, seed=number).mean
        errors.append(float((mean - split.test.y).square().mean().sqrt()))
    assert both.scores["rmse"] == pytest.approx(sum(errors) / 2, rel=1e-3)
    assert both.errors["rmse"] == pytest.approx(abs(errors[0] - errors[1]) / 2, rel=1e-2)
    nll = sum(float(fit.history[-2:, 0].mean()) / len(fit.data or ()) for fit in alone) / 2
    assert both.scores["training_nll"] == pytest.approx(nll, rel=1e-3)


@pytest.mark.slow
def test_compression_is_reported_once_the_divergence_has_its_full_weight(data_folder: Path) -> None:
    entry = zoo.entry("rotated-digit/sparse")
    [split] = load_splits(entry)
    split = dataclasses.replace(split, train=split.train.first(200), test=split.test.first(50))
    options: dict[str, Any] = {"draws": 2, "steps": 2, "device": "cpu", "engine": "traced", "progress": False}
    assert "compression" not in measure(entry, [split], **options).scores
    noisy = dataclasses.replace(entry, guide=functools.partial(guides.SparseDropout, log_variance=-2.0))
    measured = measure(noisy, [split], kl_weight=1.0, **options)
    guide: Any = measured.fits[0].guide
    alphas = [guide.log_variance[n] - 2 * m.abs().log() for n, m in guide.mean().items()]
    kept = sum(int((log_alpha < 3).sum()) for log_alpha in alphas)
    total = sum(log_alpha.numel() for log_alpha in alphas)
    assert 0 < kept < 0.9 * total
    assert measured.scores["compression"] == pytest.approx(total / kept)


def test_run_of_an_entry(
    tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(zoo.ENTRIES, "co2/mean-field", dataclasses.replace(zoo.entry("co2/mean-field"), draws=20))
    words = ["run", "co2/mean-field", "--steps", "10", "--seed", "3", "--out", str(tmp_path), "--quiet"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("co2/mean-field, seed 3", "rmse", "reference", "published"))
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["settings"]["data"] == "mauna-loa"
    entry = zoo.entry("co2/mean-field")
    split = load_splits(entry)[0]
    loaded = Fit.load(tmp_path / "fit.safetensors", *entry.build(split.train))
    again = loaded.predict(split.test.x, entry.draws, seed=3).mean
    rmse = float((again - split.test.y).square().mean().sqrt())
    assert results["models"]["co2/mean-field"]["rmse"] == pytest.approx(rmse, rel=1e-4)


@pytest.mark.parametrize("name", ["uci/boston", "co2/mc-dropout-relu", "kingma-fig1a/variational-a2"])
def test_a_card_says_what_an_entry_is(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYRODROP_DATA", "/nowhere")  # no data are read, none fetched
    assert cli.main(["show", name]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    entry, content = zoo.entry(name), references.load(name)
    wanted = [name, entry.summary, entry.source, SOURCES[entry.data].summary, content["recipe"]["posterior"]]
    wanted += [content["recipe"]["network"]]
    if isinstance(result := content["result"], dict):
        wanted += [result["machine"]["processor"], result["versions"]["torch"]]
    wanted += [f"{value:.4g}" for value in entry.published.values()]
    assert all(" ".join(text.split()) in shown for text in wanted)
    assert ("read off the figure, ± 0.01" in shown) == name.startswith("kingma-fig1a")


@pytest.mark.few(4)
@pytest.mark.parametrize("name", zoo.ENTRIES)
def test_every_entry_has_a_result_or_what_it_would_take(name: str) -> None:
    result, entry = references.load(name)["result"], zoo.entry(name)
    if isinstance(result, str):
        assert re.search(r"\d[\d,]* steps", result), result
        assert re.search(r"(hours|minutes|days) of one core", result), result
        return
    assert set(result) >= {"seed", "seconds", "date", "versions", "machine", "command", "diagnostics", "each"}
    assert result["seeds"][str(result["seed"])] == result["scores"]
    assert result["command"] == f"pyrodrop run {name} --seed {result['seed']}"
    for score, values in result["each"].items():
        assert len(values) == result["splits"] > 1
        assert sum(values) / len(values) == pytest.approx(result["scores"][score])
    facts = dict(card.facts(entry, references.load(name)["recipe"], references.load(name)))
    assert ("one seed" in facts["result"]) == (len(result["seeds"]) == 1)
    assert result["date"] in facts["result"]


def test_a_posterior_that_keeps_no_weight_has_no_compression(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = small.fitted(guides.SparseDropout, steps=2)
    split: Any = SimpleNamespace(truth=True, test=small.waves(5), train=fit.data)
    assert train._scores(fit, split, 2, 0)["compression"] == 1
    monkeypatch.setattr(
        fit.guide,
        "keep_mask",
        lambda: {name: torch.zeros_like(w, dtype=torch.bool) for name, w in fit.guide.mean().items()},
    )
    assert "compression" not in train._scores(fit, split, 2, 0)


def test_published_uci_and_pruning_figures_are_the_list(data_folder: Path) -> None:
    """Against the list of published figures, where it lies beside the data."""
    path = data_folder.parent / "reference" / "published.json"
    if not path.is_file():
        pytest.skip("needs the list of published figures beside the data")
    listed = json.loads(path.read_text())
    curves = {"No dropout": "none", "Regular binary dropout": "binary"}
    for row in listed:
        if "Fig 1a" in row["table_or_figure"]:
            method = curves.get(row["method"], row["method"].lower().replace(" dropout ", "-"))
            width = int(row["metric"].split(", ")[1].split()[0])
            published = entries.METHODS[method].published
            assert published[entries.PUBLISHED_WIDTHS.index(width)] == row["value"]
            error = row["uncertainty_type"].rpartition("reading error ~")[2]
            entry = zoo.entry(f"kingma-fig1a/{method}")
            assert entry.published_as == f"read off the figure, ± {error}"
            assert "mean of 5 runs" in row["setup"]
            if width == entries.WIDTH:
                assert entry.published_errors["error_percent"] == row["uncertainty"]
        if "SBP" in row["source"] and row["method"] == "StructuredBP":
            net = "lenet-300-100" if "fc" in row["data_set"] else "lenet-5"
            assert zoo.entry(f"log-normal/{net}-neklyudov2017").published == {"error_percent": row["value"][0]}
    rows = [row for row in listed if row["source"].startswith("Molchanov") and row["method"] == "SparseVD"]
    table = [(row["metric"], row["value"]) for row in rows if row["table_or_figure"] == "Table 1"]
    for name in ("sparse/lenet-300-100-molchanov2017", "sparse/lenet-5-molchanov2017"):
        published = zoo.entry(name).published
        assert ("test error %", published["error_percent"]) in table
        assert ("compression", published["compression"]) in table
