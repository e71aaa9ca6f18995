"""Effective draws per second of the sites of Pyro programs: `pyrodrop.sample` against NUTS of Pyro, NumPyro and nutpie.

``python -m pyrodrop.analysis.lab.benchmarks.sampling_programs [FILE]``: processor time of one thread, one run, with tuning
and compiling, each sampler in a process of its own that has imported its packages. *First* compiles anew, *later* is the
second call in the process. NumPyro makes 2,000 draws after 1,000 transitions of tuning, nutpie 2,000 after its own number,
on NumPyro's density compiled by JAX, and Pyro 100 after 100, or as many as 30 s allow.

A score is the least effective number of draws of all numbers of all sites per second; of a network, whose weights are not
identified, of f at 20 points and of the log density.
*apart* is the largest difference of a mean from the reference, in standard errors of it: the reference is posteriordb's, or
20,000 draws of NumPyro.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from arviz_stats.base import array_stats
from pyro.infer import MCMC, NUTS

import pyrodrop
from pyrodrop.analysis.lab.benchmarks.timing import Bench, Cells, command, elsewhere, why
from pyrodrop.analysis.lab.peers.numpyro_training import ONE_THREAD
from pyrodrop.analysis.lab.programs.posteriors import POSTERIORS, PYRO, ROWS, SDS, network, numpyro, of_network
from pyrodrop.analysis.reports.console import core_seconds

MOST_SECONDS = 30.0  # of Pyro's NUTS
LONG = 20_000


class Means(NamedTuple):
    """Means of numbers, their standard errors, and the least effective number of draws."""

    means: Any
    errors: Any
    effective: float = 0.0

    @classmethod
    def of(cls, name: str, samples: Mapping[str, Any]) -> Means:
        """Of draws ``[chains, draws, ...]`` by site; of f at points for a network."""
        if POSTERIORS[name].program is network:
            weights = {site: torch.tensor(np.array(values)) for site, values in samples.items()}
            samples = of_network(weights, pyrodrop.data.foong2020())
        flat = [np.asarray(samples[site], float).reshape(*samples[site].shape[:2], -1) for site in sorted(samples)]
        columns = np.concatenate(flat, -1)
        bulk, of_mean = (array_stats.ess(np.moveaxis(columns, -1, 0), method=method) for method in ("bulk", "mean"))
        return cls(columns.mean((0, 1)), columns.std((0, 1)) / np.sqrt(of_mean), float(bulk.min()))

    def apart(self, other: Means) -> float:
        """The largest difference of means, in standard errors."""
        return float((np.abs(self.means - other.means) / np.hypot(self.errors, other.errors)).max())


Run = tuple[Means, dict[str, Any]]


def problem_of(name: str) -> Any:
    """The program and its data, or for a network its model and (x, y)."""
    problem: Any = POSTERIORS[name].to(PYRO)
    if POSTERIORS[name].program is not network:
        return problem
    prior = {f"layers.{layer}.*": pyrodrop.priors.Gaussian(sd) for layer, sd in enumerate(SDS[::2])}
    likelihood, of_bias = pyrodrop.likelihoods.Gaussian(100.0), pyrodrop.priors.Gaussian(SDS[1])
    model = pyrodrop.models.MLP([2, 50, 1], prior=prior, bias_prior=of_bias, likelihood=likelihood)
    return model, tuple(problem[1].values())


def sites_of_program(samples: Mapping[str, Any]) -> dict[str, Any]:
    """Draws of a network by the names that its program has."""
    return {"".join(site.split(".")[::-1][:2]): values for site, values in samples.items()}


def ours(name: str, seed: int = 0) -> Iterable[Run]:
    """The first and a later call of `pyrodrop.sample`, for a network with its model."""
    problem = problem_of(name)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYRODROP_CACHE"] = folder
        for _ in range(2):
            begun = core_seconds()
            sampled = pyrodrop.sample(*problem, device="cpu", seed=seed, progress=False)
            seconds, found = core_seconds() - begun, sampled.diagnostics()
            samples = sites_of_program(sampled.samples)
            about = {"divergent": found.diverging, "R-hat": found.r_hat_f, "engine": sampled.settings["engine"]}
            yield (
                Means.of(name, samples),
                {"seconds": seconds, "steps": int(sampled.stats["n_steps"][0].sum()), **about},
            )


def by_numpyro(name: str, draws: int = 2000, runs: int = 2) -> Iterable[Run]:
    """Calls of NumPyro's NUTS."""
    import jax
    from numpyro.infer import MCMC, NUTS

    program, arguments = POSTERIORS[name].to(numpyro())
    mcmc = MCMC(NUTS(program), num_warmup=1000, num_samples=draws, progress_bar=False)
    for seed in range(runs):
        begun = core_seconds()
        mcmc.run(jax.random.key(seed), **arguments)
        samples = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
        diverging = int(np.sum(mcmc.get_extra_fields()["diverging"]))
        yield Means.of(name, samples), {"seconds": core_seconds() - begun, "divergent": diverging}


