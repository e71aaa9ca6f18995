"""Sparse networks: the recipes, the job on a few digits, and Molchanov's test with random labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, zoo
from pyrodrop.analysis.lab.experiments.sparse.experiment import training
from pyrodrop.analysis.lab.experiments.sparse.sizes import compression_report
from pyrodrop.data import Dataset, mnist

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


def digits(count: int) -> Dataset:
    return Dataset(torch.rand(count, 784), torch.arange(count) % 10)


def test_recipes_are_the_published_settings() -> None:
    data = digits(600)  # an epoch is six steps
    first = zoo.entry("sparse/lenet-300-100-molchanov2017").settings(data)
    assert (first["steps"], first["batch_size"], first["lr"], first["estimator"]) == (1200, 100, 1e-3, "local")
    assert [first["kl_weight"](e) for e in (0, 5, 12.5, 20, 199)] == [0, 0, 0.5, 1, 1]
    assert [first["lr_schedule"](s) for s in (0, 600, 900, 1200)] == [1, 1, 0.5, 0]
    conv = zoo.entry("sparse/lenet-5-molchanov2017").settings(data)
    assert [conv["lr_schedule"](s) for s in (0, 300, 1200)] == [1, 0.75, 0]
    school = zoo.entry("ard/lenet-300-100-deepbayes2019").settings(data)
    assert school["steps"] == 600
    assert [school["kl_weight"](e) for e in (0, 1, 24.5, 49, 99)] == pytest.approx([0.02, 0.04, 0.5, 1, 1])
    assert [school["lr_schedule"](6 * e) for e in (49, 50, 60, 70, 80)] == pytest.approx([1, 0.2, 0.04, 0.008, 0.0016])


def test_the_recipe_by_unit() -> None:
    """The noise learns 50 times as fast as the weights; mu starts at 0, ln sigma at -5, as in the released code."""
    data = digits(600)
    for net in ("lenet-300-100", "lenet-5"):
        entry = zoo.entry(f"log-normal/{net}-neklyudov2017")
        first = entry.settings(data)
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
