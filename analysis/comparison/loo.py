"""Leave-one-out cross-validation of a fit, corrected for q not being the posterior.

    elpd = sum_n ln sum_s w_ns p(y_n | W_s) / sum_s w_ns
    w_ns = p(W_s, y) / q(W_s) / p(y_n | W_s)                     Pareto-smoothed over s, for every n

Magnusson, Andersen, Jonasson & Vehtari (2019), Bayesian Leave-One-Out Cross-Validation for Large Data, section 2.3. Without
the first ratio it is the leave-one-out density of nothing: draws of q taken for draws from the posterior. The ratio does not
exist where q or the prior has no density (see `pyrodrop.analysis.comparison.draws`); elpd is then NaN, for a reason.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import xarray as xr
from torch import Tensor

from pyrodrop.analysis.comparison.az import az
from pyrodrop.analysis.comparison.draws import draws_of
from pyrodrop.analysis.comparison.khat import LEAST, LIMIT, k_hat
from pyrodrop.data import Data, Dataset
from pyrodrop.training.fitted import Fit


class UnreliableLoo(ValueError):
    """Importance ratios whose mean a sample cannot find."""


@dataclass(frozen=True)
class Loo:
    """Leave-one-out log density, in nats for the whole data set.

    Attributes:
        elpd, se: the sum over observations and its standard error; NaN where it does not exist, for
        reason: which is empty otherwise.
        p: effective number of parameters: sum_n ln mean_s p(y_n | W_s), under q as it is, minus elpd.
        k_hat: the largest of the observations'.
        k_hat_q: of the ratios p / q alone, with no observation left out.
        pointwise: elpd and k-hat of every observation, ``[N]`` each.
        elpd_data: what ArviZ made of it, for its `compare` and `plot_khat`; None where it does not exist.
    """

    elpd: float
    se: float
    p: float
    k_hat: float
    k_hat_q: float
    pointwise: tuple[Tensor, Tensor]
    reason: str = ""
    elpd_data: Any = None

    def __str__(self) -> str:
        if self.reason:
            return f"NaN: {self.reason}"
        return f"{self.elpd:.4g} +- {self.se:.2g} nats (k-hat {self.k_hat:.2f}, of q {self.k_hat_q:.2f})"


def loo(
    fit: Fit,
    data: Data | None = None,
    num_samples: int = 2000,
    *,
    force: bool = False,
    seed: int = 0,
) -> Loo:
    """Leave-one-out cross-validation by importance sampling from q.

    Args:
        fit: one fit; restarts are approximations of their own, each with its own.
        data: what it was trained on; needed after loading.
        num_samples: draws from q.
        force: give the estimate even where k-hat says that it cannot be relied upon.
        seed: of the draws.

    Raises:
        UnreliableLoo: k-hat of some observation is above .7, and it was not forced. `kfold` and held-out log density
            need no importance ratios.
    """
    if not isinstance(fit, Fit):
        raise TypeError(
            "loo corrects draws of one fit by their densities; got a "
            f"{type(fit).__name__}. For replicates take each, for anything else log_density(held-out data)"
        )
    chosen = fit.data if data is None else Dataset.of(data)
    if chosen is None:
        raise ValueError("a loaded fit has no training data with it; give them as loo(fit, data)")
    if num_samples < LEAST:
        raise ValueError(f"num_samples is the number of draws, for k-hat at least {LEAST}; got {num_samples}")
    draws = draws_of(fit, chosen, num_samples=num_samples, seed=seed)
    if draws.log_joint is None or draws.log_q is None:
        nothing = torch.full((len(chosen),), math.nan, dtype=torch.float64)
        return Loo(math.nan, math.nan, math.nan, math.nan, math.nan, (nothing, nothing), draws.no_density)
    given = draws.train.log_likelihood
    assert given is not None
    tree = xr.DataTree.from_dict({"log_likelihood": xr.Dataset({"y": _sampled(given, "obs_id")})})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Estimated shape parameter of Pareto")  # said below, with what to do
        found = az.loo_approximate_posterior(
            tree, _sampled(draws.log_joint), _sampled(draws.log_q), var_name="y", pointwise=True
        )
    elpd, k = (torch.as_tensor(values.values.copy()).double() for values in (found.elpd_i, found.pareto_k))
    result = Loo(
        elpd=float(found.elpd),
        se=float(found.se),
        p=float(found.p),
        k_hat=float(k.max()),
        k_hat_q=k_hat(draws.log_joint - draws.log_q),
        pointwise=(elpd, k),
        elpd_data=found,
    )
    if not force and not result.k_hat <= LIMIT:
        raise UnreliableLoo(
            f"k-hat is {result.k_hat:.2f} at its largest and above {LIMIT} for {int((~(k <= LIMIT)).sum())} of {len(k)} "
            f"observations ({result.k_hat_q:.2f} for q itself): the importance ratios have no usable mean, and elpd no "
            "meaning. Use held-out log density or kfold; force=True gives the number all the same"
        )
    return result


def _sampled(values: Tensor, *dims: str) -> xr.DataArray:
    """``[S, ...]`` as one chain, in float64."""
    array = xr.DataArray(values.double().numpy()[None], dims=("chain", "draw", *dims))
    return array.assign_coords({dim: range(size) for dim, size in array.sizes.items()})
