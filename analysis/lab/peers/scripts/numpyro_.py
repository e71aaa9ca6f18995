"""NumPyro: NUTS, and SVI with AutoNormal.

With its defaults, initial means from U(-2, 2) and scales of 0.1, AutoNormal ends in a worse optimum on yacht: W2 of f is
7.6 times the standard deviation of f. With scales of 0.01 it is 2.6, and with means from U(-0.3, 0.3) as well, as here, 0.6.
"""

from __future__ import annotations

import time
from typing import Any

from in_jax import forward, functions
from peer import Problem, main

LR, RADIUS, INIT_SCALE = 0.01, 0.3, 0.01
CHAINS = 2


def model_of(problem: Problem) -> Any:
    """The model, with sites w0, b0, w1, ..."""
    import numpyro
    from numpyro import distributions as dist

    def model(x: Any, y: Any = None) -> None:
        weights = {}
        for i, (inputs, outputs) in enumerate(zip(problem.widths[:-1], problem.widths[1:], strict=True)):
            prior = dist.Normal(0, problem.scales[i]).expand([inputs, outputs]).to_event(2)
            weights[f"w{i}"] = numpyro.sample(f"w{i}", prior)
            weights[f"b{i}"] = numpyro.sample(f"b{i}", dist.Normal().expand([outputs]).to_event(1))
        f = forward(problem, weights, x)
        noise = dist.Categorical(logits=f) if problem.classes else dist.Normal(f, problem.precision**-0.5).to_event(1)
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", noise, obs=y)

    return model


def nuts(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """Chains one after the other."""
    import jax
    from numpyro.infer import MCMC, NUTS

    warm_up, draws = problem.steps // 6, problem.draws // CHAINS
    mcmc = MCMC(
        NUTS(model_of(problem)), num_warmup=warm_up, num_samples=draws, num_chains=CHAINS,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    data = {"extra_fields": ("num_steps",)}
    mcmc.warmup(jax.random.key(problem.seed), problem.x, problem.y, **data)
    jax.block_until_ready(mcmc.last_state)
    ready = time.process_time()
    mcmc.run(mcmc.last_state.rng_key, problem.x, problem.y, **data)
    weights = mcmc.get_samples()
    jax.block_until_ready(weights)
    cost = {"drawing": time.process_time() - ready, "steps": int(mcmc.get_extra_fields()["num_steps"].sum())}
    return functions(problem, weights), {"chains": CHAINS, "warm-up": warm_up, "draws": draws, **cost}


def auto_normal(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """A mean-field Gaussian."""
    import jax
    import numpyro
    from numpyro.infer import SVI, TraceMeanField_ELBO, autoguide

    model = model_of(problem)
    start = numpyro.infer.init_to_uniform(radius=RADIUS)
    guide = autoguide.AutoNormal(model, init_loc_fn=start, init_scale=INIT_SCALE)
    lr = lambda step: LR * 0.5 * (1 + jax.numpy.cos(jax.numpy.pi * step / problem.steps))  # noqa: E731
    svi = SVI(model, guide, numpyro.optim.Adam(lr), TraceMeanField_ELBO())
    first, second = jax.random.split(jax.random.key(problem.seed))
    fit = svi.run(first, problem.steps, problem.x, problem.y, progress_bar=False)
    weights = guide.sample_posterior(second, fit.params, sample_shape=(problem.draws,))
    settings = {
        "training": f"Adam, cosine, lr {LR:g}, {problem.steps} steps, 1 particle",
        "radius": RADIUS,
        "init_scale": INIT_SCALE,
    }
    return functions(problem, weights), settings


if __name__ == "__main__":
    main("numpyro", {"NUTS": nuts, "AutoNormal": auto_normal})