def by_nutpie(name: str) -> Iterable[Run]:
    """Two calls of nutpie on NumPyro's density."""
    import jax
    import nutpie
    from jax.flatten_util import ravel_pytree
    from numpyro.infer.util import initialize_model

    begun = core_seconds()
    program, arguments = POSTERIORS[name].to(numpyro())
    start, potential, constrain, _ = initialize_model(jax.random.key(0), program, model_kwargs=arguments)
    q, by_site = ravel_pytree(start.z)
    density = jax.jit(jax.value_and_grad(lambda q: -potential(by_site(q))))

    def both(q: Any) -> tuple[float, Any]:
        value, gradient = density(q.astype(np.float32))
        return float(value), np.asarray(gradient, np.float64)

    shapes: Any = [np.dtype(np.float64)], [(len(q),)], ["q"]
    model = nutpie.compiled_pyfunc.from_pyfunc(len(q), lambda: both, lambda *_: lambda q: {"q": q}, *shapes)
    on_support = jax.jit(jax.vmap(jax.vmap(lambda q: constrain(by_site(q)))))
    for seed in range(2):
        trace = nutpie.sample(model, draws=2000, chains=1, cores=1, seed=seed, progress_bar=False)
        samples = jax.tree.map(np.asarray, on_support(trace.posterior["q"].to_numpy().astype(np.float32)))
        seconds, begun = core_seconds() - begun, core_seconds()
        yield Means.of(name, samples), {"seconds": seconds, "divergent": int(trace.sample_stats["diverging"].sum())}


def by_pyro(name: str) -> Iterable[Run]:
    """A call of Pyro's NUTS; ranks of draws, and so their effective number, are the same in unconstrained coordinates."""
    program, arguments = POSTERIORS[name].to(PYRO)
    kept: list[dict[str, Any]] = []

    def hook(_: object, q: dict[str, Any], stage: str, __: int) -> None:
        kept.extend([{site: value.numpy() for site, value in q.items()}] if stage == "Sample" else [])
        if core_seconds() - begun > MOST_SECONDS:
            raise TimeoutError

    begun = core_seconds()
    pyro.set_rng_seed(0)
    with contextlib.suppress(TimeoutError):
        MCMC(NUTS(program), 100, 100, hook_fn=hook, disable_progbar=True).run(**arguments)
    about = {"seconds": core_seconds() - begun, "draws": len(kept)}
    samples = {site: np.stack([q[site] for q in kept])[None] for site in (kept[0] if len(kept) >= 20 else ())}
    yield Means.of(name, samples) if samples else Means(0.0, 0.0, len(kept)), about


def alone(sampler: Callable[..., Iterable[Run]], *arguments: Any) -> list[Run]:
    """The runs of a sampler, in a process of its own."""
    torch.set_num_threads(1)
    return list(sampler(*arguments))


SAMPLERS = {"ours": ours, "NumPyro": by_numpyro, "nutpie": by_nutpie, "Pyro": by_pyro}


def reference(name: str) -> Means:
    """The means of posteriordb, or of a long run of NumPyro."""
    if name in ROWS["reference"]:
        sites = ROWS["reference"][name]
        means, sds = np.concatenate([np.array(sites[site], float) for site in sorted(sites)], 1)
        return Means(means, sds / 100)
    return elsewhere(alone, by_numpyro, name, LONG, 1, XLA_FLAGS=ONE_THREAD)[0][0]


def compare(name: str, *_: Any) -> Cells:
    """The scores of the first call of each sampler, and of the later one, and of ours with two further seeds."""
    cells: dict[str, dict[str, Any]] = {}
    wanted = reference(name)
    for sampler, calls in SAMPLERS.items():
        try:
            runs = elsewhere(alone, calls, name, XLA_FLAGS=ONE_THREAD)
        except Exception as error:  # such as a package that is not installed
            cells[sampler] = {"error": why(error)}
            continue
        for run, (means, about) in zip(("first", "later"), runs, strict=False):
            cell = {"effective": means.effective, "per s": means.effective / about["seconds"], **about}
            cells[f"{sampler}, {run}"] = cell | ({} if sampler == "Pyro" else {"apart": means.apart(wanted)})
    for seed in (1, 2):
        means, about = elsewhere(alone, ours, name, seed)[0]
        cells[f"ours, seed {seed}"] = {"effective": means.effective, **about, "apart": means.apart(wanted)}
    return cells


BENCH = Bench("sampling-programs", {name: name for name in POSTERIORS}, measure=compare)

if __name__ == "__main__":
    command(BENCH.run)
