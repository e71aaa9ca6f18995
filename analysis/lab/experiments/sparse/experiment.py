"""Sparse networks on MNIST (Molchanov, Ashukha & Vetrov 2017, table 1; Kharitonov, Molchanov & Vetrov 2018; by unit:
Neklyudov, Molchanov, Ashukha & Vetrov 2017).

A network is trained with sparse variational dropout, ARD or log-normal dropout and evaluated after every epoch. At the end
weights with log alpha >= 3, or input units with log alpha >= 0, are pruned, units without weights are removed, and the
result is compared with the dense network. Sparsity is recorded once the weight of the KL divergence has reached 1; before
that it has no meaning.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table

from pyrodrop import checks, zoo
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.lab.experiments.sparse.figure import draw_progress
from pyrodrop.analysis.lab.experiments.sparse.sizes import compression, compression_report, uncut_weights
from pyrodrop.analysis.lab.experiments.sparse.units import DENSE, units_left
from pyrodrop.analysis.reports.folder import say_reused
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.compression.compress import keep_mask, kept_weights
from pyrodrop.data import Dataset, mnist
from pyrodrop.devices import processor
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.training.result import Fit
from pyrodrop.zoo import Entry
from pyrodrop.zoo.entries import RECIPES
from pyrodrop.zoo.entries import SPARSE_BATCH as BATCH

_ROWS = 2000  # digits per forward pass


def training(entry: Entry, data: Dataset, epochs: int | None) -> dict[str, Any]:
    """The entry's arguments of `pyrodrop.fit`, for this number of epochs if it is given; the KL weight is not shortened.

    Raises:
        ValueError: too few epochs for the weight of the KL divergence to reach 1; sparsity before that is meaningless.
    """
    settings: dict[str, Any] = dict(entry.settings(data))
    full = next(epoch for epoch in itertools.count() if settings["kl_weight"](epoch) >= 1)
    if epochs is not None and epochs <= full:
        raise ValueError(
            f"epochs must be more than {full}, as the weight of the KL divergence of {entry.name} reaches 1 in epoch "
            f"{full + 1} and sparsity has no meaning before; got {epochs}"
        )
    return settings if epochs is None else dict(entry.settings(data, epochs=epochs))


@with_job_options("device")
def run(
    job: JobOptions,
    *,
    net: Literal["lenet-300-100", "lenet-5"] = "lenet-300-100",
    method: Literal["sparse", "ard", "log-normal"] = "sparse",
    recipe: Literal["molchanov2017", "deepbayes2019", "neklyudov2017"] = "molchanov2017",
    epochs: int | None = None,
    digits: int = 60_000,
    out: Path = Path("runs/sparse"),
) -> dict[str, Any]:
    """Train, prune, compress, and print the table; `pyrodrop run published` has the published figures.

    Args:
        net: lenet-300-100 or lenet-5.
        method: sparse (log-uniform prior) or ard, or log-normal, by unit.
        recipe: training settings, molchanov2017 or deepbayes2019, or neklyudov2017 with log-normal.
        epochs: number of epochs; that of the recipe if not given.
        digits: number of training digits, all 60,000 if not given.
        out: folder of results.json, progress.png and fit.safetensors. An interrupted run
            continues from training.safetensors there.

    Returns:
        What is written to results.json.
    """
    if method not in RECIPES[recipe].methods:
        raise ValueError(
            f"method must be one of those of the recipe {recipe}, {', '.join(RECIPES[recipe].methods)}; got {method!r}"
        )
    entry = zoo.entry(f"{method}/{net}-{recipe}")
    digits = checks.count(digits, "digits", "the number of training digits")
    epochs = None if epochs is None else checks.count(epochs, "epochs", "the number of epochs")
    data = mnist(flat=net == "lenet-300-100")
    about: dict[str, Any] = {"net": net, "method": method, "recipe": recipe, "epochs": epochs, "digits": digits}
    with Experiment.begin("sparse", out, job, about) as experiment:
        folder = experiment.folder
        train = data.train.first(digits)
        settings = training(entry, train, epochs)
        checkpoint = folder / "training.safetensors"
        say_reused([checkpoint.name] if checkpoint.exists() else [], folder)
        log = EpochLog(folder / "epochs.json", data.test, goes_on=checkpoint.exists())
        fit = entry.fit(
            train, seed=job.seed, device=job.device, progress=job.progress, after_epoch=log,
            checkpoint=Checkpoint(checkpoint, every=5 * -(-len(train) // BATCH)), **settings,
        )  # fmt: skip
        fit.save(folder / "fit.safetensors")
        report = compression_report(fit)
        content = {
            "name": entry.name,
            "result": summary(fit, data.test, log),
            "compressed": report.record(),
            "epochs": log.rows,
            "processor": processor(),
        }
        settings = {**fit.settings, "epochs": len(log.rows), "threshold": report.threshold}
        progress = draw_progress(log.rows, fit.guide.sites)  # type: ignore[attr-defined]
        title = f"{entry.name}, {len(log.rows)} epochs, seed {job.seed}"
        return experiment.write(content, table_of(title, content), settings=settings, figures={"progress": progress})


class EpochLog:
    """Measurements after every epoch, stored in a file next to the checkpoint.

    Attributes:
        rows: one per epoch: error and error_dense (without pruning), nll and kl (means over the epoch's steps, in nats for
            all digits), kl_weight, seconds; sparsity by site and compression, which are None while kl_weight is below 1.
    """

    def __init__(self, path: Path, test: Dataset, *, goes_on: bool) -> None:
        self.path: Path = path
        self.test: Dataset = test
        kept = goes_on and path.exists()
        self.rows: list[dict[str, Any]] = _read_rows(path) if kept else []
        self._clock = time.perf_counter()

    def __call__(self, fit: Fit, epochs: int) -> None:
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        if len(self.rows) >= epochs and self.rows[epochs - 1]["epoch"] == epochs:
            self.rows = self.rows[:epochs]  # resumed from a checkpoint: later epochs are repeated
            return
        steps = fit.history[-(len(fit.history) // epochs) :].double()
        whole = float(steps[-1, 2]) >= 1
        mask = keep_mask(fit.guide, None)
        row = {
            "epoch": epochs,
            "error": error(fit, kept_weights(fit.guide, None), self.test),
            "error_dense": error(fit, uncut_weights(fit.guide), self.test),
            "nll": float(steps[:, 0].mean()),
            "kl": float(steps[:, 1].mean()),
            "kl_weight": float(steps[-1, 2]),
            "sparsity": {n: 1 - float(m.double().mean()) for n, m in mask.items()} if whole else None,
            "compression": compression(mask) if whole else None,
            "seconds": seconds,
        }
        self.rows = [*self.rows[: epochs - 1], row]
        write_json(self.path, {"epochs": self.rows})
        self._clock = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Training time including compilation, without the measurements."""
        return float(sum(row["seconds"] for row in self.rows))


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an `EpochLog`'s file; a ValueError if it is broken."""
    record = read_record(path, "remove the folder to start again")
    rows = record.records("epochs")
    for number, row in enumerate(rows):
        for key in ("error", "error_dense", "nll", "kl", "kl_weight", "seconds"):
            row.number(key)
        row.number("compression", optional=True)
        if row.content.get("sparsity") is not None:
            sites = row.record("sparsity")
            for site in sites.content:
                sites.number(site)
        if row.number("epoch") != number + 1:
            raise record.fault(f"must have the epochs from 1 on in order; row {number + 1} is of another one")
    return [dict(row.content) for row in rows]


