"""Draws of the exact posterior, for its data tree: the chains of the sampler are the chains of the tree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyrodrop.analysis.comparison.draws import Predictive, log_prior_of
from pyrodrop.checks import Inputs
from pyrodrop.data import Dataset
from pyrodrop.likelihoods import aligned
from pyrodrop.sampling import Sampled

Parts = list[tuple[Predictive, Predictive | None]]


def sampled_draws(
    sampled: Sampled, train: Dataset, test_x: Inputs | None, num_samples: int, *, weights: bool, seed: int
) -> tuple[Parts, list[dict[Any, Any]], dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Predictions, weights and statistics of every chain.

    Args:
        test_x: further points, or None.
        num_samples: number of draws per chain; if a chain has more, evenly spaced draws are used.

    Returns:
        Per chain the predictions at both sets of points, and its variables for the group ``posterior``; statistics
        ``[chains, draws]`` by name; the log prior ``[chains, draws]`` by site; and attributes.

    Raises:
        ValueError: `train` are not the data of the draws.
    """
    sampled.own_data("to_arviz", train)
    if num_samples < sampled.draws:
        sampled = thinned(sampled, max(1, num_samples))
    parts: Parts = []
    posterior: list[dict[Any, Any]] = []
    for chain in range(sampled.chains):
        rows = slice(chain, chain + 1)
        of_chain = replace(
            sampled,
            samples={name: values[rows] for name, values in sampled.samples.items()},
            stats={name: values[rows] for name, values in sampled.stats.items()},
        )
        fitted = of_chain.predict(train.x, of_chain.draws, seed=seed + chain)
        y = sampled.model.likelihood.as_target(train.y)
        log_likelihood: Tensor = fitted.distribution.log_prob(aligned(y.to(fitted.f.device), fitted.distribution))
        further = None
        if test_x is not None:
            predicted = of_chain.predict(test_x, of_chain.draws, seed=seed + chain)
            further = Predictive(f=predicted.f.cpu(), y=predicted.y.cpu())
        parts.append((Predictive(f=fitted.f.cpu(), y=fitted.y.cpu(), log_likelihood=log_likelihood.cpu()), further))
        variables: dict[Any, Any] = {}
        for site, values in of_chain.samples.items() if weights else ():
            variables[site] = ("draw", *(f"{site}_dim_{d}" for d in range(values.dim() - 2))), values[0].numpy()
        posterior.append(variables)
    attrs = {f"sampler_{name}": value for name, value in sampled.settings.items() if _plain(value)}
    diagnostics = {n: torch.nan if v is None else v for n, v in sampled.settings.get("diagnostics", {}).items()}
    attrs |= {f"diagnostics_{name}": value for name, value in diagnostics.items()}
    with torch.no_grad():
        flat = {name: values.flatten(0, 1) for name, values in sampled.samples.items()}
        log_prior = {
            name: values.reshape(sampled.chains, -1).cpu() for name, values in log_prior_of(sampled.model, flat).items()
        }
    return (
        parts,
        posterior,
        sampled.stats,
        log_prior,
        {"guide": "exact posterior, by Hamiltonian Monte Carlo", **attrs},
    )


def _plain(value: Any) -> bool:
    """Whether netCDF can store the value as an attribute."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def thinned(sampled: Sampled, draws: int) -> Sampled:
    """A copy with so many draws of each chain, evenly spaced, including the last one."""
    rows = (torch.arange(1, draws + 1) * sampled.draws) // draws - 1
    samples, stats = (
        {name: value[:, rows].contiguous() for name, value in values.items()}
        for values in (sampled.samples, sampled.stats)
    )
    settings = {**sampled.settings, "draws": draws, "thinned_from": sampled.draws}
    return replace(sampled, samples=samples, stats=stats, settings=settings)
