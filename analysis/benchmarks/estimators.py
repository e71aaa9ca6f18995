"""The default regressor of `pyrodrop.sklearn` beside ridge regression and random forests, on whole tables.

    python -m pyrodrop.analysis.benchmarks.estimators FILE [--tables NAME ...]

Log density of the test rows in nats, in the units of y: a random fifth of each table of `twelve`, and for airfoil in the
split of bde (https://github.com/scikit-learn-contrib/bde), ``train_test_split(test_size=0.2, random_state=0)`` of
standardised columns, and in five more. The network has three seeds on every table. Nothing is tuned but what an estimator
chooses on its training rows. On airfoil XGBoost takes part where it is installed, as bde sets and seeds it.

Ridge regression has the noise of its predictions of rows that are left out, and so has a random forest of 100 trees; another
forest has noise of the variance a + b (variance over its trees), with a and b chosen on the same out-of-bag predictions.
FILE is written after every table, and what is in it is not done again.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyrodrop import guides
from pyrodrop.analysis.benchmarks.tables import twelve
from pyrodrop.analysis.benchmarks.timing import machine
from pyrodrop.analysis.reports import generated
from pyrodrop.data import Dataset
from pyrodrop.files import write_json
from pyrodrop.sklearn import NetworkRegressor

REGRESSIONS = tuple(name for name in twelve.REGRESSIONS if name != "diabetes")
SEEDS = 3  # of the network
SPLITS = 6  # of airfoil; the first is bde's
HOW: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "20,000 steps": {"max_steps": 20_000},
    "10,000 steps, three layers of 64, .2 % dropped": {
        "max_steps": 10_000,
        "hidden_layer_sizes": (64, 64, 64),
        "posterior": functools.partial(guides.BernoulliDropout, drop_rate=0.002, mask_input=False),
    },
}
XGBOOST = "XGBoost with bde's settings"
_BOOSTED_SEEDS = 5


def network(train: twelve.Rows, test: twelve.Rows, seed: int = 0, **changes: Any) -> dict[str, float]:
    """The scores of the default regressor with changes, and the seconds of one core that its fit took.

    density is of the mixture of its draws, density_of_moments of the Gaussian with the mean and variance of the mixture.
    """
    start = time.process_time()
    model = NetworkRegressor(random_state=seed, **changes).fit(*train)
    seconds = time.process_time() - start
    mean, sd = model.predict(test[0], return_std=True)
    low, high = model.predict(test[0], quantiles=(0.025, 0.975))[1].T
    density = model.prediction(test[0]).log_density(torch.as_tensor(test[1][:, None]))
    return {
        "density": float(density.mean()),
        "density_of_moments": float(twelve.normal(test[1], mean, sd**2).mean()),
        "rmse": float(np.sqrt(np.mean((mean - test[1]) ** 2))),
        "coverage": float(np.mean((low <= test[1]) & (test[1] <= high))),
        "seconds": seconds,
    }


def boosted(train: twelve.Rows, test: twelve.Rows) -> dict[str, float]:
    """The error of XGBoost, mean over seeds; it predicts no distribution."""
    from xgboost import XGBRegressor

    settings = {"tree_method": "hist", "n_estimators": 2000, "learning_rate": 0.05, "subsample": 0.8, "max_depth": 6}
    models = [XGBRegressor(**settings, n_jobs=1, random_state=seed).fit(*train) for seed in range(_BOOSTED_SEEDS)]
    errors = [np.sqrt(np.mean((model.predict(test[0]) - test[1]) ** 2)) for model in models]
    return {"rmse": float(np.mean(errors))}


def of_table(name: str) -> dict[str, Any]:
    """The scores of all methods in a random fifth of a table, those of the network as means over seeds."""
    x, y = twelve.table(name)
    order = np.random.RandomState(0).permutation(len(x))
    test, train = np.split(order, [len(x) // 5])
    pairs = (x[train], y[train]), (x[test], y[test])
    ridge, _ = twelve.ridge(
        *(Dataset(torch.as_tensor(x).float(), torch.as_tensor(y).float()[:, None]) for x, y in pairs)
    )
    constant, spread = twelve.forests(*pairs)
    seeds = [network(*pairs, seed=seed) for seed in range(SEEDS)]
    means = {key: float(np.mean([row[key] for row in seeds])) for key in seeds[0]}
    densities = [row["density"] for row in seeds]
    baselines = {"rows": float(len(x)), "ridge": ridge, "forest": constant, "forest_spread": spread}
    return {**baselines, **means, "densities": densities}


def of_airfoil(split: int, how: str) -> dict[str, float]:
    """Scores on standardised airfoil in a split."""
    from sklearn.model_selection import train_test_split

    x, y = twelve.table("airfoil")
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=split)
    of_x, of_y = ((columns.mean(0), columns.std(0)) for columns in (x_train, y_train))
    pairs = [((x - of_x[0]) / of_x[1], (y - of_y[0]) / of_y[1]) for x, y in ((x_train, y_train), (x_test, y_test))]
    train, test = pairs
    return boosted(train, test) if how == XGBOOST else network(train, test, **HOW[how])


def text(content: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of all tables in Markdown."""
    lines = [
        [
            "table",
            "rows",
            "ridge",
            "forest",
            "forest, spread of trees",
            "network",
            "by seed",
            "95 % interval",
            "seconds",
        ]
    ]
    for name, row in content.items():
        methods = ("ridge", "forest", "forest_spread", "density")
        best = max(row[method] for method in methods)
        shown = [f"**{row[m]:.2f}**" if row[m] == best else f"{row[m]:.2f}" for m in methods]
        ends = f"{min(row['densities']):.2f} to {max(row['densities']):.2f}"
        lines.append(
            [name, f"{row['rows']:.0f}", *shown, ends, f"{100 * row['coverage']:.0f} %", f"{row['seconds']:.0f}"]
        )
    return generated.table(lines) + "\n"


