"""blackjax's ChEES-HMC on the model of `numpyro_nuts`, whose density NumPyro gives it, as blackjax's documentation shows."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from pyrodrop.analysis.benchmarks.peers.numpyro import ONE_THREAD
from pyrodrop.analysis.benchmarks.peers.numpyro_nuts import Regression, Run, forward, model_of

STEP_SIZE, LR = 0.01, 0.025  # the first step size, and Adam's learning rate (Hoffman, Radul & Sountsov 2021)


def chees(problem: Regression, points: Any, chains: int, tune: int, draws: int, masses: bool, seed: int = 0) -> Run:
    """Run all chains at once from the prior, on one thread; `masses` are adapted, or 1 as by blackjax's default."""
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)  # read by JAX when it first computes
    import blackjax
    import jax
    import optax
    from jax.flatten_util import ravel_pytree
    from numpyro.infer import Predictive
    from numpyro.infer.util import potential_energy

    x, y = (jax.numpy.asarray(value) for value in (problem.x, problem.y))
    model = model_of(problem)
    first, second, third = jax.random.split(jax.random.key(seed), 3)
    prior = Predictive(model, num_samples=chains)(first, x, None)
    starts = {name: value for name, value in prior.items() if name != "y"}
    _, unravel = ravel_pytree({name: value[0] for name, value in starts.items()})

    def density(position: Any) -> Any:
        return -potential_energy(model, (x, y), {}, unravel(position))

    begun = time.process_time()
    positions = jax.vmap(lambda own: ravel_pytree(own)[0])(starts)  # its adaptation fails for trees of matrices
    warm_up = blackjax.chees_adaptation(density, chains, mass_matrix_estimation="diagonal" if masses else None)
    (states, tuned), _ = warm_up.run(second, positions, STEP_SIZE, optax.adam(LR), tune)
    step = blackjax.dynamic_hmc(density, **tuned).step

    def draw(states: Any, key: Any) -> tuple[Any, Any]:
        states, info = jax.vmap(step)(jax.random.split(key, chains), states)
        return states, (states.position, info.num_integration_steps, info.is_divergent)

    keys = jax.random.split(third, draws)
    drawing = jax.jit(lambda states: jax.lax.scan(draw, states, keys)[1]).lower(states).compile()
    ready = time.process_time()
    found, steps, diverging = jax.block_until_ready(drawing(states))
    seconds = time.process_time() - ready

    def functions(position: Any) -> Any:
        return forward(problem, unravel(position), jax.numpy.asarray(points))[:, 0]

    f = jax.lax.map(jax.vmap(functions), found).swapaxes(0, 1)
    return Run(np.asarray(f), int(steps.sum()), seconds, ready - begun, int(diverging.sum()))
