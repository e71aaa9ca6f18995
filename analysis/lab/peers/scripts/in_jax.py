"""The network of a problem in JAX, for the scripts of packages that use JAX."""

from __future__ import annotations

from typing import Any

from peer import Problem


def forward(problem: Problem, weights: Any, h: Any) -> Any:
    """The network with weights by site: w0 ``[in, out]``, b0 ``[out]``, w1, ..."""
    import jax

    activation = {"relu": jax.nn.relu, "tanh": jax.numpy.tanh}[problem.activation]
    for i in range(len(problem.scales)):
        h = (activation(h) if i else h) @ weights[f"w{i}"] + weights[f"b{i}"]
    return h


def functions(problem: Problem, weights: Any) -> Any:
    """f ``[S, P, D]`` of weights ``[S, ...]``."""
    import jax

    return jax.vmap(lambda draw: forward(problem, draw, jax.numpy.asarray(problem.points)))(weights)


def from_prior(problem: Problem, key: Any) -> dict[str, Any]:
    """Weights from the prior."""
    import jax

    weights: dict[str, Any] = {}
    for i, (inputs, outputs) in enumerate(zip(problem.widths[:-1], problem.widths[1:], strict=True)):
        key, key_of_weight, other = jax.random.split(key, 3)
        weights[f"w{i}"] = problem.scales[i] * jax.random.normal(key_of_weight, (inputs, outputs))
        weights[f"b{i}"] = jax.random.normal(other, (outputs,))
    return weights


def log_density(problem: Problem, weights: Any) -> Any:
    """The log joint density, up to a constant."""
    import jax

    f, y = forward(problem, weights, jax.numpy.asarray(problem.x)), jax.numpy.asarray(problem.y)
    if problem.classes:
        fits = jax.nn.log_softmax(f)[jax.numpy.arange(len(y)), y].sum()
    else:
        fits = -0.5 * problem.precision * ((f - y) ** 2).sum()
    scales = {name: problem.scales[int(name[1:])] if name[0] == "w" else 1.0 for name in weights}
    return fits - sum(0.5 * ((value / scales[name]) ** 2).sum() for name, value in weights.items())
