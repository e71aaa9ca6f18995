"""The network of a problem in JAX, for the scripts of packages that use JAX."""

from __future__ import annotations

import time
from typing import Any

from peer import Problem


class Clock:
    """Wall time of stages; the time of compilation is not part of them and is summed in ``seconds["compiling"]``."""

    def __init__(self) -> None:
        import jax

        self.seconds = {"compiling": 0.0}
        self._last, self._compiled = time.perf_counter(), 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def end(self, stage: str, *results: Any) -> None:
        """Wait for these results and end the stage that began at the previous call (or at construction)."""
        import jax

        jax.block_until_ready(results)
        now, compiled = time.perf_counter(), self.seconds["compiling"] - self._compiled
        self.seconds[stage] = now - self._last - compiled
        self._last, self._compiled = now, self.seconds["compiling"]

    def _listen(self, event: str, seconds: float, **kwargs: Any) -> None:
        if event.endswith(("backend_compile_duration", "jaxpr_to_mlir_module_duration")):
            self.seconds["compiling"] += seconds


def most_bytes() -> int:
    """The peak memory in use on the device, in bytes; 0 if it is not known."""
    import jax

    return int((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


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
