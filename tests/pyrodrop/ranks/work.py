"""What several processes do in the tests of ranks: ``python work.py FOLDER NAME:W ...`` calls the function NAME on W ranks.

One process imports everything and is forked. Every rank writes what its functions return, or the error that they raise, to
``FOLDER/NAME-W-RANK.json``. The tests compare them.
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
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, ranks
from pyrodrop.ranks import joining
from pyrodrop.ranks import ranks as members
from pyrodrop.training.rank_noise import RankRandom

ROWS = 10


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 2, generator=generator)
    return x, x[:, :1] - 0.5 + 0.1 * torch.randn(rows, 1, generator=generator)


def pair(start: int = 1, width: int = 3) -> tuple[Any, Any]:
    torch.manual_seed(start)
    model = models.MLP([2, width, 1], prior=priors.Gaussian(0.5), likelihood=likelihoods.Gaussian(2.0))
    return model, guides.MeanField(model, init_scale=0.3)


def fitted(model: Any = None, guide: Any = None, own: Any = None, **settings: Any) -> pyrodrop.Fit:
    if model is None:
        model, guide = pair()
    usual = {
        "steps": 9,
        "batch_size": 3,
        "lr": 1e-3,
        "optimizer": torch.optim.SGD,
        "engine": "pyro",
        "progress": False,
    }
    return pyrodrop.fit(model, guide, data() if own is None else own, **{**usual, **settings})


def numbers(fit: Any) -> list[float]:
    """All parameters and losses."""
    values = [*fit.guide.parameters(), *fit.model.parameters(), *fit.guide.buffers(), *fit.model.buffers(), fit.history]
    return torch.cat([value.detach().double().flatten() for value in values]).tolist()


def rank() -> int:
    return dist.get_rank()


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
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# one process and several


def _equal(cells: list[tuple[str, Any]]) -> dict[str, Any]:
    """All rows in every step, whose shares differ between ranks; a point guide draws nothing."""
    torch.set_default_dtype(torch.float64)
    found = {}
    for engine, estimator in cells:
        own = {"engine": engine, "estimator": estimator, "batch_size": None}
        model, _ = pair()
        together = fitted(model, guides.Point(model), **own)
        alone = numbers(fitted(model, guides.Point(model), distributed=False, **own)) if rank() == 0 else []
        kept = [together.settings[name] for name in ("engine", "ranks")]
        found[f"{engine}, {estimator}"] = {"together": numbers(together), "alone": alone, "settings": kept}
    torch.set_default_dtype(torch.float32)
    return found


def equal() -> dict[str, Any]:
    two: list[tuple[str, Any]] = [("traced", "local"), ("pyro", "shared")]
    return _equal(two if dist.get_world_size() == 2 else [("pyro", "per_example")])


def equal_compiled() -> dict[str, Any]:
    return _equal([("compiled", "shared")])


def equal_in_parts() -> dict[str, Any]:
    """Two ranks, two parts each."""
    torch.set_default_dtype(torch.float64)
    model, _ = pair()
    found = {"together": numbers(fitted(model, guides.Point(model), batch_size=None, accumulate=2))}
    found["alone"] = numbers(fitted(model, guides.Point(model), batch_size=None, distributed=False))
    torch.set_default_dtype(torch.float32)
    return found


class Keeping(torch.optim.SGD):
    """SGD that keeps the gradients."""

    kept: ClassVar[list[list[float]]] = []

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        grads = [p.grad.flatten() for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.kept.append(torch.cat(grads).tolist())
        return super().step(closure)


def gradients() -> dict[str, Any]:
    """Gradients of a linear regression at one place, by all ranks and by one process."""
    torch.set_default_dtype(torch.float64)
    x, _ = data(12)
    y = x @ torch.tensor([[1.0], [-2.0]])
    found: dict[str, Any] = {"x": x.tolist(), "y": y.tolist()}
    for name, distributed in (("together", None), ("alone", False)):
        torch.manual_seed(2)
        net = nn.Linear(2, 1, bias=False)
        model = models.from_module(net, prior=priors.Gaussian(0.8), likelihood=likelihoods.Gaussian(2.0))
        guide = guides.MeanField(model, init_scale=0.4)
        Keeping.kept.clear()
        own = {"own": (x, y), "batch_size": None, "steps": 150, "lr": 1e-15}
        fit = fitted(model, guide, optimizer=Keeping, distributed=distributed, **own)
        found[name] = list(Keeping.kept)
        found["names"] = [name for name, _ in guide.named_parameters()]
        found["loc"] = next(iter(fit.guide.mean().values())).flatten().tolist()
        found["nll"] = fit.history[:, 0].tolist()
    torch.set_default_dtype(torch.float32)
    return found


class Numbered(nn.Module):
    """A linear network whose first input is the number of the row; it keeps those that it was called with."""

    seen: ClassVar[list[list[float]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x[:, 0].detach().tolist())
        return self.linear(x)  # type: ignore[no-any-return]


def numbered(net: nn.Module) -> tuple[Any, Any, tuple[Tensor, Tensor]]:
    x, y = data()
    x[:, 0] = torch.arange(ROWS)
    model = models.from_module(net, prior=priors.Gaussian(0.5), likelihood=likelihoods.Gaussian(2.0))
    return model, guides.MeanField(model), (x, y)


def rows() -> dict[str, Any]:
    """The rows that a rank is called with in three epochs of four steps; the last minibatch of an epoch has one row."""
    model, guide, own = numbered(Numbered())
    Numbered.seen.clear()
    fitted(model, guide, own, steps=12, engine="pyro", lr=1e-6)
    return {"rows": Numbered.seen[-12:]}


# errors


class Breaks(nn.Module):
    """NaN, or an exception, at row 7."""

    saw: ClassVar[list[int]] = []

    def __init__(self, by: str) -> None:
        super().__init__()
        self.linear, self.by = nn.Linear(2, 1), by

    def forward(self, x: Tensor) -> Tensor:
        here = x[:, :1] == 7
        self.saw += [len(self.saw)] * bool(here.any())
        if self.by == "exception" and bool(here.any()):
            raise ArithmeticError("row 7 was seen")
        factor = torch.where(here, torch.nan, 1.0) if self.by == "NaN" else 1.0
        return self.linear(x) * factor  # type: ignore[no-any-return]


def broken(by: str, **settings: Any) -> dict[str, Any]:
    model, guide, own = numbered(Breaks(by))
    Breaks.saw.clear()
    return refused(lambda: fitted(model, guide, own, engine="pyro", **settings)) | {"saw": bool(Breaks.saw)}


def _seed_of_row_7(places: tuple[int, int]) -> int:
    """A seed with which row 7 is at one of these places of the first epoch."""
    two = ranks.Ranks(0, 2, "gloo", torch.device("cpu"))
    for seed in range(100):
        generator = RankRandom(two, seed).of_rows
        if torch.randperm(ROWS, generator=generator).tolist().index(7) in places:
            return seed
    raise AssertionError("no seed")


def errors() -> dict[str, Any]:
    found = {
        "NaN on rank 0": broken("NaN", batch_size=4, seed=_seed_of_row_7((4, 5)), steps=3),
        "NaN on rank 1": broken("NaN", batch_size=4, seed=_seed_of_row_7((6, 7)), steps=3),
        "before a step": broken("exception", batch_size=None),
        "in a step": broken("exception", batch_size=4, seed=1),
    }

    def after_epoch(fit: Any, epoch: int) -> None:
        if rank() == 0 and epoch == 2:
            raise KeyError("only on rank 0")

    found["after an epoch"] = refused(lambda: fitted(after_epoch=after_epoch, steps=30))
    found["at the end"] = refused(lambda: fitted(after_epoch=after_epoch, steps=8))
    found["still together"] = {"losses": fitted().losses.tolist()}
    return found


def disagreements() -> dict[str, Any]:
    x, y = data()
    second = rank() == 1
    wider = pair(width=4) if second else pair()
    # of one kind, with another scale of the prior
    torch.manual_seed(1)
    prior = priors.Gaussian(0.7 if second else 0.5)
    other = models.MLP([2, 3, 1], prior=prior, likelihood=likelihoods.Gaussian(2.0))
    return {
        "data": refused(lambda: fitted(own=(x + 0.5 * second, y))),
        "seed": refused(lambda: fitted(seed=int(second))),
        "steps": refused(lambda: fitted(steps=9 + second)),
        "model": refused(lambda: fitted(*wider)),
        "prior": refused(lambda: fitted(other, guides.MeanField(other))),
        "batch": refused(lambda: fitted(batch_size=1)),
    }


def starts() -> dict[str, Any]:
    """Ranks whose initial weights differ, with Adam; and what the log says."""
    with logged() as lines:
        fit = fitted(*pair(start=rank()), optimizer=torch.optim.Adam)
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        fitted(progress=True)
    return {"numbers": numbers(fit), "log": lines, "bar": shown.getvalue(), "ranks": fit.settings["ranks"]}


# files


def checkpoints() -> dict[str, Any]:
    folder = Path(sys.argv[1])
    own = {"optimizer": torch.optim.Adam}
    file = folder / f"state{dist.get_world_size()}-{rank()}.safetensors"
    whole = fitted(steps=12, **own)
    fitted(steps=7, checkpoint=pyrodrop.Checkpoint(file, every=5), **own)
    with logged() as lines:
        again = fitted(steps=12, checkpoint=pyrodrop.Checkpoint(file, every=5), **own)
    return {"whole": numbers(whole), "again": numbers(again), "log": lines, "wrote": file.exists()}


def other_number() -> dict[str, Any]:
    """Checkpoints of one and of three processes, continued by two."""
    folder = Path(sys.argv[1])
    model, guide, numbered_data = numbered(Numbered())
    more = {"engine": "pyro", "lr": 1e-6, "checkpoint": folder / "rows.safetensors"}
    fitted(model, guide, numbered_data, steps=2, distributed=False, **more)  # half an epoch by one process
    Numbered.seen.clear()
    with logged() as lines:
        fitted(model, guide, numbered_data, steps=4, **more)
    found = {"rows": Numbered.seen[-2:], "log": lines}
    with logged() as lines:
        fit = fitted(steps=20, checkpoint=folder / "state3-0.safetensors", optimizer=torch.optim.Adam)
    found |= {"numbers": numbers(fit), "log of three": lines}
    one = pyrodrop.Training(*pair(), data(), distributed=False, batch_size=3, engine="pyro")
    one.advance(2)
    together = pyrodrop.Training(*pair(), data(), batch_size=3, engine="pyro")
    together.load_state(one.state())
    return found | {"random": ranks.digest([together.state()["random.cpu"]])}


def unwritable() -> dict[str, Any]:
    file = Path(sys.argv[1]) / "folder.safetensors" / "file.safetensors"
    return refused(lambda: fitted(checkpoint=Path("/proc/none/file.safetensors") if rank() == 0 else file))


# other ways to train


def step_by_step() -> dict[str, Any]:
    """`Training` on ranks; rank 0 alone looks at it in between. Each continues from its own state, or from rank 0's."""

    def begun() -> pyrodrop.Training:
        own = {"batch_size": 3, "lr": 1e-3, "optimizer": torch.optim.SGD, "engine": "pyro"}
        return pyrodrop.Training(*pair(), data(), **own)

    training = begun()
    training.advance(4)
    if rank() == 0:
        training.fit.elbo(3)
        training.state()
    state = training.state()
    training.advance(5)
    again = begun()
    again.load_state(state)
    again.advance(5)
    continued = numbers(again.fit)
    first = ranks.join(None, torch.device("cpu")).of_first(state)
    with logged() as lines:
        again.load_state(first)
    again.advance(5)
    older = {**state, "history": state["history"][:3]} if rank() == 1 else state
    return {
        "fit": numbers(fitted(steps=9)),
        "steps": numbers(training.fit),
        "again": continued,
        "of rank 0": numbers(again.fit),
        "log": lines,
        "older": refused(lambda: again.load_state(older)),
    }