def error(fit: Fit, weights: dict[str, torch.Tensor], data: Dataset) -> float:
    """Error rate of the network with these weights."""
    model: Any = fit.model
    wrong = 0
    with torch.no_grad():
        for x, y in zip(data.x.split(_ROWS), data.y.split(_ROWS), strict=True):
            wrong += int((model.outputs(weights, x.to(fit.device)).argmax(-1).cpu() != y).sum())
    return wrong / len(data)


def summary(fit: Fit, test: Dataset, log: EpochLog) -> dict[str, Any]:
    """The results of the last epoch, with the total training time."""
    last = log.rows[-1]
    keys = ("error", "error_dense", "sparsity", "compression", "nll", "kl")
    return {key: last[key] for key in keys} | {"seconds": log.seconds}


def table_of(title: str, content: dict[str, Any]) -> Table:
    """A table of the network before and after pruning."""
    result = content["result"]
    rows = {"nothing cut": [_percent(result["error_dense"], 2)], "pruned": [_percent(result["error"], 2)]}
    if content["name"].startswith("log-normal"):
        dense = DENSE[content["name"].split("/")[1].removesuffix("-neklyudov2017")]
        columns = ["units", "FLOPs"]
        flops = content["compressed"]["ratios"]["flops"]
        cells = [dense, "1"], ["-".join(map(str, units_left(content))), f"1 / {flops:.2f}"]
    else:
        columns = ["sparsity by layer %", "compression"]
        sparsity = " / ".join(_percent(share, 1) for share in result["sparsity"].values())
        cells = ["-", "1.0x"], [sparsity, f"{result['compression']:.1f}x"]
    texts = [[name, *row, *more] for (name, row), more in zip(rows.items(), cells, strict=True)]
    return text_table(title, [["network", "error %", *columns], *texts])


def _percent(share: float | None, digits: int) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f}"
