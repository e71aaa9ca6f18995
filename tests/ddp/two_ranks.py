"""Two processes as torchrun starts them: with its variables, but forked from one that has imported everything.

Each runs the code of the page and cases of its own, and saves parameters, gradients and errors by the name of the case, as
``0.pt`` and ``1.pt`` in a folder.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from pyrodrop import guides, likelihoods, models, priors

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
N, RANKS, LR = 40, 2, 1e-3
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(1, keepdim=True)
MINIBATCHES = (slice(0, 8), slice(8, 16), slice(16, 24))
GUIDES: dict[str, tuple[Callable[[Any], Any], type[Any]]] = {
    "point": (guides.Point, Trace_ELBO),
    "bernoulli": (lambda m: guides.BernoulliDropout(m, 0.3, mask_input=False), Trace_ELBO),
    "variational": (guides.VariationalDropout, TraceMeanField_ELBO),
    "autonormal": (AutoNormal, Trace_ELBO),
    "ensemble": (lambda m: guides.Ensemble(m, guides.MeanField, 2), TraceMeanField_ELBO),
}


def elbo(name: str) -> Any:
    """The loss of a small network, float64, with a learned precision; the same values in every process."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    likelihood = likelihoods.Gaussian(2.0, learned=True)
    model = models.from_module(net.double(), prior=priors.Gaussian(0.8), likelihood=likelihood).double()
    guide, kind = GUIDES[name]
    posterior = guide(model)
    if isinstance(posterior, AutoNormal):
        posterior(X[:2], Y[:2], num_data=N)
    return kind()(model, posterior.double())


def blocks(text: str) -> list[str]:
    """The code of every Python block that is shown and not run with the rest of the page."""
    return re.findall(r"^```\{code-block\} python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def shard(rows: slice, rank: int) -> slice:
    """The rows of a minibatch that a rank evaluates."""
    size = (rows.stop - rows.start) // RANKS
    return slice(rows.start + rank * size, rows.start + (rank + 1) * size)


def parameters(loss: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in loss.parameters()])


def gradients(loss: nn.Module) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in loss.parameters()])


def descend(
    loss: nn.Module, call: Callable[..., Tensor], backward: Callable[[Tensor], Any], rows: Callable[[slice], slice]
) -> None:
    """Steps of SGD, with the same noise on every rank and in one process."""
    optimizer = torch.optim.SGD(loss.parameters(), LR)
    for seed, minibatch in enumerate(MINIBATCHES):
        mine = rows(minibatch)
        optimizer.zero_grad()
        torch.manual_seed(seed)
        backward(call(X[mine], Y[mine], num_data=N))
        optimizer.step()


def first_gradient(call: Any, loss: nn.Module, rank: int, seed: int, num_data: int | None) -> Tensor:
    mine = shard(MINIBATCHES[0], rank)
    torch.manual_seed(seed)
    call(X[mine], Y[mine], **({} if num_data is None else {"num_data": num_data})).backward()
    return gradients(loss)


def main(folder: Path) -> None:
    """Run everything; the code of the page first, which makes the process group."""
    got: dict[str, Any] = {}
    destroy, distributed.destroy_process_group = distributed.destroy_process_group, lambda: None
    with_ddp, local, with_fabric = blocks(PAGE.read_text(encoding="utf-8"))
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(with_ddp + local, f"{PAGE.name}, DDP", "exec"), page)
    rank = distributed.get_rank()
    got["page, DDP"] = parameters(page["loss"])

    fabrics: dict[str, Any] = {"__name__": "page"}
    exec(compile(with_fabric, f"{PAGE.name}, Fabric", "exec"), fabrics)
    got["page, Fabric"] = parameters(fabrics["loss"])
    fabric = fabrics["fabric"]

    for name in GUIDES:
        loss = elbo(name)
        ddp = DistributedDataParallel(loss, find_unused_parameters=name == "ensemble")
        descend(loss, ddp, Tensor.backward, lambda rows: shard(rows, rank))
        got[f"DDP, {name}"] = parameters(loss)
    loss = elbo("variational")
    wrapped: Any = fabric.setup(loss)
    descend(loss, wrapped, fabric.backward, lambda rows: shard(rows, rank))
    got["Fabric, variational"] = parameters(loss)

    loss = elbo("variational")
    local = page["LocalLoss"](loss.model, loss.guide)
    got["local"] = first_gradient(DistributedDataParallel(local), local, rank, 10 + rank, N)
    for way, num_data in (("shard", RANKS * 4), ("none", None)):
        loss = elbo("variational")
        got[f"num_data of the {way}"] = first_gradient(DistributedDataParallel(loss), loss, rank, 0, num_data)
    loss = elbo("variational")
    first_gradient(loss, loss, rank, 0, N)
    for p in loss.parameters():
        distributed.all_reduce(p.grad)  # without division
    got["summed"] = gradients(loss)

    torch.save(got, folder / f"{rank}.pt")
    distributed.barrier()
    destroy()


def start(folder: Path) -> int:
    """Run `main` in two processes; the status of the first that fails, which ends the other, or 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    same = {"WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "GROUP_RANK": 0, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none"} | {n: str(v) for n, v in same.items()}
    running = set()
    for rank in range(RANKS):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if (process := os.fork()) == 0:
            main(folder)
            sys.exit()
        running.add(process)
    while running:
        process, status = os.wait()
        running.remove(process)
        if status:
            for other in running:
                os.kill(other, signal.SIGTERM)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(start(Path(sys.argv[1])))
