"""What two processes do in the tests of ranks: ``python on_ranks.py FOLDER NAME ...`` calls functions of this file on both.

One process imports everything and is forked. Each rank writes what a function returns, or the error that it raises, to
``FOLDER/NAME-RANK.json``. The tests compare them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from pyro.infer.autoguide import AutoDelta
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

RANKS, ROWS = 2, 10


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 2, generator=generator)
    return x, x[:, :1] - 0.5 + 0.1 * torch.randn(rows, 1, generator=generator)


def network(net: nn.Module) -> models.NetworkModel:
    return models.from_module(net, prior=priors.Gaussian(0.5), likelihood=likelihoods.Gaussian(2.0))


def mlp(start: int = 1) -> models.NetworkModel:
    torch.manual_seed(start)
    return network(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))


SETTINGS: dict[str, Any] = {"batch_size": 3, "lr": 1e-3, "optimizer": torch.optim.SGD, "engine": "pyro"}


def fitted(make: Any = guides.MeanField, model: Any = None, rows: Any = None, **settings: Any) -> pyrodrop.Fit:
    model = mlp() if model is None else model
    settings = {"steps": 9, "progress": False, **SETTINGS, **settings}
    return pyrodrop.fit(model, make(model), data() if rows is None else rows, **settings)


def numbers(fit: Any) -> list[float]:
    """All parameters, buffers and losses."""
    values = [*fit.guide.parameters(), *fit.model.parameters(), *fit.guide.buffers(), *fit.model.buffers(), fit.history]
    return torch.cat([value.detach().double().flatten() for value in values]).tolist()


def refused(call: Callable[[], Any]) -> dict[str, Any]:
    """The error of a call, and how long it took."""
    start = time.monotonic()
    try:
        call()
    except Exception as error:
        return {"kind": type(error).__name__, "text": str(error), "seconds": time.monotonic() - start}
    return {"kind": "", "text": "no error", "seconds": time.monotonic() - start}


@contextlib.contextmanager
def logged() -> Any:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pyrodrop")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


# one process and two


def _equal(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Guides that draw nothing, on minibatches of 3, 3, 3 and 1 of 10 rows: the last has none for rank 1."""
    torch.set_default_dtype(torch.float64)
    results = {}
    for name, settings in cells.items():
        make = settings.pop("make", guides.Point)
        together = fitted(make, **settings)
        alone = numbers(fitted(make, distributed=False, **settings | {"accumulate": 1}))
        results[name] = {"together": numbers(together), "alone": alone, "ranks": together.settings["ranks"]}
    torch.set_default_dtype(torch.float32)
    return results


def equal() -> dict[str, Any]:
    return _equal(
        {
            "pyro": {},
            "all rows": {"batch_size": None, "optimizer": torch.optim.Adam},
            "traced in two parts": {"engine": "traced", "batch_size": 8, "accumulate": 2, "estimator": "local"},
            "autoguide": {"make": AutoDelta},
        }
    )


def equal_compiled() -> dict[str, Any]:
    return _equal({"compiled": {"engine": "compiled"}})


