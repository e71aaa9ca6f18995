"""Recipes: what is held out, how the noise is chosen, what the defaults reach on a table, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from torch.distributions import MixtureSameFamily, Normal

import pyrodrop
from pyrodrop import data, guides, likelihoods, metrics, models, recipes
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.recipes import _best_noise, _density_of_ridge, _divided, _widen

torch.manual_seed(0)
X = torch.randn(60, 3) * torch.tensor([1.0, 50.0, 0.01]) + 7
Y = 300 + 20 * (X[:, :1] - 7) + 5 * torch.randn(60, 1)
LABELS = (X[:, 0] > 7).long()
QUICK: dict[str, Any] = {"engine": "traced", "progress": False}


@pytest.mark.parametrize(("size", "parts"), [(20, 10), (105, 10), (300, 4), (1000, 1), (5000, 1)])
def test_tenths_are_held_out_until_there_are_100_rows(size: int, parts: int) -> None:
    training, held_out = _divided(size, seed=0)
    assert len(training) == len(held_out) == parts
    together = torch.cat(held_out)
    assert len(together) == len(together.unique()) == parts * (size // 10)
    assert len(together) >= min(100, 10 * (size // 10))
    for rows, left in zip(training, held_out, strict=True):
        assert torch.equal(torch.cat([rows, left]).sort().values, torch.arange(size))


@pytest.mark.parametrize("constant", [True, False])
def test_the_noise_maximises_the_log_density_of_the_rows(constant: bool) -> None:
    """Against the mixture of torch.distributions with noise around it."""
    torch.manual_seed(1)
    f, y = torch.randn(30, 40, 1) * 0.5 + 3, 3 + torch.randn(40, 1)
    sd = torch.rand(30, 40, 1) + 0.1
    predicted = Prediction(f, Normal(f, sd))  # type: ignore[arg-type]
    density, factor = _best_noise([predicted, predicted], [y, y], constant)

    def at(factor: float) -> float:
        scale = (torch.ones_like(sd) if constant else sd)[..., 0].T.double() * factor**0.5
        mixed = MixtureSameFamily(
            torch.distributions.Categorical(torch.ones(40, 30)), Normal(f[..., 0].T.double(), scale)
        )
        return float(mixed.log_prob(y[:, 0].double()).mean())

    assert density == pytest.approx(at(factor), abs=1e-6)
    assert all(at(factor) > at(change * factor) for change in (0.9, 1.1))


def test_noise_that_depends_on_x_is_that_of_rows_that_are_held_out() -> None:
    """30 rows of noise of variance 1, which networks of large weights reproduce from 100 columns."""
    torch.manual_seed(3)
    recipe = recipes.regressor(
        (torch.randn(30, 100), torch.randn(30, 1)), hidden=(20, 20), likelihood=likelihoods.HeteroscedasticGaussian()
    )
    recipe = dataclasses.replace(recipe, models=recipe.models[1:])
    runs = recipe.fit_replicates(2, **{**recipe.settings, "steps": 300}, **QUICK)
    learned = pyrodrop.fit(recipe.model, recipe.guide, recipe.data, **{**recipe.settings, "steps": 300}, **QUICK)
    x, y = torch.randn(2000, 100), torch.randn(2000, 1)
    chosen, worse = (metrics.regression_scores(fitted.predict(x, 200), y) for fitted in (runs, learned))
    assert chosen["coverage_95"] > 0.85 > 0.7 > worse["coverage_95"]
    wider = copy.deepcopy(runs[0])
    _widen(wider, 3.0)
    before, after = (fitted.predict(x[:5], 4).distribution for fitted in (runs[0], wider))
    torch.testing.assert_close(after.variance, 3 * before.variance)
    torch.testing.assert_close(after.mean, before.mean)


@pytest.mark.more
def test_likelihoods_with_noise_of_their_own() -> None:
    counts = torch.poisson((X[:, :1] - 7).exp().clamp(max=20))
    run = recipes.regressor((X, counts), likelihood=likelihoods.Poisson()).fit(steps=300, **QUICK)
    assert float(run.predict(X, 50).log_density(counts).mean()) > -2
    fixed = recipes.regressor((X, Y), likelihood=likelihoods.Gaussian(0.04)).fit(steps=50, **QUICK)
    assert float(fixed.model.likelihood.precision) == pytest.approx(0.04)
    heavy = recipes.regressor((X, Y), likelihood=likelihoods.StudentT()).fit(steps=300, **QUICK)
    assert float((heavy.predict(X, 50).mean - Y).square().mean().sqrt()) < 15


def test_f_has_the_standard_deviation_of_the_scale_under_the_prior() -> None:
    """Against 4,000 networks drawn from the priors, in plain PyTorch, without biases."""
    deep = recipes.regressor((X, Y), hidden=(60, 50))
    made = (*recipes.regressor((X, Y)).models, *recipes.classifier((X, LABELS)).models, *deep.models)
    x = (X - X.mean(0)) / X.std(0, correction=0)
    for model, scale in zip(made, (0.5, 2.0, 2.0, 8.0, 32.0, 1.0, 9.0), strict=True):
        torch.manual_seed(0)
        sd = {name: prior.scale for name, prior in model.priors.items()}  # type: ignore[attr-defined]
        h = x.T.expand(4000, 3, len(x))
        for site, scale_of in list(sd.items())[:-1]:
            h = (scale_of * torch.randn(4000, len(model.weight_sites()[site]), h.shape[1]) @ h).relu()
        f = torch.einsum("skn,sk->sn", h, sd[f"layers.{len(sd) - 1}.weight"] * torch.randn(4000, h.shape[1]))
        assert float(f.square().mean().sqrt()) == pytest.approx(scale, rel=0.06)  # four standard errors


@pytest.mark.more
def test_units_of_x_and_y_do_not_matter() -> None:
    """Powers of 2 round nothing, so that the fit is the same up to the rounding of sums."""
    means = []
    for units in (1.0, 64.0):
        run = recipes.regressor((X * units, Y * units)).fit(steps=40, **QUICK)
        means.append(run.predict(X * units, 50).mean / units)
    torch.testing.assert_close(*means, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(("columns", "said"), [(100, True), pytest.param(1, False, marks=pytest.mark.more)])
def test_the_noise_is_that_of_rows_that_are_held_out(
    columns: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """30 rows of noise of variance 1, which a network of large weights reproduces from 100 columns and not from one."""
    torch.manual_seed(3)
    recipe = recipes.regressor((torch.randn(30, columns), torch.randn(30, 1)))
    wide = dataclasses.replace(recipe, models=recipe.models[1:])
    caplog.set_level("INFO", "pyrodrop")
    run = wide.fit(steps=300, **QUICK)
    assert any("that is learned on the training rows hold" in message for message in caplog.messages) is said
    learned = pyrodrop.fit(wide.model, wide.guide, wide.data, **{**wide.settings, "steps": 300}, **QUICK)
    x, y = torch.randn(2000, columns), torch.randn(2000, 1)
    chosen, worse = (metrics.regression_scores(fitted.predict(x, 200), y) for fitted in (run, learned))
    assert chosen["coverage_95"] > 0.85
    assert (worse["coverage_95"] < 0.7) is said
    assert (chosen["log_density"] > worse["log_density"] + 1) is said


@pytest.mark.more
def test_a_line_is_found_and_the_same_seed_gives_the_same_bits() -> None:
    runs = [recipes.regressor((X, Y)).fit(seed=seed, steps=200, **QUICK) for seed in (3, 3, 4)]
    means = [run.predict(X, 100).mean for run in runs]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])
    assert float((means[0] - Y).square().mean().sqrt()) < 8  # noise of 5, under a trend with the standard deviation 20


def test_ridge_regression_is_that_of_scikit_learn() -> None:
    """Columns that are constant or copies among them; the best of its penalties, and the noise of its errors."""
    x = torch.cat([X, torch.ones(60, 1), X[:, :1]], 1)
    train = data.Dataset(x, Y).standardized()
    assert train.inputs is not None
    training, held_out = _divided(60, seed=1)
    z = train.inputs(train.x).double().numpy()
    y = Y[:, 0].double().numpy()
    errors = [
        np.concatenate([
            y[left] - Ridge(alpha=alpha).fit(z[rows], y[rows]).predict(z[left])
            for rows, left in zip(training, held_out, strict=True)
        ])
        for alpha in np.logspace(-4, 6, 21)
    ]  # fmt: skip
    want = max(norm(0, (e**2).mean() ** 0.5).logpdf(e).mean() for e in errors)
    assert _density_of_ridge(train, training, held_out) == pytest.approx(want, abs=1e-5)


def test_where_a_line_predicts_better_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """40 rows of a sum of six columns, as much noise, and 300 rows of a bend, which need the network."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(300, 6, generator=generator)
    e = torch.randn(300, generator=generator)
    with caplog.at_level("WARNING", "pyrodrop"):
        recipes.regressor((x, 4 * x[:, 0].abs() + 0.1 * e)).fit(steps=300, **QUICK)
        assert "ridge" not in caplog.text
        recipes.regressor((x[:40], x[:40].sum(1) + 2 * e[:40])).fit(steps=300, **QUICK)
    assert "ridge regression predicts rows that are left out better" in caplog.text