def airfoil_text(content: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """The table of airfoil in Markdown: bde's split, and mean and standard error over the others."""
    lines = [["regressor", "split", "RMSE", "NLL of the mixture", "NLL of its moments", "seconds"]]
    for how, splits in content.items():
        first, rest = [how, "bde's"], [how, f"{len(splits) - 1} more"]
        for score, sign in (("rmse", 1), ("density", -1), ("density_of_moments", -1)):
            if score in splits[0]:
                values = np.array([sign * row[score] for row in splits])
                error = values[1:].std(ddof=1) / np.sqrt(len(values) - 1)
                first.append(f"{values[0]:.3f}")
                rest.append(f"{values[1:].mean():.3f} ± {error:.3f}")
        if "seconds" in splits[0]:
            first.append(f"{splits[0]['seconds']:.0f}")
            rest.append(f"{np.mean([row['seconds'] for row in splits[1:]]):.0f}")
        lines += [row + [""] * (len(lines[0]) - len(row)) for row in (first, rest)]
    return generated.table(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tables", nargs="*", default=list(REGRESSIONS), help="tables; all if not given")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    content: dict[str, Any] = {"machine": machine(), "tables": {}, "airfoil": {}}
    if options.file.is_file():
        content = json.loads(options.file.read_text(encoding="utf-8"))
    for name in (name for name in options.tables if name not in content["tables"]):
        content["tables"][name] = of_table(name)
        write_json(options.file, content)
        print(name, content["tables"][name], flush=True)
    for how in (*HOW, XGBOOST) if find_spec("xgboost") else HOW:
        done = content["airfoil"].setdefault(how, [])
        for split in range(len(done), SPLITS):
            done.append(of_airfoil(split, how))
            write_json(options.file, content)
            print("airfoil", how, split, done[-1], flush=True)


if __name__ == "__main__":
    main()
