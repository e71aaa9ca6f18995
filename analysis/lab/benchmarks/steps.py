"""Cost of a training step relative to plain PyTorch: eager `nn.Dropout` in the same network with default Adam.

``python -m pyrodrop.analysis.lab.benchmarks.steps [--rounds N] [--names '[LeNet]'] [--device cuda] [FILE]``: one thread,
process time (on a GPU wall time), interleaved medians; every variant must first change each of its parameters. NumPyro is
included if it is installed (`analysis/lab/peers`). Compilation takes minutes. On a GPU `torch.compile` is, too, and results
have the error of a variant that fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

from pyrodrop.analysis.lab.benchmarks.timing import Bench, command
from pyrodrop.analysis.lab.peers import numpyro_training
from pyrodrop.analysis.lab.peers.networks import BATCH, Network, Steps, networks, ours, plain
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
    network, on_gpu = sized(*problem, device), device != "cpu"
    numpyro = {"NumPyro, dropout": numpyro_training.dropout, "NumPyro, mean field": numpyro_training.mean_field}
    return {
        "plain PyTorch": partial(plain, network),
        "plain PyTorch, fused Adam": partial(plain, network, fused=True),
        **{name: partial(plain, network, fused=True, compiled=m) for name, m in (MODES if on_gpu else {}).items()},
        **{name: partial(ours, network, *how) for name, how in (ON_A_GPU if on_gpu else OURS).items()},
        **{name: partial(steps, network) for name, steps in numpyro.items() if find_spec("numpyro")},
    }


NAMES = ("MLP", "LeNet", "13-50-1")
ROWS = {name: (name, BATCH) for name in NAMES} | {f"{name}, {LARGE} rows": (name, LARGE) for name in NAMES}
BENCH = Bench(
    "steps", ROWS, variants, rounds=15, usual=NAMES, failures=True,
    per=lambda row, _, device: 1 / networks(device)[row[0]].steps,
)  # fmt: skip

if __name__ == "__main__":
    command(BENCH.run)
