"""Score a file with draws of any method against the exact posteriors.

Every array is called ``PROBLEM.NAME``, or ``NAME`` if the problem is an argument:

    yacht.layers.0.weight    [draws, 50, 6], and so on for all of ``zoo.load("exact/yacht").samples``
    yacht.f                  [draws, points, outputs], f at the test points, in the units of y or logits

with ``[chains, draws, ...]`` allowed in place of ``[draws, ...]``. The file is one of ``numpy.savez``, and nothing in it is
executed.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.analysis.lab.experiments.league.rows import Referee, Row, chance, league
from pyrodrop.analysis.lab.experiments.peers import experiment as peers
from pyrodrop.analysis.lab.experiments.peers.experiment import of_draws
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.json_files import LARGEST, write_json
from pyrodrop.analysis.reports.score_table import best_first, score_table
from pyrodrop.analysis.reports.terminal import paragraph, print_table
from pyrodrop.arrays import tensor_of
from pyrodrop.checks import all_finite, known
from pyrodrop.failed import Failed
from pyrodrop.zoo.exact import PROBLEMS

FORMS = peers.FORMS | {"wasserstein se": ".3f", "spread": ".2f", "away": ".2f"}
CAPTION = (
    "W2 / sd: Wasserstein-2 distance of f over the mean sd of f, mean over test points; s.e.: over five starts\n"
    "spread, away: sd of f over the exact posterior's, at the test points and away from the data, median over points\n"
    "TV: total variation distance of y; cov.: relative distance of the covariance of f\n"
    "to ref.: log density minus the exact posterior's, nats per observation; chance: between two halves of the exact draws"
)


def submit(
    file: str | Path, *, problem: str | None = None, name: str | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Score draws of weights, or of functions, against the exact posteriors, and print them in the leagues.

    Args:
        file: a .npz file with draws by PROBLEM.NAME; docs/league.md says how.
        problem: the problem that all draws are of, where names in the file are without it.
        name: of the method in the tables; that of the file if left out.
        out: a JSON file to write the rows to.

    Returns:
        What is written: row, place and number of methods by problem.

    Raises:
        ValueError: the problem is unknown, or the file has no draws, or draws that are not those of a problem.
        OSError: a file cannot be read or written; the message names it.
    """
    if problem is not None:
        problem = known(problem.removeprefix("exact/"), PROBLEMS, "exact posterior")
    file = Path(file)
    method, problems = name or file.stem, {}
    for each, arrays in _by_problem(file, problem).items():
        referee = Referee(each)
        draws, row = _scored(file, method, referee, arrays)
        rows, label = league(each), f"> {method}"
        if row["wasserstein"] is None:
            raise Failed(f"{file} has draws of {each} that are too large: their distance is not finite")
        nearer = sum(other["wasserstein"] < row["wasserstein"] for other in rows.values())  # type: ignore[operator]
        problems[each] = {"draws": draws, "place": nearer + 1, "of": len(rows) + 1, "row": row, "chance": chance(each)}
        print_table(score_table(
            best_first({**rows, label: row}, "wasserstein", smallest=True), title=f"{each}: {PROBLEMS[each].summary}",
            caption=CAPTION, headers=peers.HEADERS | {"wasserstein se": "s.e."}, forms=FORMS, apart={"chance": chance(each)},
        ))  # fmt: skip
        few = f", which is fewer than the {referee.draws} of the others" if draws < referee.draws else ""
        paragraph(f"{method} is number {nearer + 1} of {len(rows) + 1} on {each}, by {draws} draws{few}.")
    content = {"method": method, "problems": problems, "versions": versions()}
    if out is not None:
        write_json(out, content)
    return content


def _scored(file: Path, method: str, referee: Referee, arrays: Mapping[str, Any]) -> tuple[int, Row]:
    """The number of draws that are used, evenly spaced, and the row of a method."""
    sites: dict[str, tuple[int, ...]] = {
        name: tuple(value.shape[2:]) for name, value in referee.sampled.samples.items()
    }
    shapes = {"f": (len(referee.test), PROBLEMS[referee.name].widths[-1])} if "f" in arrays else sites
    if arrays.keys() != shapes.keys():
        raise Failed(f"{file} must have of {referee.name} f, or {', '.join(sites)}; it has {', '.join(arrays)}")
    values = {name: _draws(file, f"{referee.name}, {name}", arrays[name], shape) for name, shape in shapes.items()}
    counts = {name: len(value) for name, value in values.items()}
    count = min(counts.values())
    if max(counts.values()) > count:
        raise Failed(f"{file} must have as many draws of every array of {referee.name}; it has {counts}")
    size = min(count, referee.draws)
    values = {name: value[torch.arange(size) * count // size] for name, value in values.items()}
    if "f" in values:
        return size, referee.row(method, of_draws(values["f"], PROBLEMS[referee.name].likelihood()))
    samples, stats = {name: value.float()[None] for name, value in values.items()}, {"lp": torch.zeros(1, size)}
    theirs = replace(referee.sampled, samples=samples, stats=stats)
    return size, referee.row(method, theirs.predict(referee.test.x, size), theirs.predict(referee.away, size).f)


def _draws(file: Path, name: str, array: Any, shape: tuple[int, ...]) -> Tensor:
    """Draws ``[draws, *shape]`` in float64; chains one after the other."""
    values = _tensor(file, name, array)
    if values.shape[-len(shape) :] != shape or values.dim() - len(shape) not in (1, 2) or not values.numel():
        sizes = ", ".join(map(str, shape))
        raise Failed(
            f"{file}: {name} must be [draws, {sizes}] or [chains, draws, {sizes}]; got shape {list(values.shape)}"
        )
    return values.double().reshape(-1, *shape)


def _tensor(file: Path, name: str, array: Any) -> Tensor:
    """Finite numbers, or a `Failed`."""
    try:
        values = tensor_of(array, name)
        all_finite(values, name)
    except (TypeError, ValueError) as error:
        raise Failed(f"{file}: {error}") from None
    return values


def _by_problem(file: Path, problem: str | None) -> dict[str, dict[str, Any]]:
    """The arrays of a file by problem and name."""
    arrays = _read(file)
    if problem is not None:
        return {problem: arrays}
    problems: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        of, _, rest = name.removeprefix("exact/").partition(".")
        if of not in PROBLEMS:
            raise Failed(
                f"{file}: names must begin with a problem, {', '.join(PROBLEMS)}, as in 'yacht.f', or the problem be given, "
                f"--problem yacht; got {name!r:.60}"
            )
        problems.setdefault(of, {}).update({rest: array})
    return problems


def _read(file: Path) -> dict[str, Any]:
    """The arrays of a file by name; a `Failed` if it is of another kind, damaged, too large, or has none."""
    if not file.is_file():
        raise Failed(f"{file} is not a file" if file.exists() else f"{file} does not exist")
    try:
        with zipfile.ZipFile(file) as inside:
            size = sum(entry.file_size for entry in inside.infolist())
        if size > LARGEST:
            raise Failed(f"{file} must be at most {LARGEST:,} bytes when it is read; it is {size:,}")
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (
        OSError,
        ValueError,
        LookupError,
        EOFError,
        RuntimeError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise Failed(f"{file} is no .npz file with arrays: {error}") from None
    if not arrays:
        raise Failed(f"{file} has no arrays")
    return arrays