def test_classes_are_told_apart() -> None:
    run = recipes.classifier((X, LABELS)).fit(steps=200, **QUICK)
    scores = metrics.classification_scores(run.predict(X, 100), LABELS)
    assert scores["log_density"] > -0.2 > -math.log(2)


@pytest.mark.more
def test_frames_splits_and_pairs_are_the_same_table() -> None:
    df = pd.DataFrame(X.numpy(), columns=["a", "b", "c"])
    df["y"] = Y[:, 0].numpy()
    split = data.Split.from_frame(df, "y", test=0.25)
    ours, plain = recipes.regressor(split), recipes.regressor((split.train.x, split.train.y[:, 0]))
    assert ours.data.columns is not None
    assert ours.settings == plain.settings
    runs = [recipe.fit(steps=50, **QUICK) for recipe in (ours, plain)]
    torch.testing.assert_close(*(run.predict(split.test.x, 20).mean for run in runs), rtol=1e-4, atol=1e-2)
    assert runs[0].predict(ours.data.x_of(df), 20).mean.shape == (60, 1)
    df["kind"] = ["b", "a", "c"] * 20
    labelled = recipes.classifier(data.Dataset.from_frame(df, "kind"))
    assert labelled.model(labelled.data.x[:2]).shape == (2, 3)


