"""Cost of a training step relative to plain PyTorch: eager `nn.Dropout` in the same network with default Adam.

``python -m pyrodrop.analysis.benchmarks.steps [--rounds N] [--out FILE] [--no-peers]``: one thread, process time,
interleaved medians; every variant must first change each of its parameters. Installed peers take part (`peers.txt`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import jsonargparse
import torch

from pyrodrop.analysis.benchmarks.networks import Network, networks, ours, plain
from pyrodrop.analysis.benchmarks.peers import Peer, installed, releases
from pyrodrop.analysis.benchmarks.timing import interleaved, machine, moves_all, report, write
from pyrodrop.engines import Name

OURS: dict[str, tuple[str, Name]] = {
    "ours, Bernoulli, compiled": ("Bernoulli", "compiled"),
    "ours, variational B, compiled": ("variational B", "compiled"),
    "ours, Bernoulli, traced": ("Bernoulli", "traced"),
    "ours, variational B, traced": ("variational B", "traced"),
    "ours, Bernoulli, pyro": ("Bernoulli", "pyro"),
    "ours, variational B, pyro": ("variational B", "pyro"),
}


def main(rounds: int = 15, out: Path | None = None, peers: bool = True) -> None:
    """Time every variant.

    Args:
        rounds: timings of every variant.
        out: JSON file for the results.
        peers: whether other libraries that are installed take part.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(machine())
    others = installed() if peers else []
    ratios: dict[str, dict[str, float]] = {}
    for name, network in networks().items():
        for variant, value in compared(network, OURS, others, rounds).items():
            ratios.setdefault(variant, {})[name] = value
    report("one step, ratio to plain PyTorch", ratios)
    write(out, "steps", {"rounds": rounds, "peers": releases(others), "ratios": ratios})


def compared(
    network: Network, own: Mapping[str, tuple[str, Name]], others: Sequence[Peer], rounds: int
) -> dict[str, float]:
    """Milliseconds of a plain step, and the cost of every other variant's step relative to it."""
    steps = {"plain": plain(network), "plain PyTorch, fused Adam": plain(network, fused=True)}
    steps |= {variant: ours(network, *how) for variant, how in own.items()}
    steps |= {peer.name: peer.steps(network) for peer in others}
    for variant, (call, parameters) in steps.items():
        moves_all(call, parameters, f"{network.name}, {variant}")
    seconds = interleaved({variant: call for variant, (call, _) in steps.items()}, rounds, 3, time.process_time)
    plain_seconds = seconds.pop("plain")
    return {"plain PyTorch, ms": 1e3 * plain_seconds / network.steps} | {
        variant: value / plain_seconds for variant, value in seconds.items()
    }


def command(words: Sequence[str] | None = None) -> None:
    """The command line of `main`."""
    parser = jsonargparse.ArgumentParser(description=__doc__)
    parser.add_function_arguments(main, skip={"peers"})
    parser.add_argument(
        "--peers",
        action=jsonargparse.ActionYesNo(no_prefix="no-"),
        default=True,
        help="whether other libraries that are installed take part",
    )
    main(**vars(parser.parse_args(words)))


if __name__ == "__main__":
    command()
