"""The cells of the benchmark: the scores of a method on a fold of a table, in a file that later calls extend.

    content = {"about": {...}, "cells": {table: {fold: {method: scores}}}}

The scores are those of `methods`, and ``seconds``: the processor time of fit and prediction in one thread, without the
imports of the first fit in a process. If a method raises an error or a score is not finite, ``failed`` is the message.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyrodrop.analysis.benchmarks.tables import methods
from pyrodrop.analysis.benchmarks.tables.chosen import chosen, fold
from pyrodrop.analysis.reports.json_files import write_json
from pyrodrop.names import known

Cell = dict[str, Any]


def measure(table: str, k: int, method: str) -> Cell:
    """The cell of a method on fold `k` of a table; the number of the fold is the seed."""
    from threadpoolctl import threadpool_limits

    train, (x, y) = fold(table, k)
    regression = chosen()[table].kind == "regression"
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _warm_up(method, regression)
            begun = time.process_time()
            if regression:
                distributions = methods.REGRESSIONS[method](train, x, k)
                seconds = time.process_time() - begun
                scores = methods.scores_of_regression(distributions, y)
            else:
                probabilities = methods.CLASSIFICATIONS[method](train, x, k)
                seconds = time.process_time() - begun
                scores = methods.scores_of_classification(probabilities, y)
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:300]}
    if not all(np.isfinite(value) for value in scores.values()):
        return {"failed": f"scores are not finite: {scores}"}
    return scores | {"seconds": seconds}


_WARM: set[tuple[str, bool]] = set()


def _warm_up(method: str, regression: bool) -> None:
    """Fit thirty rows, so that the imports of a method do not count in the time of a table."""
    if (method, regression) not in _WARM:
        _WARM.add((method, regression))
        random = np.random.RandomState(0)
        x = random.randn(30, 2)
        if regression:
            methods.REGRESSIONS[method]((x, random.randn(30)), x, 0)
        else:
            methods.CLASSIFICATIONS[method]((x, np.arange(30) % 2), x, 0)


def read(file: Path) -> dict[str, Any]:
    """The content of a file of cells; without cells if there is no file."""
    if not file.is_file():
        return {"about": {}, "cells": {}}
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def continued(file: Path, tables: Sequence[str], folds: Sequence[int], wanted: Sequence[str], about: Any) -> None:
    """Measure what is missing in the file, fold by fold, and write it after every table of a fold."""
    content = read(file)
    content["about"] |= about
    for k in folds:
        for table in tables:
            known(table, chosen(), "table")
            of_kind = methods.REGRESSIONS if chosen()[table].kind == "regression" else methods.CLASSIFICATIONS
            done = content["cells"].setdefault(table, {}).setdefault(str(k), {})
            missing = [method for method in of_kind if method in wanted and method not in done]
            for method in missing:
                done[method] = measure(table, k, method)
            if missing:
                write_json(file, content)
                print(k, table, {name: _short(done[name]) for name in missing}, flush=True)


def merged(contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cells of several files; if several files have a cell, that of the last one."""
    whole: dict[str, Any] = {"about": {}, "cells": {}}
    for content in contents:
        whole["about"] |= content["about"]
        for table, folds in content["cells"].items():
            for k, cells in folds.items():
                whole["cells"].setdefault(table, {}).setdefault(k, {}).update(cells)
    return whole


def _short(cell: Cell) -> str:
    return cell.get("failed") or f"{cell['log_density']:.3f} in {cell['seconds']:.1f} s"
