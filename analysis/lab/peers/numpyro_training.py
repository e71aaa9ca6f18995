"""NumPyro: jitted SVI, with the network's layers in JAX and the channels of images last.

    dropout       weights are parameters with the decay of a N(0, 1) prior, one mask per example before every layer
    mean field    weights and biases ~ N(0, 1), AutoNormal, sampled once per minibatch, the exact KL divergence

The steps of a dense network are one jitted loop, as in `SVI.run`. With convolutions, for which XLA generates slow code
inside a loop on a CPU (7 times as slow), each step is a jitted call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.analysis.lab.peers.networks import RATE, Network, Steps

Weights = Mapping[str, Any]  # by the name of the torch parameter
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def dropout(network: Network) -> Steps:
    """Steps of Bernoulli dropout."""
    import jax
    import jax.numpy as jnp
    import numpyro

    layers = network.build(lambda: nn.Dropout(RATE))
    start = weights_of(layers)

    def mask(h: Any) -> Any:
        return jnp.where(jax.random.bernoulli(numpyro.prng_key(), 1 - RATE, h.shape), h / (1 - RATE), 0.0)

    def model(x: Any, y: Any) -> None:
        weights = {name: numpyro.param(name, value) for name, value in start.items()}
        decay = sum((w**2).sum() for name, w in weights.items() if name.endswith("weight"))
        numpyro.factor("decay", -0.5 * (1 - RATE) * decay)
        observe(network, forward(layers, weights, x, mask), y)

    def guide(x: Any, y: Any) -> None:
        pass

    return steps_of(network, model, guide, numpyro.infer.Trace_ELBO())


def mean_field(network: Network) -> Steps:
    """Steps of independent normal weights."""
    import numpyro

    layers = network.build(nn.Identity)
    shapes = {name: value.shape for name, value in weights_of(layers).items()}

    def model(x: Any, y: Any) -> None:
        prior = {name: numpyro.distributions.Normal().expand(s).to_event(len(s)) for name, s in shapes.items()}
        weights = {name: numpyro.sample(name, p) for name, p in prior.items()}
        observe(network, forward(layers, weights, x, lambda h: h), y)

    guide = numpyro.infer.autoguide.AutoNormal(model)
    return steps_of(network, model, guide, numpyro.infer.TraceMeanField_ELBO())


def steps_of(network: Network, model: Callable[..., Any], guide: Callable[..., Any], elbo: Any) -> Steps:
    """SVI updates, each with a minibatch drawn at random; on one thread of a CPU, or on JAX's default device."""
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)  # read by JAX when it first computes
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # otherwise JAX reserves the memory of a GPU
    import jax
    import numpyro

    x, y = to_jax(network.x), to_jax(network.y)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(1e-3), elbo)
    key = jax.random.key(0)
    state = svi.init(key, x[: network.size], y[: network.size])

    def update(state: Any, key: Any, x: Any, y: Any) -> tuple[Any, Any]:
        key, key_of_step = jax.random.split(key)
        rows = jax.random.randint(key_of_step, (network.size,), 0, len(x))
        return svi.update(state, x[rows], y[rows])[0], key

    @partial(jax.jit, static_argnums=0)
    def advance(count: int, state: Any, key: Any, x: Any, y: Any) -> tuple[Any, Any]:
        if count == 1:
            return update(state, key, x, y)
        return jax.lax.fori_loop(0, count, lambda _, carry: update(carry[0], carry[1], x, y), (state, key))

    calls, count = (network.steps, 1) if x.ndim == 4 and not network.x.is_cuda else (1, network.steps)

    def steps() -> None:
        nonlocal state, key
        for _ in range(calls):
            state, key = advance(count, state, key, x, y)
        jax.block_until_ready(state)

    return steps, lambda: [torch.from_numpy(p.__array__().copy()) for p in jax.tree.leaves(svi.get_params(state))]


def observe(network: Network, outputs: Any, y: Any) -> None:
    """The minibatch's log likelihood, scaled to the number of rows of the data."""
    import numpyro
    from numpyro import distributions as dist

    distribution = (
        dist.Normal(outputs, 1.0) if isinstance(network.loss, nn.MSELoss) else dist.Categorical(logits=outputs)
    )
    with numpyro.handlers.scale(scale=len(network.x) / network.size):
        numpyro.sample("y", distribution, obs=y)


def forward(layers: nn.Sequential, weights: Weights, h: Any, mask: Callable[[Any], Any]) -> Any:
    """The layers in JAX; `mask` stands for `nn.Dropout`. Images ``[N, H, W, C]``, kernels ``[H, W, in, out]``."""
    from jax import lax
    from jax import nn as functions

    for index, layer in enumerate(layers):
        match layer:
            case nn.Dropout():
                h = mask(h)
            case nn.Linear():
                h = h @ weights[f"{index}.weight"].T + weights[f"{index}.bias"]
            case nn.Conv2d():
                kernel = weights[f"{index}.weight"]
                h = lax.conv_general_dilated(h, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
                h = h + weights[f"{index}.bias"]
            case nn.MaxPool2d():
                h = lax.reduce_window(h, -float("inf"), lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            case nn.ReLU():
                h = functions.relu(h)
            case nn.Flatten():
                h = h.transpose(0, 3, 1, 2).reshape(len(h), -1)
            case nn.Identity():
                pass
            case _:
                raise ValueError(
                    f"{layer} has no JAX implementation here, as the networks of the benchmark do not use it"
                )
    return h


def weights_of(layers: nn.Sequential) -> Weights:
    """The layers' parameters as JAX arrays."""
    return {name: to_jax(value, "kernel") for name, value in layers.named_parameters()}


def to_jax(value: Tensor, images: str = "data") -> Any:
    """The tensor as a JAX array, images as ``[N, H, W, C]`` and kernels (``images="kernel"``) as ``[H, W, in, out]``."""
    import jax.numpy as jnp

    value = value.detach()
    if value.dim() == 4:
        value = value.permute(2, 3, 1, 0) if images == "kernel" else value.permute(0, 2, 3, 1)
    return jnp.asarray(value.cpu().numpy())
