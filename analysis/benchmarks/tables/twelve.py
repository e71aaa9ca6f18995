"""The recipes on tables: the defaults were found on one half of them, and are judged on the other.

    python -m pyrodrop.analysis.benchmarks.tables.twelve FILE [--half judging]

Of the regressions and of the classifications, in alphabetical order, the first, third ... are the development half and the
others the judging half. Of every table at most 2,000 random rows are used, a fifth of them for the test, in two divisions.
Beside the recipes stand ridge regression, whose noise is that of its predictions of rows that are left out, and logistic
regression, both with their penalty chosen by cross-validation; a random forest of scikit-learn's defaults, whose noise has
the variance a + b (variance over its trees), with a and b chosen on out-of-bag predictions; and other posteriors on small
tables in one division, with the precision that they learn from the training rows and with the recipe's.

The tables are those of `data.uci`, of scikit-learn, and two of the UCI repository in ``$PYRODROP_DATA/tables``: airfoil
(noise of airfoils, 1,503 rows) and bike (bicycles hired per hour, 17,379 rows). FILE is written after every table, and what
is in it is not done again.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyrodrop
from pyrodrop import data, guides, metrics, recipes
from pyrodrop.analysis.reports import generated
from pyrodrop.data import Dataset
from pyrodrop.files import write_json

REGRESSIONS = (
    "airfoil", "bike", "boston", "concrete", "diabetes", "energy", "kin8nm", "naval", "power", "protein", "wine quality",
    "yacht",
)  # fmt: skip
CLASSIFICATIONS = ("breast cancer", "digits", "iris", "wine cultivars")
DEVELOPMENT = REGRESSIONS[::2] + CLASSIFICATIONS[::2]
JUDGING = REGRESSIONS[1::2] + CLASSIFICATIONS[1::2]
ROWS, DIVISIONS, DRAWS, TREES = 2000, 2, 500, 100
Rows = tuple[np.ndarray, np.ndarray]

SMALL = ("boston", "diabetes")
POSTERIORS: Mapping[str, Callable[..., Any]] = {
    "dropout": recipes.dropout,
    "concrete": functools.partial(guides.ConcreteDropout, mask_input=False),
    "variational B": functools.partial(guides.VariationalDropout, kind="B"),
    "mean field": guides.MeanField,
}


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """x ``[N, D]`` and y ``[N]``, of float64 or, in a classification, of whole numbers."""
    from sklearn import datasets

    if name in ("airfoil", "bike"):
        return _of_file(name)
    if name == "diabetes":
        return datasets.load_diabetes(return_X_y=True, scaled=False)
    if name in CLASSIFICATIONS:
        return getattr(datasets, f"load_{name.split()[0] if 'wine' in name else name.replace(' ', '_')}")(
            return_X_y=True
        )
    splits = data.uci(name.split()[0])
    return splits.x.numpy(), splits.y[:, 0].numpy()


def _of_file(name: str) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    folder = Path(os.environ["PYRODROP_DATA"]) / "tables"
    if name == "airfoil":
        df, target = pd.read_csv(folder / "airfoil.csv"), "target"
    else:
        df, target = pd.read_csv(folder / "bike_sharing_hour.csv.gz"), "cnt"
        df = df.drop(columns=["casual", "registered", "instant", "dteday"])
    return df.drop(columns=target).to_numpy(float), df[target].to_numpy(float)


def divided(name: str, division: int) -> tuple[Dataset, Dataset]:
    """The training and the test rows."""
    x, y = table(name)
    order = torch.from_numpy(np.random.RandomState(division).permutation(len(x))[:ROWS])
    inputs, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    whole = Dataset(inputs, targets.long() if name in CLASSIFICATIONS else targets.float()[:, None])
    size = len(order) // 5
    return whole.rows(order[size:]), whole.rows(order[:size])


def scores(name: str, division: int) -> dict[str, float]:
    """The log density of the test rows, and in a regression the share of them in 95 % intervals; ours and the baseline's."""
    train, test = divided(name, division)
    if name in CLASSIFICATIONS:
        predicted = recipes.classifier(train).fit(seed=division, progress=False).predict(test.x, DRAWS)
        return {"log_density": float(predicted.log_density(test.y).mean()), "baseline": logistic(train, test)}
    predicted = recipes.regressor(train).fit(seed=division, progress=False).predict(test.x, DRAWS)
    density, coverage = ridge(train, test)
    scores = metrics.regression_scores(predicted, test.y)
    return {
        "log_density": scores["log_density"], "coverage": scores["coverage_95"], "baseline": density,
        "baseline_coverage": coverage, "forest": forest(name, division),
    }  # fmt: skip


def forest(name: str, division: int) -> float:
    """The log density of a random forest whose noise follows the spread of its trees."""
    train, test = ((rows.x.double().numpy(), rows.y[:, 0].double().numpy()) for rows in divided(name, division))
    return forests(train, test)[1]


def posterior_scores(name: str, division: int, posterior: str) -> dict[str, float]:
    """The scores of a posterior whose precision is learned, and of the recipe with it."""
    train, test = divided(name, division)
    recipe = recipes.regressor(train, posterior=POSTERIORS[posterior])
    settings = {**recipe.settings, "seed": division, "progress": False}
    learned = pyrodrop.fit(recipe.model, recipe.guide, recipe.data, **settings)
    of_methods: dict[str, float] = {}
    for title, run in (("learned", learned), ("held_out", recipe.fit(seed=division, progress=False))):
        scores = metrics.regression_scores(run.predict(test.x, DRAWS), test.y)
        of_methods |= {f"log_density_{title}": scores["log_density"], f"coverage_{title}": scores["coverage_95"]}
    return of_methods


