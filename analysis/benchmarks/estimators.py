"""The regressor of `pyrodrop.sklearn` on airfoil, beside the published results of bde.

    python -m pyrodrop.analysis.benchmarks.estimators FILE [--again NAME ...]

The split of bde (https://github.com/scikit-learn-contrib/bde) is ``train_test_split(test_size=0.2, random_state=0)`` of
standardised columns; there are five more. XGBoost is included if it is installed, with the settings and seeds of bde. FILE
is written after every fit, and fits that it contains are not repeated, except the rows that `--again` names, such as
``default``. Data are read from PYRODROP_DATA.
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
from scipy.stats import norm

from pyrodrop import guides
from pyrodrop.analysis.benchmarks.tables.whole import table
from pyrodrop.analysis.benchmarks.timing import machine
from pyrodrop.analysis.reports import generated
from pyrodrop.files import write_json
from pyrodrop.sklearn import NetworkRegressor

SPLITS = 6  # number of splits of airfoil; the first is that of bde
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
Rows = tuple[np.ndarray, np.ndarray]


def network(train: Rows, test: Rows, **changes: Any) -> dict[str, float]:
    """The scores of the default regressor with changes, and the processor time of its fit in seconds.

    ``density`` is the log density of the mixture of its draws, ``density_of_moments`` of a Gaussian with its moments.
    """
    start = time.process_time()
    model = NetworkRegressor(random_state=0, **changes).fit(*train)
    seconds = time.process_time() - start
    mean, sd = model.predict(test[0], return_std=True)
    low, high = model.predict(test[0], quantiles=(0.025, 0.975))[1].T
    density = model.prediction(test[0]).log_density(torch.as_tensor(test[1][:, None]))
    return {
        "density": float(density.mean()),
        "density_of_moments": float(norm.logpdf(test[1], mean, sd).mean()),
        "rmse": float(np.sqrt(np.mean((mean - test[1]) ** 2))),
        "coverage": float(np.mean((low <= test[1]) & (test[1] <= high))),
        "seconds": seconds,
    }


def boosted(train: Rows, test: Rows) -> dict[str, float]:
    """The error of XGBoost, mean over seeds; it predicts no distribution."""
    from xgboost import XGBRegressor

    settings = {"tree_method": "hist", "n_estimators": 2000, "learning_rate": 0.05, "subsample": 0.8, "max_depth": 6}
    models = [XGBRegressor(**settings, n_jobs=1, random_state=seed).fit(*train) for seed in range(_BOOSTED_SEEDS)]
    errors = [np.sqrt(np.mean((model.predict(test[0]) - test[1]) ** 2)) for model in models]
    return {"rmse": float(np.mean(errors))}


def scores(split: int, how: str) -> dict[str, float]:
    """Scores on a split of airfoil, standardised by its training rows."""
    from sklearn.model_selection import train_test_split

    x, y = table("airfoil")
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=split)
    of_x, of_y = ((columns.mean(0), columns.std(0)) for columns in (x_train, y_train))
    pairs = [((x - of_x[0]) / of_x[1], (y - of_y[0]) / of_y[1]) for x, y in ((x_train, y_train), (x_test, y_test))]
    train, test = pairs
    return boosted(train, test) if how == XGBOOST else network(train, test, **HOW[how])


def text(content: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """The table in Markdown: scores of bde's split, and mean and standard error over the others."""
    lines = [["regressor", "split", "RMSE", "NLL of the mixture", "NLL of its moments", "seconds"]]
    for how in (how for how in (*HOW, XGBOOST) if how in content):
        splits = content[how]
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
    parser.add_argument("--again", nargs="+", default=[], choices=(*HOW, XGBOOST), help="rows to measure again")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    content: dict[str, Any] = {"airfoil": {}}
    if options.file.is_file():
        content = json.loads(options.file.read_text(encoding="utf-8"))
    content["machine"] = machine()
    for how in options.again:
        content["airfoil"].pop(how, None)
    for how in (*HOW, XGBOOST) if find_spec("xgboost") else HOW:
        done = content["airfoil"].setdefault(how, [])
        for split in range(len(done), SPLITS):
            done.append(scores(split, how))
            write_json(options.file, content)
            print("airfoil", how, split, done[-1], flush=True)


if __name__ == "__main__":
    main()
