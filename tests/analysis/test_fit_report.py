"""The page about a fit: its numbers are those of the predictors that it names, and its advice has a reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from sklearn.datasets import make_moons
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import RidgeCV
from torch import nn

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.analysis import fit_report
from pyrodrop.training import reasons

DOCS = Path(__file__).parents[2] / "docs"
GENERATOR = torch.Generator().manual_seed(0)
X = 20 * torch.rand(180, 1, generator=GENERATOR) - 10
Y = 10 * torch.exp(-(X + 10) / 10) * torch.sin(1.5 * X) + torch.randn(X.shape, generator=GENERATOR)
PARTS: dict[str, Any] = {"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian()}


@pytest.fixture(scope="module")
def run() -> Any:
    model = models.MLP([1, 50, 1], "tanh", **PARTS)
    train = data.Dataset(X[:80], Y[:80]).standardized()
    return pyrodrop.fit(model, guides.MeanField(model), train, steps=600, lr=1e-2, engine="traced", progress=False)


@pytest.fixture(scope="module")
def page(run: Any) -> Any:
    return run.report((X[80:], Y[80:]))


def test_every_predictor_is_judged_on_the_held_out_rows(run: Any, page: Any) -> None:
    y, train = Y[80:].double().numpy(), Y[:80].double().numpy()
    scores = page.scores
    assert list(scores) == ["the fit", "constant", "ridge regression", "random forest", "Gaussian process"]
    assert scores["constant"]["log_density"] == pytest.approx(
        scipy.stats.norm.logpdf(y, train.mean(), train.std()).mean(), rel=1e-6
    )
    assert scores["constant"]["rmse"] == pytest.approx(np.sqrt(np.square(y - train.mean()).mean()), rel=1e-6)
    forest = RandomForestRegressor(300, oob_score=True, min_samples_leaf=2, random_state=0)
    forest.fit(X[:80].double().numpy(), train[:, 0])
    sd = np.sqrt(np.square(train[:, 0] - forest.oob_prediction_).mean())
    density = scipy.stats.norm.logpdf(y[:, 0], forest.predict(X[80:].double().numpy()), sd).mean()
    assert scores["random forest"]["log_density"] == pytest.approx(density, rel=1e-6)
    assert scores["the fit"]["log_density"] == pytest.approx(
        float(run.predict(X[80:], 300).log_density(Y[80:]).mean()), rel=1e-5
    )
    assert scores["Gaussian process"]["log_density"] > scores["constant"]["log_density"] + 0.5


def test_the_page_says_what_is_wrong_and_where_it_is_explained(page: Any) -> None:
    text = str(page)
    assert "| the fit |" in text
    assert page.advice[0].startswith("The fit is no better than a constant")
    assert any("The Gaussian process is better by" in each for each in page.advice)
    assert {"rows", "Pareto k-hat", "log density of training rows"} <= set(page.facts)


def test_an_exact_last_layer_is_advised_where_the_posterior_is_too_wide(run: Any, page: Any) -> None:
    """Not if the last layer is exact already."""
    assert any("guides.ExactLastLayer" in each for each in page.advice)
    guide = guides.ExactLastLayer(models.MLP([1, 50, 1], "tanh", **PARTS))
    exact = pyrodrop.fit(guide.model, guide, run.data, steps=100, lr=1e-2, progress=False)
    assert exact.worth.point is not None
    assert not fit_report._takes_an_exact_layer(exact)


def test_every_link_of_the_advice_is_a_heading() -> None:
    source, why = (Path(module.__file__).read_text(encoding="utf-8") for module in (fit_report, reasons))  # type: ignore[arg-type]
    headings = re.findall(r"^## (.*)$", (DOCS / "symptoms.md").read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    pages = set(re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+){3,})"', why))
    assert len(pages) >= 3
    assert pages | set(re.findall(r"symptoms\.md#([a-z-]+)\)", source)) <= anchors


def test_without_held_out_rows_and_scikit_learn_it_says_what_the_fit_has_seen(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_report, "find_spec", lambda name: None)
    page = run.report()
    assert "random forest" not in page.scores
    assert page.facts["rows"].startswith("16 that the fit has seen")
    assert page.scores["constant"]["log_density"] != run.worth.constant


@pytest.mark.more
def test_classes_have_a_page_too() -> None:
    x, labels = (torch.as_tensor(each) for each in make_moons(160, noise=0.3, random_state=0))
    x = x.float()
    model = models.MLP([2, 20, 2], prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    guide = guides.ConcreteDropout(model, mask_input=False)
    run = pyrodrop.fit(model, guide, (x[:100], labels[:100]), steps=300, lr=1e-2, engine="traced", progress=False)
    page = run.report((x[100:], labels[100:]))
    share = (np.bincount(labels[:100]) + 1) / 102
    assert page.scores["constant"]["log_density"] == pytest.approx(np.log(share)[labels[100:]].mean(), rel=1e-6)
    assert list(page.scores) == ["the fit", "constant", "random forest", "Gaussian process"]
    assert page.scores["random forest"]["accuracy"] > 0.8
    assert "learned drop_rate" in page.facts


def test_a_recipe_has_a_page_with_its_mixture() -> None:
    df = pd.DataFrame({"x": X[:, 0].numpy(), "kind": np.where(np.arange(180) % 2, "a", "b"), "y": Y[:, 0].numpy()})
    run = pyrodrop.recipes.regressor(df[:80], target="y", hidden=(8,)).fit(steps=100, progress=False)
    page = run.report(df[80:])
    assert list(page.scores) == ["the fit", "constant", "ridge regression", "random forest", "Gaussian process"]
    design = np.c_[df["x"], df["kind"] == "a", df["kind"] == "b"].astype(float)
    assert page.scores["ridge regression"]["rmse"] == pytest.approx(
        np.sqrt(np.square(df["y"] - RidgeCV(np.logspace(-6, 8, 100)).fit(
            (design[:80] - design[:80].mean(0)) / design[:80].std(0), df["y"][:80]
        ).predict((design - design[:80].mean(0)) / design[:80].std(0)))[80:].mean()), rel=0.02,
    )  # fmt: skip
    assert {"mixture", "models", "left out"} <= set(page.facts)
    assert "Pareto k-hat" not in page.facts
    assert run.report().facts["rows"].startswith("16 that the fit has seen")
    with pytest.raises(ValueError, match="nor have replicates without a recipe"):
        pyrodrop.Replicates(run.fits).report((X, Y))


def test_a_reading_is_compared_with_evaluation_mode() -> None:
    """Of PyTorch; with a high rate, dropout predicts worse, and the page says so."""
    x, labels = (torch.as_tensor(each) for each in make_moons(160, noise=0.05, random_state=0))
    x, pages = x.float(), {}
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Dropout(0.0), nn.Linear(30, 2))
    optimiser = torch.optim.Adam(net.parameters(), 0.03)
    for _ in range(150):
        optimiser.zero_grad()
        F.cross_entropy(net(x[:80]), labels[:80]).backward()
        optimiser.step()
    settings: dict[str, Any] = {"likelihood": likelihoods.Categorical(), "weight_decay": 1e-4, "num_data": 80}
    for rate in (0.01, 0.9):
        net[2].p = rate
        reading = pyrodrop.read(net.train(), x[:80], **settings)
        pages[rate] = reading.report((x[80:], labels[80:]))
        density = -float(F.cross_entropy(net.eval()(x[80:]), labels[80:]).detach())
        assert pages[rate].scores["in evaluation mode"]["log_density"] == pytest.approx(density, rel=1e-4)
        assert list(pages[rate].scores) == ["the fit", "in evaluation mode"]
    assert pages[0.9].advice[0].startswith("In evaluation mode, without dropout, the network predicts better, by ")
    assert not pages[0.01].advice
    split = data.Split("moons", data.Dataset(x[:80], labels[:80]), data.Dataset(x[80:], labels[80:]), "", "", "")
    assert "Gaussian process" in reading.report(split).scores
    with pytest.raises(ValueError, match=r"a reading takes rows, report\(\(x, y\)\)"):
        reading.report()
