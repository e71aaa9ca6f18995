"""Moment matching for leave-one-out cross-validation of draws of the exact posterior.

For an observation whose importance ratios have too heavy a tail, the draws are shifted, scaled and rotated in unconstrained
coordinates so that their moments match those of the posterior without it. The density is the one of `pyrodrop.sample`.
Paananen, Piironen, Buerkner & Vehtari (2021), Implicitly adaptive importance sampling, https://arxiv.org/abs/1906.08850.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr
from arviz_stats import loo_moment_match
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.inputs import mapped
from pyrodrop.likelihoods import aligned
from pyrodrop.models.network import mixes_examples
from pyrodrop.sampling import Sampled
from pyrodrop.sampling.compiled_density import CompiledDensity
from pyrodrop.sampling.density import density_of


def moment_matched(sampled: Sampled, data: Dataset, tree: xr.DataTree, estimate: Any) -> Any:
    """ArviZ's result with moment matching for the observations that need it.

    Args:
        tree: data that contain the pointwise log likelihood, ``y``.

    Raises:
        ValueError: the network's examples depend on each other.
    """
    model = sampled.model
    if mixes_examples(model, data.x):
        raise ValueError(
            "moment matching needs the likelihood of one observation by itself; in this network the output of one example "
            "depends on others"
        )
    chains, draws = sampled.chains, sampled.draws
    chosen = density_of(model, data)
    compiled = CompiledDensity(chosen, chains * draws, "traced")
    unconstrained = {name: site.to_support.inv(sampled.samples[name]) for name, site in chosen.sites.items()}
    u = torch.cat([values.reshape(chains, draws, -1) for values in unconstrained.values()], 2).double()

    def positions(array: xr.DataArray) -> Tensor:
        values = np.ascontiguousarray(array.transpose("chain", "draw", ...).values)
        return torch.from_numpy(values).to(chosen.dtype).reshape(chains * draws, -1)

    def as_array(values: Tensor, like: xr.DataArray) -> xr.DataArray:
        numbers = values.double().reshape(chains, draws).numpy()
        return xr.DataArray(numbers, dims=("chain", "draw"), coords={d: like.coords[d] for d in ("chain", "draw")})

    def log_density(array: xr.DataArray) -> xr.DataArray:
        return as_array(-compiled.energies(positions(array))[0], array)

    def log_likelihood(array: xr.DataArray, number: int) -> xr.DataArray:
        weights = chosen.constrained(positions(array))
        distribution = sampled.distribution_of(
            weights, mapped(lambda tensor: tensor[number : number + 1], data.x), chains * draws
        )
        y = model.likelihood.as_target(data.y[number : number + 1])
        return as_array(distribution.log_prob(aligned(y, distribution))[:, 0], array)

    coords = {"chain": range(chains), "draw": range(draws)}
    upars = xr.DataArray(u.numpy(), dims=("chain", "draw", "parameter"), coords=coords)
    return loo_moment_match(tree, estimate, log_density, log_likelihood, upars=upars, var_name="y", pointwise=True)
