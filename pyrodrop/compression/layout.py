"""The layout of the dense layers of a compressed network; by default the fastest one in a measurement.

    dense     W x + b                   all inputs
    picked    W' x[used] + b            only the inputs that have a nonzero weight
    csr       W x + b, W sparse         compressed sparse rows

Dense products are so fast that a sparse product only pays off if more than about nine in ten weights are 0. Timings are
interleaved and the median of several rounds is used, so that other load on the machine affects all layouts alike.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from pyrodrop.compression.steps import Affine, Picked, Step, network_of
from pyrodrop.compression.units import used_columns

Layout = Literal["fastest", "dense", "picked", "csr"]
_ROUNDS, _SECONDS, _ROWS = 7, 0.02, 1000


def laid_out(steps: Sequence[Step], layout: Layout) -> list[Step]:
    """The same steps with every dense layer in the given layout.

    Args:
        layout: ``dense``, ``picked``, ``csr``, or ``fastest`` for the fastest of the three on 1,000 rows, chosen separately
            per layer.
    """
    done: list[Step] = []
    for step in steps:
        if isinstance(step, Affine) and step.dense and step.weight.shape[1]:
            ways = _ways(step)
            done += ways[_fastest(ways, step) if layout == "fastest" else layout]
        else:
            done.append(step)
    return done


def _ways(layer: Affine) -> dict[str, list[Step]]:
    columns = used_columns(layer).nonzero()[:, 0]
    few = replace(layer, weight=layer.weight[:, columns])
    picked: list[Step] = [few] if len(columns) == layer.weight.shape[1] else [Picked(columns), few]
    return {"dense": [layer], "picked": picked, "csr": [replace(layer, csr=True)]}


def _fastest(ways: Mapping[str, Sequence[Step]], layer: Affine) -> str:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        networks: dict[str, Callable[[Tensor], Tensor]] = {name: network_of(steps) for name, steps in ways.items()}
        x = torch.randn(_ROWS, layer.weight.shape[1], generator=torch.Generator().manual_seed(0))
        x = x.to(layer.weight)
        seconds = latency(networks, x)
    return min(seconds, key=seconds.__getitem__)


def latency(networks: Mapping[str, Callable[[Tensor], Tensor]], x: Tensor) -> dict[str, float]:
    """Seconds per call of each network on x, by name: the median of interleaved rounds of several calls."""
    with torch.no_grad():
        calls = {name: _calls(network, x) for name, network in networks.items()}
        rounds: dict[str, list[float]] = {name: [] for name in networks}
        for _ in range(_ROUNDS):
            for name, network in networks.items():
                rounds[name].append(_seconds(network, x, calls[name]))
    return {name: sorted(times)[_ROUNDS // 2] for name, times in rounds.items()}


def _calls(network: Callable[[Tensor], Tensor], x: Tensor) -> int:
    for _ in range(3):
        network(x)
    return max(1, int(_SECONDS / _seconds(network, x, 1)))


def _seconds(network: Callable[[Tensor], Tensor], x: Tensor, calls: int) -> float:
    _wait(x)
    start = time.perf_counter()
    for _ in range(calls):
        network(x)
    _wait(x)
    return (time.perf_counter() - start) / calls


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def parameter_count(network: nn.Module) -> int:
    """Number of weights and biases that a module stores, including zeros in dense weights."""
    return sum(p.values().numel() if p.layout is torch.sparse_csr else p.numel() for p in network.parameters())
