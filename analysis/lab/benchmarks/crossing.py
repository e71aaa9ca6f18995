"""Network-steps per second by the number of networks that are trained at once: when a GPU becomes faster than a CPU.

``python -m pyrodrop.analysis.lab.benchmarks.crossing [--names '[1, 100]'] [--device cuda] [FILE]``: networks 13-50-1
with Bernoulli masks and Adam, on the same data, each with its own weights, masks and minibatches of 128 rows. Ours are
replicates with compiled steps; beside them `torch.func.vmap` of the same network under `torch.compile` with fused Adam, and
`jax.vmap` of a jitted loop, if JAX is installed. One thread, process time (on a GPU wall time), interleaved medians; the
time before the first step is measured separately. ``seconds`` are those of a step of one network.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from pyrodrop.analysis.lab.benchmarks.replicates import ROWS, stacked
from pyrodrop.analysis.lab.benchmarks.timing import Bench, command
from pyrodrop.analysis.lab.peers.networks import BATCH, RATE, Network, Parameters, networks

COUNTS = (1, 10, 100, 1_000, 10_000, 100_000)
STEPS = 20  # steps per call
NETWORK = "13-50-1"

Steps = tuple[Callable[[], object], Parameters]


def variants(count: int, device: str) -> dict[str, Callable[[], Steps]]:
    """Steps of so many networks at once."""
    made = {"ours": ours, "torch.func, compiled": by_torch}
    made |= {"JAX, jitted": by_jax} if importlib.util.find_spec("jax") else {}
    return {name: functools.partial(make, networks(device)[NETWORK], count) for name, make in made.items()}


def ours(network: Network, count: int) -> Steps:
    """Replicates of one model and guide."""
    loop = stacked(network, count, own=False)
    return (lambda: loop.advance(loop.done + STEPS)), list(loop.parameters.values())


def by_torch(network: Network, count: int) -> Steps:
    """Stacked parameters, their gradient by `vmap`, compiled, and fused Adam."""
    x, y = network.x[:ROWS], network.y[:ROWS]
    net = network.build(lambda: nn.Dropout(RATE)).to(x.device)
    stack = {
        name: one.detach() + 0.01 * torch.randn(count, *one.shape, device=x.device)
        for name, one in net.named_parameters()
    }
    optimizer = torch.optim.Adam(stack.values(), fused=True)

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return network.loss(functional_call(net, weights, (x,)), y)  # type: ignore[no-any-return]

    gradient = torch.compile(vmap(grad(loss), randomness="different"))

    def steps() -> None:
        for _ in range(STEPS):
            rows = torch.randint(len(x), (count, BATCH), device=x.device)
            for name, value in gradient(stack, x[rows], y[rows]).items():
                stack[name].grad = value
            optimizer.step()

    return steps, list(stack.values())


def by_jax(network: Network, count: int) -> Steps:
    """One jitted loop of steps, mapped over the networks."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    x, y = (jnp.asarray(tensor[:ROWS].cpu().numpy()) for tensor in (network.x, network.y))
    net = network.layers(nn.Identity)
    first = [jnp.asarray(value.detach().numpy()) for value in net.parameters()]
    keys = jax.random.split(jax.random.key(0), len(first))
    weights = [w + 0.01 * jax.random.normal(k, (count, *w.shape)) for w, k in zip(first, keys, strict=True)]
    state = (weights, [jnp.zeros_like(w) for w in weights], [jnp.zeros_like(w) for w in weights], jnp.zeros(()))

    def loss(weights: Sequence[Any], x: Any, y: Any, key: Any) -> Any:
        h = x
        for layer in range(0, len(weights), 2):
            key, of_mask = jax.random.split(key)
            kept = jnp.where(jax.random.bernoulli(of_mask, 1 - RATE, h.shape), h / (1 - RATE), 0.0)
            h = kept @ weights[layer].T + weights[layer + 1]
            h = jax.nn.relu(h) if layer + 2 < len(weights) else h
        return ((h - y) ** 2).mean()

    def gradient(weights: Sequence[Any], key: Any) -> Any:
        of_rows, of_masks = jax.random.split(key)
        rows = jax.random.randint(of_rows, (BATCH,), 0, len(x))
        return jax.grad(loss)(weights, x[rows], y[rows], of_masks)

    def step(_: int, carry: Any) -> Any:
        (weights, m, v, t), key = carry
        key, of_step = jax.random.split(key)
        g = jax.vmap(gradient)(weights, jax.random.split(of_step, count))
        t = t + 1
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True)]
        v = [0.999 * a + 0.001 * b**2 for a, b in zip(v, g, strict=True)]
        weights = [
            w - 1e-3 * (a / (1 - 0.9**t)) / (jnp.sqrt(b / (1 - 0.999**t)) + 1e-8)
            for w, a, b in zip(weights, m, v, strict=True)
        ]
        return (weights, m, v, t), key

    advance = jax.jit(lambda state, key: jax.lax.fori_loop(0, STEPS, step, (state, key)))
    held: dict[str, Any] = {"state": state, "key": jax.random.key(1)}

    def steps() -> None:
        held["state"], held["key"] = jax.block_until_ready(advance(held["state"], held["key"]))

    return steps, lambda: [torch.from_numpy(w.__array__().copy()) for w in held["state"][0]]


BENCH = Bench(
    "crossing", {f"{count:,}": count for count in COUNTS}, variants, rounds=3, warmup=1, failures=True,
    per=lambda count, *_: 1 / (count * STEPS),
)  # fmt: skip

if __name__ == "__main__":
    command(BENCH.run)
