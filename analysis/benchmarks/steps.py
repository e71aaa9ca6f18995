"""Cost of a training step relative to plain PyTorch: eager `nn.Dropout` in the same network with default Adam.

``python -m pyrodrop.analysis.benchmarks.steps [--rounds N] [--names '[LSTM]'] [--out FILE] [--device cuda]``: one thread,
process time (on a GPU wall time), interleaved medians; every variant must first change each of its parameters. Installed
peers take part on a CPU (`analysis/peers`), but for the LSTM, of which they have no layer. Compiling that takes minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyrodrop.analysis.benchmarks.timing import begin, clock_of, command, interleaved, moves_all, report, write
from pyrodrop.analysis.peers.networks import TABLE, Network, networks, ours, plain
from pyrodrop.analysis.peers.training import Trainer, installed, releases
from pyrodrop.constraints import EngineName as Name

ENGINES: tuple[Name, ...] = ("compiled", "traced", "pyro")
OURS: dict[str, tuple[str, Name]] = {
    f"ours, {posterior}, {engine}": (posterior, engine)
    for engine in ENGINES
    for posterior in ("Bernoulli", "variational B")
}


def main(rounds: int = 15, names: Sequence[str] = TABLE, out: Path | None = None, device: str = "cpu") -> None:
    """Time every variant.

    Args:
        rounds: timings of every variant.
        names: of the networks, of MLP, LeNet, 13-50-1 and LSTM.
        out: JSON file for the results.
        device: cpu, cuda, cuda:1 ...
    """
    begin(device)
    others = installed() if device == "cpu" else []
    ratios: dict[str, dict[str, float]] = {}
    every = networks(device)
    for name in names:
        for variant, value in compared(every[name], OURS, others if name in TABLE else [], rounds).items():
            ratios.setdefault(variant, {})[name] = value
    report("one step, ratio to plain PyTorch", ratios)
    write(out, "steps", {"rounds": rounds, "peers": releases(others), "ratios": ratios}, device)


def compared(
    network: Network, engines: Mapping[str, tuple[str, Name]], others: Sequence[Trainer], rounds: int
) -> dict[str, float]:
    """Milliseconds of a plain step, and the cost of every other variant's step relative to it."""
    steps = {"plain": plain(network), "plain PyTorch, fused Adam": plain(network, fused=True)}
    steps |= {variant: ours(network, *how) for variant, how in engines.items()}
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
    command(main)
