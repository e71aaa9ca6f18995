"""The page about a fit: its numbers are those of the predictors that it names, and its advice has a reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.datasets import make_moons
from sklearn.ensemble import RandomForestRegressor

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