def autoguides() -> dict[str, Any]:
    from pyro.infer.autoguide import AutoDelta

    torch.set_default_dtype(torch.float64)
    found = {}
    for name, distributed in (("together", None), ("alone", False)):
        model, _ = pair()
        found[name] = numbers(fitted(model, AutoDelta(model), batch_size=None, distributed=distributed))
    torch.set_default_dtype(torch.float32)
    return found


def batch_norm() -> dict[str, Any]:
    """One step on all rows: running means of a shard of a rank, before and after averaging."""
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    model = models.from_module(net, prior=priors.Gaussian(0.5), likelihood=likelihoods.Gaussian(2.0))
    guide = guides.Point(model)
    fit = fitted(model, guide, steps=1, batch_size=None, lr=1e-12)
    x, _ = data()
    own = x.chunk(dist.get_world_size())[rank()]
    layer = fit.model.network[1]
    return {
        "mean": layer.running_mean.tolist(),
        "batches": int(layer.num_batches_tracked),
        "own": (0.1 * net[0](own).mean(0)).tolist(),
        "numbers": numbers(fit),
    }


def on_gpus() -> dict[str, Any]:
    """One process per GPU: its gradients by nccl."""
    gpu = torch.device("cuda", rank())
    model, _ = pair()
    own = {"own": tuple(value.to(gpu) for value in data()), "device": gpu, "batch_size": None}
    together = fitted(model, guides.Point(model), **own)
    found = {
        "together": numbers(together),
        "alone": numbers(fitted(model, guides.Point(model), **own, distributed=False)),
    }
    return {**found, "backend": ranks.join(None, gpu).backend}


