"""Recipes: what is left out, how networks and a line are weighed, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm, spearmanr
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor
from torch.distributions import Independent, MixtureSameFamily, Normal

import pyrodrop
from pyrodrop import metrics, recipes
from pyrodrop.lines import Line, logistic, ridge
from pyrodrop.recipes import _divided
from pyrodrop.stacking import Component, stacked
from pyrodrop.training.replicates import Replicates

torch.manual_seed(0)
X = torch.randn(60, 3) * torch.tensor([1.0, 50.0, 0.01]) + 7
Y = 300 + 20 * (X[:, :1] - 7) + 5 * torch.randn(60, 1)
LABELS = (X[:, 0] > 7).long()
QUICK: dict[str, Any] = {"engine": "traced", "progress": False}


@pytest.mark.parametrize(("size", "parts", "members"), [(20, 5, 5), (104, 5, 3), (300, 8, 8), (12, 5, 1)])
def test_every_network_is_without_another_part_of_the_rows(size: int, parts: int, members: int) -> None:
    training, left_out = _divided(size, parts, members, seed=0)
    assert len(training) == len(left_out) == members
    together = torch.cat(left_out)
    assert len(together) == len(together.unique()) == members * (size // parts)
    for rows, left in zip(training, left_out, strict=True):
        assert torch.equal(torch.cat([rows, left]).sort().values, torch.arange(size))


def test_a_group_is_in_one_part() -> None:
    groups = np.array(list("aabbbbccddeeffgggggghhhijklmnopqrstuvw"))
    training, left_out = _divided(len(groups), 5, 5, seed=0, groups=groups)
    assert sorted(torch.cat(left_out).tolist()) == list(range(len(groups)))
    assert max(map(len, left_out)) - min(map(len, left_out)) <= 1
    assert {len(rows) for rows in training} == {len(groups) - max(map(len, left_out))}
    for rows, left in zip(training, left_out, strict=True):
        assert not set(groups[rows]) & set(groups[left])
    mixed = [0 if label == "a" else label for label in groups]  # labels without an order
    assert all(map(torch.equal, _divided(len(groups), 5, 5, seed=0, groups=mixed)[1], left_out))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (range(59), "groups must have one label for each of the 60 rows; got .* with 59"),
        ([float("nan"), *range(58), None], "a label in every row; got None or NaN in 2 of 60 rows, the first in row 0"),
        ([row % 4 for row in range(60)], "groups must have at least 5 values, one for each part of the rows; got 4"),
        ([max(0, row - 50) for row in range(60)], "must leave half of the 60 rows .* a group that leaves 9"),
    ],
)
def test_groups_that_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipes.regressor((X, Y)).fit(groups=groups, **QUICK)


@pytest.mark.few(1)
def test_residuals_of_neighbouring_rows_are_related_as_scipy_says() -> None:
    """Lag-one Spearman correlation of SciPy, and the share of shuffled rows above the limit."""
    random = np.random.default_rng(0)
    walk = random.normal(size=200).cumsum()
    walk[::9] = walk[1::9][: len(walk[::9])]  # ties
    rows = torch.from_numpy(random.permutation(200))
    z = recipes.related(torch.from_numpy(walk)[rows], rows)
    assert z == pytest.approx(spearmanr(walk[:-1], walk[1:]).statistic * math.sqrt(199), rel=0.03)
    drawn = [recipes.related(torch.from_numpy(random.standard_t(2, 60)), torch.arange(60)) for _ in range(4000)]
    assert np.mean(drawn) == pytest.approx(0, abs=0.06)
    assert np.std(drawn) == pytest.approx(1, abs=0.05)
    assert np.mean(np.array(drawn) > 3.29) < 0.002
    gaps = torch.arange(0, 100, 2)  # no rows are neighbours
    assert recipes.related(torch.from_numpy(walk[:50]), gaps) == 0


def test_a_series_is_left_out_in_blocks(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself where residuals are related or an index has dates; by name; never in other orders."""
    random = np.random.default_rng(1)
    divided: list[Any] = []

    def record(*args: Any) -> Any:
        divided.append(args[-1])
        return _divided(*args)

    monkeypatch.setattr(recipes, "_divided", record)
    noise = np.zeros(200)
    for row in range(1, 200):
        noise[row] = 0.9 * noise[row - 1] + random.normal()
    x = random.normal(size=200)
    df = pd.DataFrame({"x": x, "y": x + noise})
    blocks = [row * 10 // 200 for row in range(200)]
    quick: dict[str, Any] = {"steps": 60, **QUICK}

    def taken(frame: pd.DataFrame, **options: Any) -> list[Any]:
        divided.clear()
        caplog.clear()
        recipes.regressor(frame, target="y", hidden=(8,)).fit(**quick, **options)
        return list(divided)

    assert taken(df) == [None, blocks]
    assert next(record.message for record in caplog.records if "neighbouring" in record.message).endswith(
        "so blocks of rows are left out; groups=None leaves out single rows."
    )
    assert taken(df.sample(frac=1, random_state=0)) == [None]
    assert taken(df, groups=None) == [None]
    assert taken(df, groups="blocks") == [blocks]
    dated = df.set_index(pd.date_range("2020-01-01", periods=200)).iloc[::-1]
    assert taken(dated) == [blocks[::-1]]
    assert "The index has dates" in caplog.text
    with pytest.raises(ValueError, match="groups .*'parts'"):
        recipes.regressor((X, Y)).fit(groups="parts", **QUICK)


def test_a_growing_series_goes_on_where_blocks_are_left_out() -> None:
    """The line of ln y is constant beyond the data otherwise."""
    t = torch.linspace(0, 1, 120)[:, None]
    y = (6 * t + 0.1 * torch.randn(120, 1, generator=torch.Generator().manual_seed(0))).exp()
    recipe = recipes.regressor((t, y))
    ahead = torch.tensor([[1.3]])
    medians = [
        float(recipe.fit(groups=groups, steps=100, **QUICK).predict(ahead, 100).quantile(0.5))
        for groups in ("blocks", None)
    ]
    assert math.log(medians[0]) == pytest.approx(7.8, abs=0.5)
    assert math.log(medians[1]) < 6.5


def test_the_lines_of_a_series_have_the_trends_of_its_last_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """By NumPy, of the last fifth, two fifths, ...; they do not change the line at the last row, wherever it is."""
    random = np.random.default_rng(2)
    t = np.arange(100.0)
    y = 0.002 * t**2 + random.normal(size=100)
    df = pd.DataFrame({"quarter": np.array(["a", "b", "c", "d"])[np.arange(100) % 4], "t": t, "y": y})
    shuffled = df.set_index(pd.date_range("2020-01-01", periods=100)).sample(frac=1, random_state=0)
    for frame in (df, shuffled):
        recipe = recipes.regressor(frame, target="y")
        assert recipe._clock() == 0
        assert recipes.regressor(frame.drop(columns="t").assign(z=random.normal(size=100)), target="y")._clock() is None
        lines = [Line(torch.zeros(5, 1).double(), torch.zeros(1).double(), torch.ones(1).double())] * 5
        x, unit = recipe._x(recipe.data), recipe._unit(recipe._observed(recipe.data))
        order = np.argsort(x[:, 0].numpy())
        time, off = x[:, 0].numpy()[order], (unit - ridge(x, unit).at(x))[:, 0].numpy()[order]
        for line, rows in zip(recipe._with_trends(lines), (100, 80, 60, 40, 20), strict=True):
            want = np.polyfit(time[-rows:], off[-rows:], 1)[0]
            np.testing.assert_allclose(line.slopes[:, 0], [want, 0, 0, 0, 0], atol=1e-9)
            np.testing.assert_allclose(line.at(x[order[-1:]]), 0, atol=1e-9)
    taken: list[Any] = []

    def record(*args: Any) -> Any:
        taken.append(args[-1])
        return _divided(*args)

    monkeypatch.setattr(recipes, "_divided", record)
    growing = df.assign(y=np.exp(0.05 * t + 0.1 * random.normal(size=100)))
    run = recipes.regressor(growing[::-1], target="y", hidden=(8,)).fit(steps=60, **QUICK)
    assert taken == [[row * 10 // 100 for row in range(100)]]  # without a training on single rows
    ranges = [(float(fit.model.network.low[0, 0]), float(fit.model.network.high[0, 0])) for fit in run[:5]]  # type: ignore[union-attr]
    lengths = [high - low for low, high in ranges]
    assert max(lengths) == pytest.approx(np.sqrt(12), rel=0.02)  # of all rows
    assert min(lengths) < 0.92 * max(lengths)  # without the first or the last block
    taken.clear()
    recipes.regressor(growing.sample(frac=1, random_state=0), target="y", hidden=(8,)).fit(steps=60, **QUICK)
    assert taken[0] is None


@pytest.mark.parametrize("labels", [False, True])
def test_densities_of_rows_that_are_left_out(labels: bool) -> None:
    """From the predictions of the networks that were not trained on them, of labels and of a series."""
    y = (Y[:, 0] > Y.median()).long() if labels else Y
    recipe, groups = (recipes.classifier, None) if labels else (recipes.regressor, "blocks")
    run = recipe((X, y)).fit(groups=groups, neighbours=False, steps=60, **QUICK)  # type: ignore[arg-type]
    assert run.left_out is not None
    assert run.weights is not None
    left_out = _divided(len(X), 5, 5, 0, None if labels else [row * 10 // 60 for row in range(60)])[1]
    for part, rows in enumerate(left_out):
        weights = 5 * torch.tensor(run.weights)[part::5]
        each = [fit.predict(X[rows], 10, seed=0).log_density(y[rows]).exp() for fit in run[part::5]]
        mixed = sum(weight * density for weight, density in zip(weights, each, strict=True))
        torch.testing.assert_close(run.left_out[rows], torch.as_tensor(mixed).log(), rtol=1e-3, atol=1e-3)


def test_a_mixture_is_printed_in_words(tmp_path: Path) -> None:
    counts = torch.poisson((X[:, 0] - 5).clamp(0.1), generator=torch.Generator().manual_seed(0))
    counts[3] = 40
    run = recipes.regressor((X, counts)).fit(groups=None, steps=60, **QUICK)
    facts = run.facts()
    shares = [int(share) for share in re.findall(r"(\d+)% ", facts["mixture"])]
    assert sum(shares) == pytest.approx(100, abs=2)
    assert shares == sorted(shares, reverse=True)
    assert facts["mixture"].count("networks with priors of sd") == 2
    assert facts["mixture"].count("the line with noise of") == 2
    assert facts["models"] == "y"
    assert facts["odd rows"].startswith("3, up to") or facts["odd rows"].startswith("3 ")
    assert facts["y"].startswith("whole numbers from 0 to 40, as counts are; ")
    assert "a long tail of large values" in str(run)
    run.save(tmp_path / "run.pt")
    again = pyrodrop.Replicates.load(tmp_path / "run.pt").facts()
    assert again == {**facts, "y": ""}
    run.left_out = torch.zeros(2, 2)
    run.save(tmp_path / "damaged.pt")
    with pytest.raises(
        ValueError, match=r"must have log densities of rows that are left out, \[N\]; got shape \[2, 2\]"
    ):
        pyrodrop.Replicates.load(tmp_path / "damaged.pt")
    classes = recipes.classifier((X, LABELS)).fit(groups=None, steps=60, **QUICK)
    assert (classes.facts()["models"], classes.facts()["y"]) == ("classes", "")


def components(columns: int) -> tuple[list[Component], Tensor, list[Tensor], list[Tensor]]:
    """Two networks of seven draws and a mean, at 40 rows: what a mixture is made of."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(40, columns, generator=generator).double()
    locs, variances, made = [], [], []
    for draws, scale in ((7, 0.5), (7, 1.0), (1, 0.0)):
        locs.append(scale * torch.randn(draws, 40, columns, generator=generator).double() + 0.6 * y)
        variances.append(torch.rand(draws, 40, columns, generator=generator).double() + 0.1)
        made.append(Component.of(locs[-1][None], variances[-1][None], y, torch.zeros(40, dtype=torch.int64)))
    return made, y, locs, variances


@pytest.mark.parametrize("columns", [1, 2])
def test_weights_and_factors_maximise_the_density_of_rows_that_were_left_out(columns: int) -> None:
    """Against mixtures of torch.distributions; the prior is that of two rows of factor 1, and of one row for all weights."""
    made, y, locs, variances = components(columns)
    weights, factors = stacked(made)
    assert float(weights.sum()) == pytest.approx(1)

    def at(weights: Tensor, factors: Tensor) -> float:
        parts = []
        for loc, variance, factor in zip(locs, variances, factors, strict=True):
            normal = Independent(Normal(loc.transpose(0, 1), (factor * variance).sqrt().transpose(0, 1)), 1)
            equal = torch.distributions.Categorical(torch.ones(40, loc.shape[0], dtype=torch.float64))
            parts.append(MixtureSameFamily(equal, normal).log_prob(y))
        density = (torch.stack(parts) + weights.log()[:, None]).logsumexp(0).sum()
        return float(density + weights.log().sum() / 3 - (factors.log() + 1 / factors).sum())

    best = at(weights, factors)
    for number in range(3):
        for change in (0.8, 1.25):
            changed = weights.clone()
            changed[number] *= change
            assert at(changed / changed.sum(), factors) < best
            for column in range(columns):
                wider = factors.clone()
                wider[number, column] *= change
                assert at(weights, wider) < best


def test_members_lie_around_a_mean_whose_error_is_smaller() -> None:
    """Against NumPy, row by row: three members of two draws, each without another third of nine rows."""
    random = np.random.default_rng(0)
    loc, variance, y = random.normal(size=(3, 2, 9, 1)), random.uniform(1, 2, (3, 2, 9, 1)), random.normal(size=(9, 1))
    made = Component.of(*map(torch.from_numpy, (loc, variance, y)), torch.arange(9) % 3)
    m, sds, apart, errors = loc.mean(1)[..., 0], [], [], []
    for n in range(9):
        own = loc[n % 3, :, n, 0]
        sds.append(np.sqrt(variance[n % 3, :, n, 0].mean() + own.var()))
        apart.append(m[:, n] - m[:, n].mean())
        errors.append(y[n, 0] - own.mean())
    between = np.abs(np.array(apart) / np.array(sds)[:, None]).mean() / np.abs(np.array(errors) / sds).mean()
    assert made.off.shape == made.variance.shape == (3, 9, 1)
    for n in range(9):
        own = loc[n % 3, :, n, 0] - loc[n % 3, :, n, 0].mean()
        error = np.sqrt(1 - min(between**2, 0.8)) * errors[n]
        want = [(error - own[s % 2] - apart[n][s % 3]) ** 2 for s in range(3)]
        np.testing.assert_allclose(made.off[:, n, 0], want)
        np.testing.assert_allclose(made.variance[:, n, 0], variance[n % 3, np.arange(3) % 2, n, 0])


def test_intervals_of_members_that_differ_hold_what_they_say() -> None:
    """Members err by their differences, and their mixture by less; its noise is not that of one of them."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(4000, 1, generator=generator).double()
    loc, part = 0.7 * torch.randn(5, 1, 4000, 1, generator=generator).double(), torch.arange(2000) % 5
    left_out = Component.of(loc[:, :, :2000], torch.ones(5, 1, 2000, 1).double(), y[:2000], part)
    (factor,) = stacked([left_out])[1][0]
    levels = Normal(loc[:, 0, 2000:], factor.sqrt()).cdf(y[2000:]).mean(0)
    for level in (0.5, 0.9, 0.95):
        inside = float(((levels - 0.5).abs() < level / 2).double().mean())
        assert inside == pytest.approx(level, abs=0.025)  # with the noise of one member .61, .965 and .987


def test_weights_of_densities_maximise_their_mixture() -> None:
    logs = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).double()
    weights, _ = stacked([Component.of_density(each.split(20)) for each in logs])

    def at(weights: Tensor) -> float:
        return float((weights @ logs.exp()).log().sum() + weights.log().sum() / 3)

    for number in range(3):
        changed = weights.clone()
        changed[number] *= 1.1
        assert at(changed / changed.sum()) < at(weights)


@pytest.mark.few(1)
@pytest.mark.parametrize("columns", [1, 2])
def test_the_line_is_ridge_regression_with_the_best_penalty_for_rows_left_out(columns: int) -> None:
    """Against scikit-learn's, fitted without one row at a time; a constant column and a copy among them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(25, 4, generator=generator).double()
    x = torch.cat([x, torch.zeros(25, 1).double(), x[:, :1]], 1)
    noise = torch.randn(25, columns, generator=generator).double() * torch.tensor([1.0, 3.0])[:columns]
    y = x[:, :1] - 2 * x[:, 1:2] + noise + 5
    line = ridge(x, y)
    for column in range(columns):
        errors = {}
        for penalty in np.logspace(-8, 6, 29):
            left = []
            for row in range(25):
                rows = np.arange(25) != row
                # the penalty of the rows that are left is n lambda of all: leaving one out changes the row, not lambda
                model = Ridge(alpha=25 * penalty).fit(x[rows], y[rows, column])
                left.append(float(y[row, column]) - model.predict(x[row : row + 1])[0])
            errors[penalty] = np.mean(np.square(left)) ** 0.5
        best = min(errors, key=lambda penalty: errors[penalty])
        assert float(line.error[column]) == pytest.approx(errors[best], rel=0.02)  # the mean of x is that of all rows
        whole = Ridge(alpha=25 * best).fit(x, y[:, column])
        np.testing.assert_allclose(line.at(x)[:, column], whole.predict(x), atol=0.05 * float(line.error[column]))


@pytest.mark.few(1)
@pytest.mark.parametrize(("skewed", "name"), [(True, "HeteroscedasticLogNormal"), (False, "HeteroscedasticGaussian")])
def test_positive_y_may_be_log_normal(skewed: bool, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=generator)
    log = x[:, :1] + 0.5 * torch.randn(120, 1, generator=generator)
    y = log.exp() if skewed else 20 + log
    runs = recipes.regressor((x, y)).fit(steps=150, **QUICK)
    assert type(runs[0].model.likelihood).__name__ == name
    alone, z = runs[10].predict(x, 1).f[0], ((x - x.mean(0)) / x.std(0, correction=0)).double()
    rows, of_y = _divided(120, 5, 5, seed=0)[0][0], (y.log() if skewed else y).double()
    line = ridge(z[rows], of_y[rows]).at(z)  # of the rows of the first network, in the units of all rows
    torch.testing.assert_close((alone.log() if skewed else alone).double(), line, atol=2e-4, rtol=0)
    exact = Normal(x[:, :1], 0.5).log_prob(log) - (log if skewed else 0.0)
    assert float(runs.predict(x, 200).log_density(y).mean()) > float(exact.mean()) - 0.1


def test_noise_is_that_of_rows_that_were_left_out() -> None:
    """30 rows of noise of variance 1, which a network of large weights reproduces from 100 columns."""
    torch.manual_seed(3)
    runs = recipes.regressor((torch.randn(30, 100), torch.randn(30, 1))).fit(steps=300, **QUICK)
    x, y = torch.randn(2000, 100), torch.randn(2000, 1)
    scores = metrics.regression_scores(runs.predict(x, 200), y)
    assert scores["coverage_95"] > 0.85
    assert scores["log_density"] > -1.42 - 0.2  # of noise alone


def test_f_has_the_standard_deviation_of_the_scale_under_the_prior() -> None:
    """Against 4,000 networks drawn from the priors, in plain PyTorch, without biases."""
    made = (*recipes.regressor((X, Y), hidden=(60, 50)).models, *recipes.classifier((X, LABELS)).models)
    x = (X - X.mean(0)) / X.std(0, correction=0)
    for model, scale in zip(made, (2.0, 9.0, 2.0, 8.0, 32.0), strict=True):
        torch.manual_seed(0)
        sd = {name: prior.scale for name, prior in model.priors.items()}  # type: ignore[attr-defined]
        h = x.T.expand(4000, 3, len(x))
        for site, scale_of in list(sd.items())[:-1]:
            h = (scale_of * torch.randn(4000, len(model.weight_sites()[site]), h.shape[1]) @ h).relu()
        last = f"deep.layers.{len(sd) - 1}.weight"
        f = torch.einsum("skn,sk->sn", h, sd[last] * torch.randn(4000, h.shape[1]))
        assert float(f.square().mean().sqrt()) == pytest.approx(scale, rel=0.06)  # four standard errors


def test_classes_are_told_apart() -> None:
    run = recipes.classifier((X, LABELS)).fit(steps=200, **QUICK)
    scores = metrics.classification_scores(run.predict(X, 100), LABELS)
    assert scores["log_density"] > -0.2 > -math.log(2)


def test_the_density_of_neighbours_is_that_of_rows_in_other_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a sum in NumPy over the rows that were left out of other networks; a loaded fit predicts the same."""
    found: dict[str, Any] = {}
    of_density = Component.of_density

    def record(logs: Any, columns: int = 0) -> Component:
        found["density"] = logs[0].exp().numpy()
        return of_density(logs, columns)

    monkeypatch.setattr(Component, "of_density", record)
    y = 7 + (Y / 20).round()
    run = recipes.regressor((X, y)).fit(3, groups=None, steps=30, **QUICK)
    near = [member.model.network for member in run[-3:]]
    assert len(run) == 15
    order, scale = near[0].f[:, 0].double(), float(y.std(correction=0))
    left_out = _divided(60, 5, 3, seed=0)[1]
    z, part = ((torch.cat([y[rows] for rows in left_out])[:, 0] - y.mean()) / scale).double(), np.repeat([0, 1, 2], 12)
    known = torch.randperm(36, generator=torch.Generator().manual_seed(0))
    known = known[z[known].argsort()]
    torch.testing.assert_close(order, z[known], atol=1e-6, rtol=0)
    x, m = torch.empty(36, 3).double(), torch.empty(36).double()
    x[known], m[known] = near[0].x.double(), near[0].m[:, 0].double()
    b, c = near[0].near.double()
    h = float((run[-1].model.likelihood.factor * run[-1].model.likelihood.variance_at_zero).sqrt())
    assert h >= float(z.unique().diff().median()) / math.sqrt(12) - 1e-6
    weights = np.exp(-((m[:, None] - m) / b).square() / 2 - torch.cdist(x, x).square() / (2 * c**2)).numpy()
    weights[part[:, None] == part] = 0
    weights /= weights.sum(1, keepdims=True)
    np.testing.assert_allclose(found["density"], (weights * norm.pdf(z[:, None], z, h)).sum(1) / scale, rtol=1e-4)


def test_neighbours_say_that_values_repeat() -> None:
    """y is 0 in half of the rows, and otherwise 1, 2 or 30: the density is that of normal peaks at these four values."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=generator)
    values = torch.tensor([1.0, 2.0, 30.0])[torch.randint(0, 3, (300, 1), generator=generator)]
    y = (x[:, :1] > 0) * values
    recipe, density = recipes.regressor((x[:200], y[:200])), []
    for neighbours in (True, False):
        run = recipe.fit(neighbours=neighbours, groups=None, steps=200, **QUICK)
        density.append(float(run.predict(x[200:], 300).log_density(y[200:]).mean()))
    best = -math.log(3) / 2 - math.log(math.sqrt(2 * math.pi / 12))  # widths are those of cells as wide as 1
    assert best - 0.3 < density[0] < best
    assert density[0] > density[1] + 0.5
    assert len(recipes.regressor((x, y)).fit(1, steps=2, **QUICK)) == 4  # of one part there are no others
    assert len(recipes.regressor((x, torch.cat([y, x], 1))).fit(2, steps=2, **QUICK)) == 8  # of several columns none


def test_what_was_saved_predicts_the_same(tmp_path: Path) -> None:
    """With neighbours and a column that is taken by logarithm."""
    x = torch.cat([10 ** (X[:, :1] - 5), X[:, 1:]], 1)
    for recipe in (recipes.regressor((x, (X[:, :1] - 7).square())), recipes.classifier((x, LABELS))):
        run = recipe.fit(2, groups=None, steps=20, **QUICK)
        loaded = Replicates.load(run.save(tmp_path / "run"))
        assert torch.equal(run.predict(x, 50).f, loaded.predict(x, 50).f)


def test_a_column_over_powers_of_ten_is_taken_by_logarithm() -> None:
    """y is a wave of its logarithm: the error is that of the same wave of an even column."""
    generator = torch.Generator().manual_seed(0)
    even = 6 * torch.rand(400, 1, generator=generator) - 3
    y = torch.sin(2 * even) + 0.1 * torch.randn(400, 1, generator=generator)
    errors = []
    for x in (10**even, even):
        recipe = recipes.regressor((x[:300], y[:300]))
        assert recipe.model.network.logs == ([0] if x is not even else [])  # type: ignore[union-attr]
        off = recipe.fit(2, groups=None, steps=800, **QUICK).predict(x[300:], 100).mean - y[300:]
        errors.append(float(off.square().mean().sqrt()))
    assert errors[0] < 1.5 * errors[1] < 0.4
    zeros = torch.where(even < -2.5, 0.0, 10**even)
    assert recipes.regressor((zeros, y)).model.network.logs == [0]  # type: ignore[union-attr]
    assert recipes.regressor((-zeros, y)).model.network.logs == []  # type: ignore[union-attr]


@pytest.mark.parametrize("penalty", [0.1, 10.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_lines_of_labels_are_logistic_regressions(penalty: float, classes: int) -> None:
    x = X[:, :2].double() - 7
    labels = torch.bucketize(x[:, 0], torch.tensor([0.0, 1.0])[: classes - 1].double())
    line = logistic(x, labels, classes, penalty)
    twice = 2 if classes == 2 else 1  # scikit-learn has one logit of two classes, the difference of ours
    model = LogisticRegression(C=twice / penalty, tol=1e-10, max_iter=10_000).fit(x, labels)
    np.testing.assert_allclose(line.at(x).softmax(-1), model.predict_proba(x), atol=1e-4)


@pytest.mark.parametrize(
    ("make", "table", "error", "message"),
    [
        (recipes.regressor, (X[:9], Y[:9]), ValueError, "at least 10 rows.*got 9"),
        (recipes.regressor, (X, torch.cat([Y, 0 * Y], 1)), ValueError, "a y that varies.*got 0 in all 60 rows"),
        (recipes.regressor, ((X, X), Y), TypeError, "a table of real numbers as x.*got a tuple"),
        (recipes.regressor, (X, Y.reshape(60, 1, 1)), ValueError, r"columns of y.*got shape \[60, 1, 1\]"),
        (recipes.regressor, (torch.ones(60, 2), Y), ValueError, "a column of x that varies.*got 2 constant columns"),
        (recipes.classifier, (X, LABELS - 1), ValueError, "labels 0 ... C - 1 .*got 2 different labels from -1 to 0"),
        (recipes.classifier, (X, LABELS * 0), ValueError, "C >= 2 classes.*got 1 different labels from 0 to 0"),
        (recipes.classifier, (X, LABELS[:, None]), ValueError, r"one label per row as y.*got shape \[60, 1\]"),
    ],
)
def test_what_is_no_table_is_refused(make: Any, table: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(table).fit(steps=1, **QUICK)