def normal(y: np.ndarray, mean: np.ndarray, variance: Any) -> np.ndarray:
    """The log density of y under N(mean, variance)."""
    return -((y - mean) ** 2 / variance + np.log(2 * np.pi * variance)) / 2  # type: ignore[no-any-return]


def forests(train: Rows, test: Rows) -> tuple[float, float]:
    """The log density of a random forest with constant noise, and of one whose noise follows the spread of its trees."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.ensemble._forest import _generate_sample_indices

    size = len(train[0])
    forest = RandomForestRegressor(TREES, oob_score=True, random_state=0).fit(*train)
    mean, variance = forest.predict(test[0]), np.mean((train[1] - forest.oob_prediction_) ** 2)
    of_trees = np.full((TREES, size), np.nan)
    for number, tree in enumerate(forest.estimators_):
        left = np.setdiff1d(np.arange(size), _generate_sample_indices(tree.random_state, size, size, None))
        of_trees[number, left] = tree.predict(train[0][left])
    out_of_bag = np.nanmean(of_trees, 0), np.nanvar(of_trees, 0)
    pairs = [(a * variance, b) for a in np.logspace(-4, 0, 15) for b in np.logspace(-2, 1, 13)]
    a, b = max(pairs, key=lambda ab: normal(train[1], out_of_bag[0], ab[0] + ab[1] * out_of_bag[1]).mean())
    spread = np.var([tree.predict(test[0]) for tree in forest.estimators_], axis=0)
    return float(normal(test[1], mean, variance).mean()), float(normal(test[1], mean, a + b * spread).mean())


def ridge(train: Dataset, test: Dataset) -> tuple[float, float]:
    """The log density and the coverage of ridge regression, whose noise is the error in rows that are left out."""
    from sklearn.linear_model import RidgeCV

    x, new = _standardised(train, test)
    y, y_new = (data.y[:, 0].double().numpy() for data in (train, test))
    model = RidgeCV(np.logspace(-4, 4, 25)).fit(x, y)
    variance = -model.best_score_
    off = (model.predict(new) - y_new) ** 2
    return float(-(off / variance + math.log(2 * math.pi * variance)).mean() / 2), float(
        (off < 1.96**2 * variance).mean()
    )


def logistic(train: Dataset, test: Dataset) -> float:
    """The log density of logistic regression."""
    from sklearn.linear_model import LogisticRegressionCV

    x, new = _standardised(train, test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arguments that change their defaults, and of the ends of the path
        model = LogisticRegressionCV(Cs=10, cv=5, scoring="neg_log_loss", max_iter=2000).fit(x, train.y.numpy())
    p = model.predict_log_proba(new)
    return float(p[np.arange(len(p)), test.y.numpy()].mean())


def _standardised(train: Dataset, test: Dataset) -> tuple[np.ndarray, np.ndarray]:
    inputs = Dataset(train.x, train.x).standardized().inputs
    assert inputs is not None
    return inputs(train.x).double().numpy(), inputs(test.x).double().numpy()


def text(rows: Mapping[str, Sequence[Mapping[str, float]]], names: Sequence[str]) -> str:
    """The table of a half in Markdown."""
    lines = [["table", "rows", "baseline", "forest", "recipe", "less baseline", "less forest", "95 % interval"]]
    for name in names:
        means = mean(rows[name])
        cover = f"{100 * means['coverage']:.0f} %" if "coverage" in means else ""
        others = ("baseline", "forest")
        shown = [f"{means[key]:.2f}" if key in means else "" for key in (*others, "log_density")]
        gains = [f"{means['log_density'] - means[key]:+.3f}" if key in means else "" for key in others]
        lines.append([name, f"{means['rows']:.0f}", *shown, *gains, cover])
    return generated.table(lines) + "\n"


def posterior_text(rows: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> str:
    """The table of posteriors on small tables in Markdown: log density, and coverage."""
    lines = [["posterior", *(f"{name}: {how}" for name in SMALL for how in ("learned", "held out"))]]
    for posterior in POSTERIORS:
        shown = []
        for name in SMALL:
            means = mean(rows[name][posterior])
            for how in ("learned", "held_out"):
                shown.append(f"{means[f'log_density_{how}']:.2f} ({100 * means[f'coverage_{how}']:.0f} %)")
        lines.append([posterior, *shown])
    return generated.table(lines) + "\n"


def mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means over divisions."""
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--half", choices=("development", "judging", "posteriors"), action="append")
    options = parser.parse_args(arguments)
    halves = options.half or ["development", "judging", "posteriors"]
    about = {"rows": ROWS, "divisions": DIVISIONS, "draws": DRAWS}
    content: dict[str, Any] = {"about": about, "tables": {}, "posteriors": {}}
    if options.file.is_file():
        content = json.loads(options.file.read_text(encoding="utf-8"))
    for half, names in (("development", DEVELOPMENT), ("judging", JUDGING)):
        for name in (name for name in names if half in halves and name not in content["tables"]):
            size = float(min(ROWS, len(table(name)[0])))
            content["tables"][name] = [{"rows": size} | scores(name, number) for number in range(DIVISIONS)]
            write_json(options.file, content)
            print(half, name, mean(content["tables"][name]), flush=True)
    for name in SMALL if "posteriors" in halves else ():
        done = content["posteriors"].setdefault(name, {})
        for posterior in (name_of_posterior for name_of_posterior in POSTERIORS if name_of_posterior not in done):
            done[posterior] = [posterior_scores(name, 0, posterior)]
            write_json(options.file, content)
            print(name, posterior, mean(done[posterior]), flush=True)


if __name__ == "__main__":
    main()