def alone() -> dict[str, Any]:
    """Different trainings on the ranks, which do not wait for each other."""
    return {"numbers": numbers(fitted(distributed=False, seed=rank(), steps=3 + 4 * rank()))}


class Items(torch.utils.data.Dataset[Any]):
    """The rows of `data`, by their numbers."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = data()
        return x[row], y[row]


def reading() -> dict[str, Any]:
    """Training on rows that are read, and on tensors; and on a loader."""
    batches = [data()]
    loader = refused(lambda: fitted(own=batches, num_data=ROWS, batch_size=None))
    return {"read": numbers(fitted(own=Items())), "tensors": numbers(fitted()), "loader": loader["text"]}


def mapped() -> dict[str, Any]:
    """Training on x of 192 MB in a file: the largest increase of the memory that is not the file's."""
    file, count = Path(sys.argv[1]) / f"x-{rank()}.bin", 48 * 2**20
    with file.open("wb") as out:
        out.truncate(4 * count)  # zeros, which take no place on the disk
    many = count // 1024
    kinds = {
        "torch": torch.from_file(str(file), shared=False, size=count).reshape(many, 1024),
        "numpy": np.memmap(file, dtype=np.float32, mode="r", shape=(many, 1024)),
    }
    y = torch.randn(many, 1, generator=torch.Generator().manual_seed(1))
    found = {}
    for name, x in kinds.items():
        net = nn.Linear(1024, 1)
        model = models.from_module(net, prior=priors.Gaussian(0.5), likelihood=likelihoods.Gaussian(2.0))
        with peak() as most:
            fitted(model, guides.MeanField(model), (x, y), steps=3, batch_size=64, lr=1e-9, engine="pyro")
        found[name] = most[0]
    file.unlink()
    return found


