"""Memory of training beside other libraries: the largest resident memory of a process, and its growth with more steps.

``python -m pyrodrop.analysis.lab.benchmarks.memory [FILE]``: every variant in a separate process with one
thread, on a CPU. *Peak* is in MiB beyond the resident memory after the imports, so it includes the network, its optimiser,
the data and compilation; *growth* is what the second half of the steps adds. Installed peers are included
(`analysis/lab/peers`).
"""

from __future__ import annotations

import resource
import warnings
from importlib import import_module
from typing import Any

import psutil
import torch

from pyrodrop.analysis.lab.benchmarks.timing import Bench, command, elsewhere, moves_all
from pyrodrop.analysis.lab.peers.networks import TABLE, Network, Steps, networks, ours, plain
from pyrodrop.analysis.lab.peers.training import TRAINERS, installed
from pyrodrop.checks import EngineName as Name

STEPS = 1000
PLAIN = "plain PyTorch, nn.Dropout"
OURS: dict[str, tuple[str, Name]] = {
    "ours, Bernoulli, compiled": ("Bernoulli", "compiled"),
    "ours, mean field, compiled": ("mean field", "compiled"),
    "ours, mean field, pyro": ("mean field", "pyro"),
}


def rows_of(name: str, *_: Any) -> dict[str, dict[str, float]]:
    """The memory of every variant for a network."""
    variants = [PLAIN, *OURS, *(peer.name for peer in installed())]
    return {variant: elsewhere(measured, name, variant) for variant in variants}


def measured(name: str, variant: str) -> dict[str, float]:
    """Peak and growth of the resident memory of this process while it trains, in MiB."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    peer = next((peer for peer in TRAINERS if peer.name == variant), None)
    if peer is not None:
        import_module(peer.module)
    before = _resident()
    network = networks()[name]
    call, parameters = _steps(variant, network)
    moves_all(call, parameters, f"{name}, {variant}")
    half = -(-STEPS // network.steps // 2)
    for _ in range(half):
        call()
    middle = _resident()
    for _ in range(half):
        call()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"peak": peak - before, "growth": _resident() - middle}


def _steps(variant: str, network: Network) -> Steps:
    if variant == PLAIN:
        return plain(network)
    if variant in OURS:
        return ours(network, *OURS[variant])
    return next(peer for peer in TRAINERS if peer.name == variant).steps(network)


def _resident() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


if __name__ == "__main__":
    command(Bench("memory", {name: name for name in TABLE}, measure=rows_of).run)
