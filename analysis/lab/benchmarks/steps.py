"""Cost of a training step relative to plain PyTorch: eager `nn.Dropout` in the same network with default Adam.

``python -m pyrodrop.analysis.lab.benchmarks.steps [--rounds N] [--names '[LSTM]'] [--out FILE] [--device cuda]``: one
thread, process time (on a GPU wall time), interleaved medians; every variant must first change each of its parameters.
Installed peers are included (`analysis/lab/peers`), except for the LSTM, for which they have no layer. Compilation takes
minutes. On a GPU the peers are `torch.compile` and NumPyro, and the results have the error of a variant that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyrodrop.analysis.lab.benchmarks.timing import Bench, Measured, command, ratios, report
from pyrodrop.analysis.lab.peers.networks import BATCH, TABLE, Network, Steps, networks, ours, plain
from pyrodrop.analysis.lab.peers.training import Trainer, installed, releases
from pyrodrop.constraints import EngineName as Name

ENGINES: tuple[Name, ...] = ("compiled", "traced", "pyro")
OURS: dict[str, tuple[str, Name]] = {
    f"ours, {posterior}, {engine}": (posterior, engine)
    for engine in ENGINES
    for posterior in ("Bernoulli", "variational B")
}


ON_A_GPU = {name: how for name, how in OURS.items() if how[1] != "pyro" and how != ("variational B", "traced")}
MODES = {"plain PyTorch, torch.compile": "default", "plain PyTorch, reduce-overhead": "reduce-overhead"}


def main(
    rounds: int = 15,
    names: Sequence[str] = TABLE,
    sizes: Sequence[int] = (BATCH,),
    out: Path | None = None,
    device: str = "cpu",
) -> None:
    """Time every variant.

    Args:
        rounds: timings of every variant.
        names: networks to time, of MLP, LeNet, 13-50-1 and LSTM.
        sizes: rows of a minibatch.
        out: JSON file for the results.
        device: cpu, cuda, cuda:1 ...
    """
    others = [peer for peer in installed() if device == "cpu" or peer.package == "numpyro"]
    every, rows = networks(device), {}
    for size in sizes:
        for name in names:
            network = every[name]
            if size != BATCH:
                x, y = (t.repeat(8 * size // len(t) + 1, *(1,) * (t.dim() - 1)) for t in (network.x, network.y))
                network = replace(network, size=size, x=x, y=y)
            rows[name if size == BATCH else f"{name}, {size} rows"] = network

    def show(measured: Measured) -> dict[str, Any]:
        table: dict[str, dict[str, float]] = {}
        for title, cells in measured.items():
            for variant, value in relative(rows[title], cells).items():
                table.setdefault(variant, {})[title] = value
        report("one step, ratio to plain PyTorch", table)
        before = {t: {v: c.get("error", c.get("before, s")) for v, c in cells.items()} for t, cells in measured.items()}
        return {"peers": releases(others), "seconds before": before, "ratios": table}

    replace(bench(rows, others, device), show=show).run(rounds, out, device)


def bench(
    rows: Mapping[str, Network],
    others: Sequence[Trainer],
    device: str = "cpu",
    engines: Mapping[str, tuple[str, Name]] = OURS,
) -> Bench[Network]:
    """The variants of a step; on a GPU the peers are others, and a variant may fail."""
    on_gpu = device != "cpu"

    def variants(network: Network, _: str) -> dict[str, Callable[[], Steps]]:
        makers: dict[str, Callable[[], Steps]] = {
            "plain": partial(plain, network),
            "plain PyTorch, fused Adam": partial(plain, network, fused=True),
        }
        modes = MODES if on_gpu else {}
        makers |= {name: partial(plain, network, fused=True, compiled=mode) for name, mode in modes.items()}
        makers |= {name: partial(ours, network, *how) for name, how in (ON_A_GPU if on_gpu else engines).items()}
        peers = [] if network.name == "LSTM" else others
        return makers | {peer.name: partial(peer.steps, network) for peer in peers}

    return Bench("steps", rows, dict, variants, failures=on_gpu)


def relative(network: Network, cells: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Milliseconds of a plain step, and the cost of every other variant's step relative to it."""
    others = {name: value for name, value in ratios(cells).items() if name != "plain"}
    return {"plain PyTorch, ms": 1e3 * cells["plain"]["seconds"] / network.steps} | others


if __name__ == "__main__":
    command(main)