@contextlib.contextmanager
def peak() -> Any:
    """The largest increase of anonymous memory within the block, in MB."""
    import threading

    def now() -> float:
        text = Path("/proc/self/status").read_text()
        return int(text.split("RssAnon:")[1].split()[0]) / 1024

    most, start, done = [0.0], now(), threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], now() - start)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def evaluated() -> dict[str, Any]:
    """Estimates and predictions that are shared, and those of one process."""
    torch.set_default_dtype(torch.float64)
    fit, (x, _) = fitted(steps=3), data(7)
    found: dict[str, Any] = {}
    for name, own in {"shared": {"distributed": True}, "alone": {}}.items():
        elbo, objective = fit.elbo(5, seed=2, **own), fit.objective(1, **own)
        draws, moments = fit.predict(x, 6, **own), fit.predict(x, 6, keep="moments", **own)
        one = pyrodrop.predict(fit, x[:1], 4, **own)
        found[name] = {
            "elbo": [elbo.value, elbo.se, elbo.nll, elbo.kl, objective.value],
            "draws": draws.f.flatten().tolist(),
            "mean": draws.mean.flatten().tolist(),
            "moments": torch.cat([moments.mean, moments.variance, moments.spread]).flatten().tolist(),
            "one point": one.f.flatten().tolist(),
        }
    if rank() == 0:
        fit.elbo(2)  # alone, as by default
        fit.predict(x, 2)
    found["refused"] = {
        "seed": refused(lambda: fit.elbo(5, seed=rank(), distributed=True)),
        "data": refused(lambda: fit.elbo(5, data(7 + rank()), distributed=True)),
        "x": refused(lambda: fit.predict(x + rank(), 5, distributed=True)),
        "other fits": refused(lambda: fitted(steps=2 + rank(), distributed=False).predict(x, 5, distributed=True)),
        "per point": refused(lambda: fit.predict(x, 5, joint=False, distributed=True)),
    }
    torch.set_default_dtype(torch.float32)
    return found


def lost() -> dict[str, Any]:
    """The last rank is killed in the middle of a training."""

    def after_epoch(fit: Any, epoch: int) -> None:
        if rank() == dist.get_world_size() - 1:
            os._exit(0)

    return refused(lambda: fitted(after_epoch=after_epoch, steps=30))


def main() -> None:
    torch.set_num_threads(1)
    joining.WAIT = members.WAIT = timedelta(seconds=90)
    importlib.import_module("torch._dynamo")  # which every first step imports: once, before the fork
    folder = Path(sys.argv[1])
    children = []
    names = [word.split(":") for word in sys.argv[2:]]
    for size in sorted({int(size) for _, size in names}, reverse=True):
        own = [name for name, its in names if int(its) == size]
        children = [child for number in range(size) if (child := os.fork()) or _rank(folder, own, number, size)]
        for child in children:
            os.waitpid(child, 0)


def _rank(folder: Path, names: list[str], number: int, size: int) -> bool:
    """The work of a rank; does not return."""
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store-{size}", rank=number, world_size=size)
        for name in names:
            state, start = torch.get_rng_state(), time.process_time()
            try:
                result = globals()[name]()
            except Exception as error:
                result = {"error": f"{type(error).__name__}: {error}"}
            if number == 0:
                print(f"{name} on {size} ranks: {time.process_time() - start:.1f} s of rank 0", flush=True)
            torch.set_rng_state(state)
            torch.set_default_dtype(torch.float32)
            (folder / f"{name}-{size}-{number}.json").write_text(json.dumps(result))
    except BaseException as error:
        print(f"rank {number} of {size}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
