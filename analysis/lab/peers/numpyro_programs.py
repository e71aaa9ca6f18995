"""NumPyro: some of `analysis.lab.programs` in JAX, trained by ``SVI.run``, which is one jitted loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from pyrodrop.analysis.lab.peers.numpyro_training import ONE_THREAD

Parts = tuple[Callable[..., None], Any, Any]  # model, guide and loss

LR = 0.02


def run(name: str, data: Mapping[str, Any], steps: int) -> float:
    """Train the program of this name on one thread; returns the last loss.

    Args:
        name: one of `NAMES`.
        data: the program's keyword arguments, as tensors.
        steps: number of steps.
    """
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)  # read by JAX when it first computes
    import jax
    import numpyro

    model, guide, loss = _PARTS[name]()
    arrays = {key: jax.numpy.asarray(value.numpy()) for key, value in data.items()}
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(LR), loss)
    return float(svi.run(jax.random.key(0), steps, progress_bar=False, **arrays).losses[-1])


def hierarchical() -> Parts:
    """Intercepts and slopes by group."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro import sample

    def model(group: Any, floor: Any, y: Any) -> None:
        intercept_mean = sample("intercept_mean", dist.Normal(0.0, 5.0))
        slope_mean = sample("slope_mean", dist.Normal(0.0, 5.0))
        intercept_scale = sample("intercept_scale", dist.HalfCauchy(1.0))
        slope_scale = sample("slope_scale", dist.HalfCauchy(1.0))
        noise = sample("noise", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 85):
            intercept = sample("intercept", dist.Normal(intercept_mean, intercept_scale))
            slope = sample("slope", dist.Normal(slope_mean, slope_scale))
        with numpyro.plate("rows", len(y)):
            sample("y", dist.Normal(intercept[group] + slope[group] * floor, noise), obs=y)

    return model, numpyro.infer.autoguide.AutoNormal(model), numpyro.infer.Trace_ELBO()


def schools() -> Parts:
    """Eight schools."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro import sample

    def model(y: Any, sigma: Any) -> None:
        mean = sample("mean", dist.Normal(0.0, 5.0))
        scale = sample("scale", dist.HalfCauchy(5.0))
        with numpyro.plate("schools", len(y)):
            offset = sample("offset", dist.Normal(0.0, 1.0))
            sample("y", dist.Normal(mean + scale * offset, sigma), obs=y)

    return model, numpyro.infer.autoguide.AutoMultivariateNormal(model), numpyro.infer.Trace_ELBO()


def sparse() -> Parts:
    """Linear regression under the horseshoe prior."""
    import numpyro
    import numpyro.distributions as dist
    from jax import numpy as jnp
    from numpyro import sample

    def model(x: Any, y: Any) -> None:
        tau = sample("tau", dist.HalfCauchy(0.1))
        noise = sample("noise", dist.HalfNormal(1.0))
        shrinkage = sample("shrinkage", dist.HalfCauchy(jnp.ones(x.shape[1])).to_event(1))
        w = sample("w", dist.Normal(jnp.zeros(x.shape[1]), tau * shrinkage).to_event(1))
        with numpyro.plate("rows", len(y)):
            sample("y", dist.Normal(x @ w, noise), obs=y)

    guide = numpyro.infer.autoguide.AutoLowRankMultivariateNormal(model, rank=4)
    return model, guide, numpyro.infer.Trace_ELBO(num_particles=2)


def logistic() -> Parts:
    """Logistic regression."""
    import numpyro
    import numpyro.distributions as dist
    from jax import numpy as jnp
    from numpyro import sample

    def model(x: Any, y: Any) -> None:
        bias = sample("bias", dist.Normal(0.0, 2.0))
        w = sample("w", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
        with numpyro.plate("rows", len(y)):
            sample("y", dist.Bernoulli(logits=x @ w + bias), obs=y)

    def guide(x: Any, y: Any) -> None:
        loc = numpyro.param("loc", jnp.zeros(x.shape[1]))
        scale = numpyro.param("scale", jnp.full(x.shape[1], 0.1), constraint=dist.constraints.positive)
        bias_loc = numpyro.param("bias_loc", 0.0)
        bias_scale = numpyro.param("bias_scale", 0.1, constraint=dist.constraints.positive)
        sample("bias", dist.Normal(bias_loc, bias_scale))
        sample("w", dist.Normal(loc, scale).to_event(1))

    return model, guide, numpyro.infer.TraceMeanField_ELBO()


def marginal_mixture() -> Parts:
    """A mixture of Gaussians as one density."""
    import numpyro
    import numpyro.distributions as dist
    from jax import numpy as jnp
    from numpyro import sample

    def model(x: Any) -> None:
        weights = sample("weights", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("components", 3):
            center = sample("center", dist.Normal(jnp.zeros(x.shape[1]), 3.0).to_event(1))
            scale = sample("scale", dist.LogNormal(0.0, 0.5))
        with numpyro.plate("rows", len(x)):
            parts = dist.Normal(center, scale[:, None]).to_event(1)
            sample("x", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=x)

    return model, numpyro.infer.autoguide.AutoNormal(model), numpyro.infer.Trace_ELBO()


_PARTS = {program.__name__: program for program in (hierarchical, schools, sparse, logistic, marginal_mixture)}
NAMES = tuple(_PARTS)
