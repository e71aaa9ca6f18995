"""Sparse networks: the recipes, the job on a few digits, and Molchanov's test with random labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, zoo
from pyrodrop.analysis.lab import RESULTS
from pyrodrop.analysis.lab.experiments.sparse.experiment import training
from pyrodrop.analysis.lab.experiments.sparse.published import published, published_by_unit, published_rows
from pyrodrop.analysis.lab.experiments.sparse.sizes import compression_report
from pyrodrop.analysis.zoo.references import FOLDER
from pyrodrop.data import Dataset, mnist

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


def digits(count: int) -> Dataset:
    return Dataset(torch.rand(count, 784), torch.arange(count) % 10)


def test_recipes_are_the_published_settings() -> None:
    data = digits(600)  # an epoch is six steps
    first = zoo.entry("sparse/lenet-300-100-molchanov2017").training(data)
    assert (first["steps"], first["batch_size"], first["lr"], first["estimator"]) == (1200, 100, 1e-3, "local")
    assert [first["kl_weight"](e) for e in (0, 5, 12.5, 20, 199)] == [0, 0, 0.5, 1, 1]
    assert [first["lr_schedule"](s) for s in (0, 600, 900, 1200)] == [1, 1, 0.5, 0]
    conv = zoo.entry("sparse/lenet-5-molchanov2017").training(data)
    assert [conv["lr_schedule"](s) for s in (0, 300, 1200)] == [1, 0.75, 0]
    school = zoo.entry("ard/lenet-300-100-deepbayes2019").training(data)
    assert school["steps"] == 600
    assert [school["kl_weight"](e) for e in (0, 1, 24.5, 49, 99)] == pytest.approx([0.02, 0.04, 0.5, 1, 1])
    assert [school["lr_schedule"](6 * e) for e in (49, 50, 60, 70, 80)] == pytest.approx([1, 0.2, 0.04, 0.008, 0.0016])


def test_the_recipe_by_unit() -> None:
    """The noise learns 50 times as fast as the weights; mu starts at 0, ln sigma at -5, as in the released code."""
    data = digits(600)
    for net in ("lenet-300-100", "lenet-5"):
        entry = zoo.entry(f"log-normal/{net}-neklyudov2017")
        first = entry.training(data)
        assert (first["steps"], first["batch_size"], first["estimator"]) == (900, 100, "local")
        assert [first["kl_weight"](e) for e in (0, 1, 3, 5, 49)] == [0, 0, 0.5, 1, 1]
        assert [first["lr_schedule"](s) for s in (0, 450, 900)] == [1, 0.5, 0]
    model, guide = zoo.entry("log-normal/lenet-300-100-neklyudov2017").build(data)
    assert isinstance(guide, guides.LogNormalDropout)
    named = (*guide.noise_loc.named_parameters("noise_loc"), *model.named_parameters())
    assert {first["lr"](name) for name, _ in named} == {1e-3, 5e-2}
    assert {first["lr"](name): name.split(".")[0] for name, _ in guide.named_parameters()} == {
        1e-3: "loc", 5e-2: "noise_log_scale",
    }  # fmt: skip
    for name in guide.sites:
        assert not bool(guide.noise_loc[name].any())
        assert bool((guide.noise_log_scale[name] == -5).all())


@pytest.mark.parametrize("name", [n for n in zoo.ENTRIES if n.startswith(("sparse/", "ard/"))])
def test_networks_start_as_published(name: str) -> None:
    torch.manual_seed(0)
    model, guide = zoo.entry(name).build(digits(100))
    spread, reach = (0.01, 8.0) if "molchanov" in name else (0.02, 10.0)
    weights = torch.cat([w.flatten() for w in model.weight_sites().values()])
    assert float(weights.std()) == pytest.approx(spread, rel=0.01)
    assert all(not bool(b.any()) for b in model.free.parameters())
    assert isinstance(guide, guides.ARDDropout if name.startswith("ard") else guides.SparseDropout)
    log_alpha = guide.log_alpha(guide.sites[0])
    want = (-10 - model.weight_sites()[guide.sites[0]].square().log()).clamp(-reach, reach)
    torch.testing.assert_close(log_alpha.detach(), want, atol=1e-3, rtol=0)


def test_sparsity_before_the_divergence_counts_in_full_is_refused() -> None:
    for recipe, full in (("molchanov2017", 20), ("deepbayes2019", 49)):
        entry = zoo.entry(f"sparse/lenet-300-100-{recipe}")
        with pytest.raises(ValueError, match=f"epochs must be more than {full}, as .*; got {full}"):
            training(entry, digits(100), full)
        settings = training(entry, digits(100), full + 1)
        assert settings["kl_weight"](full) == pytest.approx(1)


def test_published_figures() -> None:
    """Table 1 of Molchanov et al. (2017) and the Deep|Bayes notebook, and a ratio that agrees with its own sparsities."""
    assert published("lenet-300-100", "sparse", "molchanov2017") == 68
    assert published("lenet-5", "sparse", "molchanov2017") == 280
    assert published("lenet-300-100", "ard", "deepbayes2019") == 35
    assert published("lenet-5", "ard", "deepbayes2019") is None
    assert published("lenet-5", "log-normal", "neklyudov2017") is None
    rows = {row["method"]: row for row in published_rows("lenet-5")}
    assert list(rows) == ["original", "Pruning", "DNS", "SWS", "sparse VD, Molchanov et al."]
    assert rows["DNS"] == {"method": "DNS", "error": 0.0091, "sparsity": [0.86, 0.97, 0.993, 0.96], "compression": 111}
    assert (rows["SWS"]["error"], rows["SWS"]["sparsity"]) == (0.0097, None)
    by_unit = published_by_unit("lenet-5")[-1]
    assert by_unit == {
        "method": "StructuredBP, Neklyudov et al.",
        "error": 0.0086,
        "units": "3-18-284-283",
        "flops": 10.49,
    }
    school = next(row for row in published_rows("lenet-300-100") if "Deep" in row["method"])
    left = sum(n * (1 - s) for n, s in zip((235_200, 30_000, 1000), school["sparsity"], strict=True))
    assert 266_200 / left == pytest.approx(school["compression"], rel=0.08)  # shares are rounded to .1 %


def test_the_page_has_what_is_left_by_unit() -> None:
    """Ours from the stored results, theirs from the published units, whose ratio of operations follows for LeNet-300-100."""
    page = " ".join((RESULTS / "README.md").read_text().split())
    files = [FOLDER / f"log-normal-{net}-neklyudov2017.json" for net in ("lenet-300-100", "lenet-5")]
    dense, maps = (json.loads(file.read_text())["compressed"]["compressed"] for file in files)
    theirs, theirs_by_maps = 245 * 160 + 160 * 55 + 55 * 10, 25 * 3 + 25 * 3 * 18 + 284 * 283 + 283 * 10
    ratio = (784 * 500 + 500 * 300 + 300 * 10) / theirs
    assert published_by_unit("lenet-300-100")[-1]["flops"] == pytest.approx(ratio, abs=0.005)
    assert f"and {theirs:,} weights where ours has {dense['weights']:,}" in page
    terms = f"ours keeps {sum(maps['units'][:-1])} of them, theirs {3 + 18 + 283}"
    assert f"{terms}, and {maps['weights']:,} weights, theirs about {round(theirs_by_maps, -3):,}" in page


@pytest.mark.slow
def test_random_labels_are_pruned_away(data_folder: Path) -> None:
    """Molchanov et al. (2017), section 5.4: nothing can be learned, so nothing is kept; plain dropout memorises."""
    images = mnist().train.first(1000)
    labels = torch.randint(10, (1000,), generator=torch.Generator().manual_seed(1))
    data = Dataset(images.x, labels)
    distributions: dict[str, Any] = {"likelihood": likelihoods.Categorical()}
    options: dict[str, Any] = {"steps": 1000, "lr": 3e-3, "batch_size": 100, "estimator": "local", "engine": "traced"}
    model = models.MLP([784, 100, 10], prior=priors.LogUniform(), **distributions)
    warm_up = pyrodrop.schedules.linear(10, after=2)
    sparsely = pyrodrop.fit(model, guides.SparseDropout(model, cut=3.0), data, kl_weight=warm_up, **options)
    assert sparsely.guide.sparsity()["layers.0.weight"] > 0.9999  # type: ignore[attr-defined]
    network = sparsely.compress()
    assert sum(p.numel() for p in network.parameters()) == 10, "the last biases alone"
    f = network(images.x)
    assert torch.equal(f, f[:1].expand(1000, 10)), "one prediction for all digits"
    plain = models.MLP([784, 100, 10], prior=priors.Gaussian(10.0), **distributions)
    memorised = pyrodrop.fit(plain, guides.BernoulliDropout(plain, 0.1, mask_input=False), data, **options)
    accuracy = (memorised.predict(images.x, 30).mean.argmax(-1) == labels).float().mean()
    assert float(accuracy) > 0.95


@pytest.mark.parametrize(
    ("name", "most_error", "least"),
    [
        ("sparse-lenet-300-100-molchanov2017", 0.02, 60),
        ("ard-lenet-300-100-deepbayes2019", 0.018, 30),
        ("sparse-lenet-5-molchanov2017", 0.01, 270),
    ],
)
def test_reference_results_meet_what_is_claimed(name: str, most_error: float, least: float) -> None:
    """Compression as in the papers, and a small network with the weights that are left."""
    reference = json.loads((FOLDER / f"{name}.json").read_text())
    result, small = reference["result"], reference["compressed"]
    assert result["error"] <= most_error
    assert result["compression"] >= least
    kept = (430_500 if "lenet-5" in name else 266_200) / result["compression"]
    assert small["compressed"]["weights"] <= round(kept)
    for key in ("seed", "threshold", "recipe", "engine"):
        assert key in reference["settings"]


def test_the_report_counts_by_hand() -> None:
    """A net of 4-3-2 with one hidden unit cut: 2 (4 + 2) weights are left of 3 (4 + 2), 2 of their biases and 2."""
    model = models.MLP([4, 3, 2], prior=priors.ARD(), likelihood=likelihoods.Categorical())
    guide = guides.SparseDropout(model)
    with torch.no_grad():
        guide.log_variance["layers.0.weight"].unconstrained()[1] = 10.0
    report = compression_report(pyrodrop.Fit(model, guide, None, torch.zeros(1, 3), {}), torch.randn(30, 4))
    assert (report.dense.units, report.compressed.units) == ([3, 2], [2, 2])
    assert (report.dense.weights, report.compressed.weights) == (18, 12)
    assert (report.dense.parameters, report.compressed.parameters) == (18 + 5, 12 + 4)
    assert (report.dense.flops, report.compressed.flops) == (36, 24)
    assert report.ratios["weights"] == 1.5
