"""Cost of a training step relative to plain PyTorch: eager `nn.Dropout` in the same network with default Adam.

``python -m pyrodrop.analysis.benchmarks.steps [--rounds N] [--out FILE] [--no-peers] [--device cuda]``: one thread, process
time (on a GPU wall time), interleaved medians; every variant must first change each of its parameters. Installed peers take
part on a CPU (`peers.txt`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import cyclopts
import torch

from pyrodrop.analysis.benchmarks.networks import Network, networks, ours, plain
from pyrodrop.analysis.benchmarks.peers import Peer, installed, releases
from pyrodrop.analysis.benchmarks.timing import clock_of, interleaved, machine, moves_all, report, write
from pyrodrop.engines import Name

OURS: dict[str, tuple[str, Name]] = {
    "ours, Bernoulli, compiled": ("Bernoulli", "compiled"),
    "ours, variational B, compiled": ("variational B", "compiled"),
    "ours, Bernoulli, traced": ("Bernoulli", "traced"),
    "ours, variational B, traced": ("variational B", "traced"),
    "ours, Bernoulli, pyro": ("Bernoulli", "pyro"),
    "ours, variational B, pyro": ("variational B", "pyro"),
}


def main(rounds: int = 15, out: Path | None = None, peers: bool = True, device: str = "cpu") -> None:
    """Time every variant.

    Args:
        rounds: timings of every variant.
        out: JSON file for the results.
        peers: whether other libraries that are installed take part; they are for a CPU.
        device: cpu, cuda, cuda:1 ...
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine(device))
    others = installed() if peers and device == "cpu" else []
    ratios: dict[str, dict[str, float]] = {}
    for name, network in networks(device).items():
        for variant, value in compared(network, OURS, others, rounds).items():
            ratios.setdefault(variant, {})[name] = value
    report("one step, ratio to plain PyTorch", ratios)
    write(out, "steps", {"rounds": rounds, "peers": releases(others), "ratios": ratios}, device)


def compared(
    network: Network, own: Mapping[str, tuple[str, Name]], others: Sequence[Peer], rounds: int
) -> dict[str, float]:
    """Milliseconds of a plain step, and the cost of every other variant's step relative to it."""
    steps = {"plain": plain(network), "plain PyTorch, fused Adam": plain(network, fused=True)}
    steps |= {variant: ours(network, *how) for variant, how in own.items()}
    steps |= {peer.name: peer.steps(network) for peer in others}
    for variant, (call, parameters) in steps.items():
        moves_all(call, parameters, f"{network.name}, {variant}")
    seconds = interleaved(
        {variant: call for variant, (call, _) in steps.items()}, rounds, 3, clock_of(network.x.device)
    )
    plain_seconds = seconds.pop("plain")
    return {"plain PyTorch, ms": 1e3 * plain_seconds / network.steps} | {
        variant: value / plain_seconds for variant, value in seconds.items()
    }


if __name__ == "__main__":
    cyclopts.run(main)
