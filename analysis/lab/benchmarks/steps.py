"""Cost of a training step relative to plain PyTorch: eager `nn.Dropout` in the same network with default Adam.

``python -m pyrodrop.analysis.lab.benchmarks.steps [--rounds N] [--names '[LeNet]'] [--device cuda] [FILE]``: one thread,
process time (on a GPU wall time), interleaved medians; every variant must first change each of its parameters. Installed
peers are included (`analysis/lab/peers`). Compilation takes minutes. On a
GPU the peers are `torch.compile` and NumPyro, and the results have the error of a variant that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pyrodrop.analysis.lab.benchmarks.timing import Bench, command
from pyrodrop.analysis.lab.peers.networks import BATCH, TABLE, Network, Steps, networks, ours, plain
from pyrodrop.analysis.lab.peers.training import Trainer, installed
from pyrodrop.checks import EngineName as Name

ENGINES: tuple[Name, ...] = ("compiled", "traced", "pyro")
OURS: dict[str, tuple[str, Name]] = {
    f"ours, {posterior}, {engine}": (posterior, engine)
    for engine in ENGINES
    for posterior in ("Bernoulli", "variational B")
}
ON_A_GPU = {name: how for name, how in OURS.items() if how[1] != "pyro" and how != ("variational B", "traced")}
MODES = {"plain PyTorch, torch.compile": "default", "plain PyTorch, reduce-overhead": "reduce-overhead"}
LARGE = 1024  # rows of the larger minibatches


def sized(name: str, size: int, device: str) -> Network:
    """A network with minibatches of this size, from eight times as many rows."""
    network = networks(device)[name]
    if size == BATCH:
        return network
    x, y = (t.repeat(8 * size // len(t) + 1, *(1,) * (t.dim() - 1)) for t in (network.x, network.y))
    return replace(network, size=size, x=x, y=y)


def variants(problem: tuple[str, int], device: str) -> dict[str, Callable[[], Steps]]:
    """The variants of a step of a network with minibatches of a size."""
    on_gpu = device != "cpu"
    others = [p for p in installed() if not on_gpu or p.package == "numpyro"]
    return makers(sized(*problem, device), others, ON_A_GPU if on_gpu else OURS, MODES if on_gpu else {})


def makers(
    network: Network, others: Sequence[Trainer], how: dict[str, tuple[str, Name]], modes: dict[str, str]
) -> dict[str, Callable[[], Steps]]:
    """The variants by name: plain PyTorch, compiled in these modes, ours, and other packages."""
    return {
        "plain PyTorch": partial(plain, network),
        "plain PyTorch, fused Adam": partial(plain, network, fused=True),
        **{name: partial(plain, network, fused=True, compiled=mode) for name, mode in modes.items()},
        **{name: partial(ours, network, *each) for name, each in how.items()},
        **{peer.name: partial(peer.steps, network) for peer in others},
    }


ROWS = {name: (name, BATCH) for name in TABLE} | {f"{name}, {LARGE} rows": (name, LARGE) for name in TABLE}
BENCH = Bench(
    "steps", ROWS, variants, rounds=15, usual=TABLE, failures=True,
    per=lambda row, _, device: 1 / networks(device)[row[0]].steps,
)  # fmt: skip

if __name__ == "__main__":
    command(BENCH.run)
