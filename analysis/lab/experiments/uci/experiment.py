"""The UCI regression table (Gal & Ghahramani 2016, table 1, and its re-run of 2018), for MC dropout and other posteriors.

A cell is a posterior on all splits of a data set; its splits and grid points are trained as replicates. Cells run in
parallel, one thread each, and are stored when they finish: repeat the command to resume. If only one cell is missing, the
processes share its replicates. ``python -m pyrodrop.analysis.lab.tidy INTO.csv FOLDER/uci.csv`` stores the results.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from joblib import parallel_config

from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.experiments.parallel import on_this_machine, train_each
from pyrodrop.analysis.lab.experiments.uci.cell import Cell, run_cell
from pyrodrop.analysis.lab.experiments.uci.cell import cells as uci_cells
from pyrodrop.analysis.lab.experiments.uci.columns import POSTERIORS, Penalty, Precision
from pyrodrop.analysis.lab.experiments.uci.protocol import PROTOCOLS, SETTINGS, chosen_sets
from pyrodrop.analysis.lab.experiments.uci.table import print_tables, results
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.folder import Cells, run_folder
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.json_files import write_json
from pyrodrop.checks import known, some
from pyrodrop.data import uci


@with_job_options("device", "jobs")
def run(
    job: JobOptions,
    *,
    data: list[str] | None = None,
    guides: list[str] | None = None,
    protocol: str = "quick",
    precision: Precision = "auto",
    penalty: Penalty = "released",
    splits: int | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Compute the missing cells of the table and print it next to the published one.

    Args:
        data: data sets: boston, concrete, energy, kin8nm, naval, power, protein, wine, yacht, year; small for the five that
            take minutes, all for the nine. Small if not given.
        guides: posteriors: bernoulli, none, mean-field, variational-a, variational-b, sparse, ard, concrete, ensemble, gp,
            nngp; bernoulli if not given.
        protocol: quick and gal2016 train 400 epochs with the published settings; gal2016-100x trains 4,000 and gal2016-500x
            20,000 of two hidden layers; gal2018 trains 4,000 with a grid search.
        precision: noise precision: from the published grid, learned or heteroscedastic; auto is the posterior's default.
        penalty: weight penalty of MC dropout: that of the released code, or that of the paper.
        splits: number of splits, the first ones; all if not given.
        out: folder of the cells, of uci.csv and results.json; runs/uci-PROTOCOL if not given.

    Returns:
        The cells of the folder, by set and guide: those of earlier runs stay in the table.
    """
    names = chosen_sets(some(data, ["small"], "data"))
    protocol = known(protocol, PROTOCOLS, "protocol of the UCI table")
    columns = [
        known(guide, POSTERIORS, "posterior of the UCI table") for guide in some(guides, ["bernoulli"], "guides")
    ]
    if splits is not None and splits < 1:
        raise ValueError(f"splits is how many of the published splits to take and must be at least 1; got {splits}")
    cells = {}
    for name in names:
        count = min(splits or len(uci(name)), len(uci(name)))  # which also says early what file is missing
        for column in columns:
            cell = Cell(name, column, protocol, precision, penalty, count, job.seed)
            cell.points()
            cells[f"{name}/{column}"] = cell
    about = {"protocol": protocol, "device": job.device.type}
    with run_folder(out or Path("runs") / f"uci-{protocol}", "uci", about) as folder:
        keep = Cells(folder, lambda name: asdict(cells[name]), lambda record: record.records("rows"))
        # one cell alone shares its replicates among the processes
        missing = [name for name in cells if keep.kept(name) is None]
        if len(missing) == 1:
            with nullcontext() if job.jobs is None else parallel_config(n_jobs=job.jobs):
                keep.keep(missing[0], run_cell(cells[missing[0]], folder, job.device, job.progress))
        order = sorted(cells, key=lambda name: -_work(cells[name]))
        done = train_each(_run_cell, order, job, keep=keep, cells=cells, folder=folder.resolve())
        table = folder / "uci.csv"
        tidy.put(table, [row for name in cells for row in done[name]["rows"]])
        finished = uci_cells(protocol, table)
        write_json(folder / "results.json", results(finished, protocol) | {"versions": versions()})
        print_tables(finished, PROTOCOLS[protocol].published)
        print(f"results: {folder / 'results.json'}, {table}")
        return {f"{name}/{column}": content for (name, column), content in finished.items()}


def _run_cell(
    name: str, *, cells: dict[str, Cell], folder: Path, device: torch.device, progress: bool | None
) -> dict[str, Any]:
    with on_this_machine(folder) as shared:
        return run_cell(cells[name], shared, device, progress)


def _work(cell: Cell) -> float:
    """A rough measure of a cell's cost: rows times epochs, splits, grid points and hidden units."""
    epochs = PROTOCOLS[cell.protocol].epochs(cell.data)
    return len(uci(cell.data).x) * epochs * cell.splits * len(cell.points()) * SETTINGS[cell.data].hidden