def test_another_posterior_and_other_settings() -> None:
    recipe = recipes.regressor((X, Y), posterior=guides.MeanField)
    run = recipe.fit(steps=30, estimator="shared", **QUICK)
    assert isinstance(run.guide, guides.MeanField)
    assert (run.settings["steps"], run.settings["estimator"]) == (30, "shared")


@pytest.mark.parametrize(
    ("make", "table", "error", "message"),
    [
        (recipes.regressor, (X[:9], Y[:9]), ValueError, "at least 10 rows.*got 9"),
        (recipes.regressor, (X, torch.cat([Y, Y], 1)), ValueError, r"one column of y.*got shape \[60, 2\]"),
        (recipes.regressor, ((X, X), Y), TypeError, "a table of real numbers as x.*got a tuple"),
        (recipes.regressor, (X, torch.full_like(Y, 3)), ValueError, "a y that varies.*got 3 in all 60 rows"),
        (
            recipes.regressor,
            (X[:, 0], Y[:, 0][None].T.reshape(60, 1, 1)),
            ValueError,
            r"one column of y.*got shape \[60, 1, 1\]",
        ),
        (
            recipes.regressor,
            (X[:, :, None], Y),
            TypeError,
            r"a table of real numbers as x.*float32 of shape \[60, 3, 1\]",
        ),
        (recipes.regressor, (torch.ones(60, 2), Y), ValueError, "a column of x that varies.*got 2 constant columns"),
        (
            recipes.classifier,
            (torch.ones(60, 2), LABELS),
            ValueError,
            "a column of x that varies.*got 2 constant columns",
        ),
        (recipes.classifier, (X, Y), ValueError, "class labels must be whole numbers"),
        (recipes.classifier, (X, LABELS - 1), ValueError, "class labels must lie in 0"),
    ],
)
def test_what_is_no_table_is_refused(make: Any, table: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(table).fit(steps=1, **QUICK)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_tables_of_whole_numbers_are_those_of_real_numbers(dtype: torch.dtype) -> None:
    whole = torch.randint(0, 2, (60, 3), generator=torch.Generator().manual_seed(0))
    y = whole.sum(1) + 5
    ours, plain = recipes.regressor((whole.to(dtype), y)), recipes.regressor((whole.float(), y.float()))
    for recipe in (ours, recipes.classifier((whole.to(dtype), LABELS))):
        assert torch.equal(recipe.data.x, whole.float())
        assert recipe.data.inputs is not None
        torch.testing.assert_close(recipe.data.inputs(recipe.data.x).amax(0), 2 * (1 - whole.float().mean(0)))
    assert torch.equal(ours.data.y, plain.data.y)
    assert ours.model.describe() == plain.model.describe()


def test_codes_of_categories_are_no_numbers() -> None:
    df = pd.DataFrame({"a": ["u", "v"] * 10, "y": range(20)})
    codes = data.Dataset.from_frame(df, "y", categories=["a"], encode="codes")
    with pytest.raises(TypeError, match=r"a table of real numbers as x.*got codes of categories of shape \[20, 1\]"):
        recipes.regressor(codes)


@pytest.mark.parametrize("lr", [1e-9, 1e-2])
def test_a_warning_says_where_the_training_rows_are_predicted_worse_than_by_their_mean(
    lr: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Networks that have hardly left their start, and trained ones; R2 by scikit-learn."""
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
    recipe = recipes.regressor((x, x.sum(1) + 20), hidden=(16, 16))
    with caplog.at_level("WARNING", "pyrodrop"):
        runs = recipe.fit_replicates(2, steps=100, lr=lr, **QUICK)
    y, mean = recipe.data.y[:, 0].numpy(), runs.predict(x, 32, seed=0).mean[:, 0].numpy()
    r2, worst = r2_score(y, mean), int(((y - mean) ** 2).argmax())
    said = [text for text in caplog.messages if text.startswith("R2 of the training rows")]
    assert (r2 < 0) is (lr == 1e-9)
    if r2 > 0:
        assert not said
    else:
        (text,) = said
        assert text.startswith(f"R2 of the training rows is {r2:.3g}: the mean of y predicts them better")
        assert f"Row {worst} has y = {y[worst]:.4g} and the mean {mean[worst]:.4g}" in text


@pytest.mark.parametrize("steps", [20, 20_000])
def test_the_learning_rate_falls_over_all_steps(steps: int) -> None:
    """By the formula of the cosine, unless another schedule is asked for. The settings of the recipe have 2,000 steps."""
    factor = recipes.regressor((X, Y))._with({"steps": steps}, None)["lr_schedule"]
    for share in (0.0, 0.25, 0.5, 1.0):
        assert factor(int(share * steps)) == pytest.approx((1 + math.cos(math.pi * share)) / 2)
    asked = recipes.regressor((X, Y))._with({"steps": steps, "lr_schedule": None}, None)
    assert asked["lr_schedule"] is None


@pytest.mark.more
def test_steps_beyond_the_default_train_on() -> None:
    """Parameters still move between step 2,000 and the last of 2,600."""
    runs = [recipes.classifier((X, LABELS)).fit(steps=steps, **QUICK) for steps in (2000, 2600)]
    first, last = (torch.cat([value.flatten() for value in run.model.parameters()]) for run in runs)
    assert float((first - last).abs().max()) > 1e-3


def test_class_labels_of_a_frame_are_no_regression() -> None:
    df = pd.DataFrame({"a": range(20), "y": ["u", "v"] * 10})
    with pytest.raises(ValueError, match="got class labels: use recipes.classifier"):
        recipes.regressor(data.Dataset.from_frame(df, "y"))
    with pytest.raises(ValueError, match=r"the numbers of 'a'.*categories=\['a'\]"):
        recipes.classifier(data.Dataset.from_frame(df, "a", categories=["y"]))


def test_a_model_of_a_recipe_is_an_ordinary_model() -> None:
    recipe = recipes.regressor((X, Y))
    assert isinstance(recipe.model, models.MLP)
    run = pyrodrop.fit(recipe.model, recipe.guide, recipe.data, **{**recipe.settings, "steps": 5}, **QUICK)
    assert run.history.shape == (5, 3)


def test_whole_numbers_far_from_zero_are_told_apart() -> None:
    steps = torch.arange(60)
    far, near = (recipes.regressor((start + steps[:, None], start + steps)).data for start in (10**9, 0))
    for ours, wanted in ((far.inputs(far.x), near.inputs(near.x)), (far.targets(far.y), near.targets(near.y))):
        torch.testing.assert_close(ours.float(), wanted.float())