class Keeping(torch.optim.SGD):
    """SGD that keeps the gradients."""

    kept: ClassVar[list[list[float]]] = []

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        grads = [p.grad.flatten() for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.kept.append(torch.cat(grads).tolist())
        return super().step(closure)


def gradients() -> dict[str, Any]:
    """Gradients of a linear regression at one place, by both ranks and by one process."""
    torch.set_default_dtype(torch.float64)
    x, _ = data(12)
    y = x @ torch.tensor([[1.0], [-2.0]])
    results: dict[str, Any] = {"x": x.tolist(), "y": y.tolist()}
    for name, distributed in (("together", None), ("alone", False)):
        torch.manual_seed(2)
        model = models.from_module(
            nn.Linear(2, 1, bias=False), prior=priors.Gaussian(0.8), likelihood=likelihoods.Gaussian(2.0)
        )
        Keeping.kept.clear()
        settings = {"batch_size": None, "steps": 150, "lr": 1e-15, "optimizer": Keeping, "distributed": distributed}
        fit = fitted(lambda model: guides.MeanField(model, init_scale=0.4), model, (x, y), **settings)
        results[name] = list(Keeping.kept)
        results["names"] = [name for name, _ in fit.guide.named_parameters()]
        results["loc"] = next(iter(fit.guide.mean().values())).flatten().tolist()
    torch.set_default_dtype(torch.float32)
    return results


def batch_norm() -> dict[str, Any]:
    """One step on all rows: running means of the rows of a rank, before and after averaging."""
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    fit = fitted(guides.Point, network(net), steps=1, batch_size=None, lr=1e-12)
    rows = data()[0].chunk(RANKS)[dist.get_rank()]
    return {
        "mean": fit.model.network[1].running_mean.tolist(),
        "of the rank": (0.1 * net[0](rows).mean(0)).tolist(),
        "numbers": numbers(fit),
    }


class Items(torch.utils.data.Dataset[Any]):
    """The rows of `data`, by their numbers."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = data()
        return x[row], y[row]


def reading() -> dict[str, Any]:
    """Training on rows that are read, and on tensors; and on a loader."""
    loader = refused(lambda: fitted(rows=[data()], num_data=ROWS, batch_size=None))
    return {"read": numbers(fitted(rows=Items())), "tensors": numbers(fitted()), "loader": loader["text"]}


def starts() -> dict[str, Any]:
    """Ranks whose initial weights differ; what the log and the progress bar say."""
    with logged() as lines:
        fit = fitted(model=mlp(start=dist.get_rank()))
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        fitted(progress=True)
    return {"numbers": numbers(fit), "log": lines, "bar": shown.getvalue()}


# the end


class Breaks(nn.Module):
    """NaN at the row whose first input is 7."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * torch.where(x[:, :1] == 7, torch.nan, 1.0)  # type: ignore[no-any-return]


def ends() -> dict[str, Any]:
    """NaN on rank 1, whose rows of step 1 are two of the second minibatch of four; `after_epoch`, True on rank 0 alone."""
    x, y = data()
    x[:, 0] = torch.arange(ROWS)
    orders = {seed: torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(50)}
    seed = next(seed for seed, order in orders.items() if 7 in order[6:8])
    broken = refused(lambda: fitted(model=network(Breaks()), rows=(x, y), batch_size=4, seed=seed))
    fit = fitted(steps=30, after_epoch=lambda fit, epoch: dist.get_rank() == 0 and epoch == 2)
    return {"broken": broken, "steps": len(fit.losses)}


def fails() -> dict[str, Any]:
    """Another seed on rank 1, which ends with an error."""
    return refused(lambda: fitted(seed=dist.get_rank()))


# to continue


def checkpoints() -> dict[str, Any]:
    """Without noise: runs of both ranks and of one that continue runs of both and of one."""
    folder, results = Path(sys.argv[1]), {"whole": numbers(fitted(guides.Point, steps=12))}
    for name, first, second in (("two", None, None), ("two by one", None, False), ("one by two", False, None)):
        file = folder / f"{name}-{dist.get_rank()}.safetensors"
        file = folder / f"{name}-0.safetensors" if first is False and second is None else file
        for steps, distributed in ((7, first), (12, second)):
            if distributed is None or dist.get_rank() == 0:
                checkpoint = pyrodrop.Checkpoint(file, every=5)
                with logged() as lines:
                    fit = fitted(guides.Point, steps=steps, checkpoint=checkpoint, distributed=distributed)
        results[name] = numbers(fit) if second is None or dist.get_rank() == 0 else []
        results[f"{name} wrote"] = file.exists()
        results[f"{name} logged"] = "\n".join(lines)
    return results


def step_by_step() -> dict[str, Any]:
    """`Training`; a state of each rank, of which that of rank 0 counts."""
    training = pyrodrop.Training(mlp(), guides.MeanField(mlp()), data(), **SETTINGS)
    training.advance(4)
    if dist.get_rank() == 0:
        training.fit.elbo(3)
    state = training.state()
    training.advance(5)
    again = pyrodrop.Training(mlp(), guides.MeanField(mlp()), data(), **SETTINGS)
    again.load_state(state if dist.get_rank() == 0 else {})
    drawn = again.state()["random.cpu"].sum()
    again.advance(5)
    return {
        "fit": numbers(fitted(steps=9)),
        "steps": numbers(training.fit),
        "again": numbers(again.fit),
        "random": [float(state["random.cpu"].sum()), float(drawn)],
    }


def on_gpus() -> dict[str, Any]:
    """One process per GPU: its gradients by nccl."""
    gpu = torch.device("cuda", dist.get_rank())
    rows = tuple(value.to(gpu) for value in data())
    settings = {"rows": rows, "device": gpu, "batch_size": None}
    together, alone = fitted(guides.Point, **settings), fitted(guides.Point, **settings, distributed=False)
    return {"together": numbers(together), "alone": numbers(alone)}


def main() -> None:
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # which every first step imports: once, before the fork
    children = [child for rank in range(RANKS) if (child := os.fork()) or _rank(rank)]
    for child in children:
        os.waitpid(child, 0)


def _rank(rank: int) -> bool:
    """The work of a rank; does not return."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    backend = "cpu:gloo,cuda:nccl" if "on_gpus" in names else "gloo"
    try:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
        for name in names:
            try:
                result = globals()[name]()
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
            torch.set_default_dtype(torch.float32)
            (folder / f"{name}-{rank}.json").write_text(json.dumps(result))
    except BaseException as error:
        print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
