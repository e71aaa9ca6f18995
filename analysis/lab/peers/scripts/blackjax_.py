"""blackjax: MCLMC with its tuning, one chain from the prior, and ChEES-HMC with its default metric, the identity.

ChEES uses as many chains and tuning steps as our `sample`. On yacht these are too few for it: its step size becomes 0.0009.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from in_jax import from_prior, functions, log_density
from peer import Problem, main

MCLMC_STEPS = 30  # as a multiple of the steps of a training
STEP_SIZE, LR = 0.01, 0.02  # the first step size, and Adam's learning rate


def mclmc(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """Unadjusted MCLMC: tuning chooses a step size at which the variance of the energy is small."""
    import blackjax
    import jax

    density = partial(log_density, problem)
    first, second, third, last = jax.random.split(jax.random.key(problem.seed), 4)
    start = blackjax.mcmc.mclmc.init(from_prior(problem, first), density, second)
    steps = MCLMC_STEPS * problem.steps
    state, tuned, _ = blackjax.mclmc_find_L_and_step_size(
        mclmc_kernel=blackjax.mcmc.mclmc.build_kernel(),
        num_steps=steps,
        state=start,
        rng_key=third,
        logdensity_fn=density,
    )
    algorithm = blackjax.mclmc(
        density, L=tuned.L, step_size=tuned.step_size, inverse_mass_matrix=tuned.inverse_mass_matrix
    )
    thin = steps // problem.draws

    def draw(state: Any, key: Any) -> tuple[Any, Any]:
        state = jax.lax.fori_loop(0, thin, lambda i, s: algorithm.step(jax.random.fold_in(key, i), s)[0], state)
        return state, state.position

    _, weights = jax.lax.scan(draw, state, jax.random.split(last, problem.draws))
    settings = {"steps": steps, "thin": thin, "L": float(tuned.L), "step_size": float(tuned.step_size)}
    return functions(problem, weights), settings


def chees(problem: Problem, chains: int = 32, lr: float = LR, masses: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Chains that share their tuning; `masses` are adapted if ``diagonal``."""
    import blackjax
    import jax
    import optax
    from jax.flatten_util import ravel_pytree

    first, second, third = jax.random.split(jax.random.key(problem.seed), 3)
    chains, tune = min(chains, problem.draws // 4), max(100, problem.steps // 12)
    draws = problem.draws // chains
    _, unravel = ravel_pytree(
        from_prior(problem, first)
    )  # its adaptation fails for positions that are trees of matrices
    starts = jax.vmap(lambda key: ravel_pytree(from_prior(problem, key))[0])(jax.random.split(first, chains))

    def density(position: Any) -> Any:
        return log_density(problem, unravel(position))

    warm_up = blackjax.chees_adaptation(density, chains, mass_matrix_estimation=masses)
    (states, tuned), _ = warm_up.run(second, starts, STEP_SIZE, optax.adam(lr), tune)
    step = blackjax.dynamic_hmc(density, **tuned).step

    def draw(states: Any, key: Any) -> tuple[Any, Any]:
        states, info = jax.vmap(step)(jax.random.split(key, chains), states)
        return states, (states.position, info.num_integration_steps)

    keys = jax.random.split(third, draws)
    jax.block_until_ready(states)
    drawing = jax.jit(lambda states: jax.lax.scan(draw, states, keys)[1]).lower(states).compile()
    ready = time.process_time()
    weights, steps = drawing(states)
    jax.block_until_ready(weights)
    cost = {"drawing": time.process_time() - ready, "steps": int(steps.sum())}
    weights = jax.vmap(unravel)(weights.swapaxes(0, 1).reshape(-1, weights.shape[-1]))
    about = {"chains": chains, "tune": tune, "draws": draws, "step_size": float(tuned["step_size"])}
    return functions(problem, weights), about | cost


METHODS = {
    "MCLMC": mclmc,
    "ChEES": chees,
    "64 ChEES": partial(chees, chains=64, lr=0.025),
    "64 ChEES, masses": partial(chees, chains=64, lr=0.025, masses="diagonal"),
}

if __name__ == "__main__":
    main("blackjax", METHODS)
