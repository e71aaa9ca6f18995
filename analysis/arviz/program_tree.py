"""The groups of an ArviZ data tree of a Pyro program, from its draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from pyrodrop.analysis.comparison.khat import LEAST, k_hat
from pyrodrop.analysis.comparison.program_draws import Variables, program_draws
from pyrodrop.sampling import Sampled
from pyrodrop.training.problem import describe
from pyrodrop.training.result import Fit, data_for
from pyrodrop.training.rows import arguments_of

_ELBO_DRAWS = 100


def program_tree(
    chains: Sequence[Fit], data: Any, num_samples: int, seed: int
) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    """The groups of several fits of a program on the same data, and attributes that describe them.

    Args:
        chains: the fits; each is a chain.
        seed: seed of the draws of the first chain; chain c uses ``seed + c``.

    Raises:
        ValueError: the fits have different data.
    """
    first = chains[0]
    if len({fit.fingerprint for fit in chains}) > 1:
        raise ValueError(
            "chains must be restarts on the same data; got replicates with different data: take one of them"
        )
    arguments = arguments_of(data_for(first, "to_arviz", data), first.device)
    drawn = [program_draws(fit, arguments, num_samples, seed + number) for number, fit in enumerate(chains)]
    groups = {
        "posterior": _joined([chain.posterior for chain in drawn]),
        "observed_data": xr.Dataset(drawn[0].observed),
    }
    if not drawn[0].undrawable:
        groups["posterior_predictive"] = _joined([chain.predictive for chain in drawn])
    densities = [chain.log_likelihood for chain in drawn if chain.log_likelihood]
    groups |= {"log_likelihood": _joined(densities)} if densities else {}
    attrs: dict[str, Any] = {"guide": describe(first.guide), "model": describe(first.model)}
    if first.settings.get("objective") != "TraceEnum_ELBO":  # which sums out sites
        elbos = [fit.elbo(_ELBO_DRAWS, data) for fit in chains]
        attrs |= {"elbo": scalar_or_array([e.value for e in elbos]), "elbo_se": scalar_or_array([e.se for e in elbos])}
        attrs["elbo_convention"] = str(elbos[0].convention)
    attrs |= {"posterior_predictive_missing": drawn[0].undrawable} if drawn[0].undrawable else {}
    missing = drawn[0].no_density or (f"{num_samples} draws, fewer than {LEAST}" if num_samples < LEAST else "")
    if missing:
        return groups, attrs | {"khat_missing": missing}
    stats = {"lp": [chain.log_joint for chain in drawn], "log_q": [chain.log_q for chain in drawn]}
    groups["sample_stats"] = xr.Dataset(
        {name: (("chain", "draw"), torch.stack(values).numpy()) for name, values in stats.items()}
    )
    return groups, attrs | {"khat": scalar_or_array([k_hat(chain.log_joint - chain.log_q) for chain in drawn])}


def sampled_tree(sampled: Sampled, num_samples: int, seed: int) -> tuple[dict[str, xr.Dataset], dict[str, Any]]:
    """The groups of draws of the exact posterior of a program, whose chains are Markov chains, and attributes.

    Args:
        num_samples: draws per chain; if a chain has more, evenly spaced draws are used.
    """
    rows = torch.arange(min(num_samples, sampled.draws)) * sampled.draws // min(num_samples, sampled.draws)
    values = {name: each[:, rows].flatten(0, 1).to(sampled.device) for name, each in sampled.samples.items()}
    drawn = program_draws(sampled, sampled.data, sampled.chains * len(rows), seed, values)

    def by_chain(variables: Variables) -> xr.Dataset:
        shape = (sampled.chains, len(rows))
        return xr.Dataset(
            {
                name: (("chain", *dims), each.reshape(*shape, *each.shape[1:]))
                for name, (dims, each) in variables.items()
            }
        )

    groups = {"posterior": by_chain(drawn.posterior), "observed_data": xr.Dataset(drawn.observed)}
    groups |= {} if drawn.undrawable else {"posterior_predictive": by_chain(drawn.predictive)}
    groups |= {"log_likelihood": by_chain(drawn.log_likelihood)} if drawn.log_likelihood else {}
    stats = {name: (("chain", "draw"), each[:, rows].numpy()) for name, each in sampled.stats.items()}
    groups["sample_stats"] = xr.Dataset(stats)
    plain = {n: v for n, v in sampled.settings.items() if isinstance(v, str | int | float) and not isinstance(v, bool)}
    attrs: dict[str, Any] = {f"sampler_{name}": value for name, value in plain.items()}
    diagnostics = {n: np.nan if v is None else v for n, v in sampled.settings["diagnostics"].items()}
    attrs |= {f"diagnostics_{name}": value for name, value in diagnostics.items()}
    attrs |= {"posterior_predictive_missing": drawn.undrawable} if drawn.undrawable else {}
    return groups, {"guide": "exact posterior", "model": describe(sampled.model), **attrs}


def _joined(chains: Sequence[Variables]) -> xr.Dataset:
    return xr.concat([xr.Dataset(variables) for variables in chains], dim="chain")


def scalar_or_array(values: Sequence[Any]) -> Any:
    """The only value, or an array of several."""
    return values[0] if len(values) == 1 else np.array(values)
