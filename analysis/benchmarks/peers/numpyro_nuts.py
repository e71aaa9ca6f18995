"""NumPyro's NUTS on a dense ReLU network with Gaussian priors and Gaussian noise of known precision."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyrodrop.analysis.benchmarks.peers.numpyro import ONE_THREAD


@dataclass(frozen=True)
class Regression:
    """What is sampled.

    Attributes:
        widths: of all layers, input and output included.
        scales: prior standard deviation of the weights of every layer.
        bias_scale: that of all biases.
        precision: of the noise.
        x, y: the data, ``[N, widths[0]]`` and ``[N, 1]``, used as they are.
    """

    widths: Sequence[int]
    scales: Sequence[float]
    bias_scale: float
    precision: float
    x: Any
    y: Any


@dataclass(frozen=True)
class Run:
    """A run of a sampler of a peer.

    Attributes:
        f: functions at further points, ``[chains, draws, points]``.
        steps: leapfrog steps after warming up, over all chains.
        seconds: processor time after warming up.
        warming: processor time before that, compilation included.
        diverging: number of divergent transitions.
    """

    f: Any
    steps: int
    seconds: float
    warming: float
    diverging: int


def nuts(problem: Regression, points: Any, chains: int, warm_up: int, draws: int, seed: int = 0) -> Run:
    """Run the chains one after the other, on one thread."""
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)  # read by JAX when it first computes
    import jax
    from numpyro.infer import MCMC, NUTS

    x, y = (jax.numpy.asarray(value) for value in (problem.x, problem.y))
    found, steps, diverging, seconds, warming = [], 0, 0, 0.0, 0.0
    for chain in range(chains):
        mcmc = MCMC(NUTS(model_of(problem)), num_warmup=warm_up, num_samples=draws, progress_bar=False)
        before = time.process_time()
        mcmc.warmup(jax.random.key(seed + chain), x, y, extra_fields=("num_steps", "diverging"))
        jax.block_until_ready(mcmc.last_state)
        ready = time.process_time()
        mcmc.run(mcmc.last_state.rng_key, x, y, extra_fields=("num_steps", "diverging"))
        weights = jax.block_until_ready(mcmc.get_samples())
        seconds, warming = seconds + time.process_time() - ready, warming + ready - before
        fields = mcmc.get_extra_fields()
        steps, diverging = steps + int(fields["num_steps"].sum()), diverging + int(fields["diverging"].sum())
        found.append(np.asarray(jax.vmap(lambda own: forward(problem, own, jax.numpy.asarray(points)))(weights)))
    return Run(np.stack(found)[..., 0], steps, seconds, warming, diverging)


def energy(problem: Regression, weights: Mapping[str, Any]) -> float:
    """The potential energy by NumPyro at these weights, to see that it is that of the same model."""
    import jax
    from numpyro.infer.util import potential_energy

    x, y = (jax.numpy.asarray(value) for value in (problem.x, problem.y))
    given = {name: jax.numpy.asarray(value) for name, value in weights.items()}
    return float(potential_energy(model_of(problem), (x, y), {}, given))


def model_of(problem: Regression) -> Any:
    """The NumPyro model; sites are ``w0, b0, w1, ...``."""
    import numpyro
    from numpyro import distributions as dist

    def model(x: Any, y: Any) -> None:
        weights = {}
        for layer, scale in enumerate(problem.scales):
            inputs, outputs = problem.widths[layer : layer + 2]
            weights[f"w{layer}"] = numpyro.sample(
                f"w{layer}", dist.Normal(0, scale).expand([outputs, inputs]).to_event(2)
            )
            own = dist.Normal(0, problem.bias_scale).expand([outputs]).to_event(1)
            weights[f"b{layer}"] = numpyro.sample(f"b{layer}", own)
        distribution = dist.Normal(forward(problem, weights, x), problem.precision**-0.5)
        numpyro.sample("y", distribution.to_event(2), obs=y)

    return model


def forward(problem: Regression, weights: Mapping[str, Any], h: Any) -> Any:
    """The network's outputs ``[N, 1]``."""
    from jax import nn

    last = len(problem.scales) - 1
    for layer in range(last + 1):
        h = h @ weights[f"w{layer}"].T + weights[f"b{layer}"]
        h = h if layer == last else nn.relu(h)
    return h
