"""Leave-one-out cross-validation of a fit, corrected for the difference between q and the exact posterior.

    elpd = sum_n ln sum_s w_ns p(y_n | W_s) / sum_s w_ns
    w_ns = p(W_s, y) / q(W_s) / p(y_n | W_s)                     Pareto-smoothed over s, for every n

Magnusson, Andersen, Jonasson & Vehtari (2019), Bayesian Leave-One-Out Cross-Validation for Large Data, section 2.3,
https://arxiv.org/abs/1904.10679. Without the first ratio the samples of q would be treated as samples of the posterior, and
the result would estimate neither. The ratio does not exist if q or the prior has no density (see
`pyrodrop.analysis.comparison.draws`); elpd is then NaN, and `reason` says why. For draws of the exact posterior
(`pyrodrop.sample`) the first ratio is 1: Vehtari, Gelman & Gabry (2017), https://arxiv.org/abs/1507.04544.

Under `guides.ExactLastLayer`, W are the layers below alone, and p(y_n | y_-n, W), the regression of the last layer without
row n in closed form, is in place of p(y_n | W): the first ratio is then p(W, y) / q(W), with the last layer integrated out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import arviz_stats
import torch
import xarray as xr
from torch import Tensor

from pyrodrop.analysis.comparison.draws import check_trained_on, draws_of
from pyrodrop.analysis.comparison.khat import LEAST, LIMIT, k_hat
from pyrodrop.analysis.comparison.program_draws import program_draws
from pyrodrop.checks import Count, Flag, Seed, checked, shown
from pyrodrop.data import Data, Dataset
from pyrodrop.guides import ExactLastLayer
from pyrodrop.models import NetworkModel
from pyrodrop.parts import Described
from pyrodrop.sampling import Sampled
from pyrodrop.threads import exclusive
from pyrodrop.training.result import Fit, data_for, rows_of
from pyrodrop.training.rows import arguments_of

_INSTEAD = {
    False: "Use held-out log density or kfold",
    True: "Take a guide that is nearer to the posterior, such as AutoMultivariateNormal, or fit the program without some "
    "observations and average their densities in to_arviz(fit, held_out, log_likelihood=True)",
}


class UnreliableLoo(ValueError):
    """The importance ratios have too heavy a tail for their mean to be estimated."""


@dataclass(frozen=True, repr=False)
class Loo(Described):
    """Leave-one-out log density, in nats for the whole data set.

    Attributes:
        elpd: the sum over observations; NaN if it does not exist.
        se: its standard error.
        p: effective number of parameters: sum_n ln mean_s p(y_n | W_s), with W_s ~ q, minus elpd.
        k_hat: the largest k-hat over observations.
        k_hat_q: k-hat of the ratios p / q, with no observation left out; None for draws of the exact posterior.
        pointwise: elpd and k-hat of every observation, ``[N]`` each.
        reason: why elpd does not exist; empty if it does.
        observations: the values of the observations, in one row, in float64.
        elpd_data: ArviZ's result, for its `compare` and `plot_khat`; None if elpd does not exist.
    """

    elpd: float
    se: float
    p: float
    k_hat: float
    k_hat_q: float | None
    pointwise: tuple[Tensor, Tensor]
    reason: str = ""
    observations: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))
    elpd_data: Any = None

    def describe(self) -> str:
        if self.reason:
            return f"NaN: {self.reason}. Use held-out log density"
        of_q = "" if self.k_hat_q is None else f", of q {self.k_hat_q:.2f}"
        return f"{self.elpd:.4g} +- {self.se:.2g} nats (k-hat {self.k_hat:.2f}{of_q})"


@checked
@exclusive()
def loo(
    fit: Fit | Sampled,
    data: Data | Mapping[str, Any] | None = None,
    num_samples: Annotated[int, Count("the number of draws, for k-hat,", least=LEAST)] = 2000,
    *,
    force: Annotated[bool, Flag("whether to return an estimate that k-hat says is unreliable")] = False,
    seed: Seed = 0,
) -> Loo:
    """Leave-one-out cross-validation by importance sampling from q, or from the exact posterior.

    Args:
        fit: a fit, or a `Sampled`. Pass replicates one at a time, as they are different approximations. The observations of
            a Pyro program are the entries of the log densities of its observed sites, one after another, without those that
            are masked; they must be independent given the latent sites.
        data: the training data of the fit, N observations; required for a loaded fit. For a Pyro program, the mapping of
            its arguments.
        num_samples: number of draws from q. For a `Sampled` all its draws are used.
        force: whether to return the estimate even if it is unreliable according to k-hat.
        seed: seed of the draws.

    Returns:
        A `Loo`, in nats for the whole data set.

    Raises:
        UnreliableLoo: k-hat of some observation is above 0.7, and `force` is False. `kfold` and held-out log density need
            no importance ratios.
        TypeError: `fit` is neither a `Fit` nor a `Sampled`, or an argument is of the wrong kind.
        ValueError: `num_samples` is below 25, a loaded fit has no `data`, draws are of a posterior with a
            ``likelihood_power`` other than 1, or data are not those of the fit or draws. A program has no observation, one
            with a factor (`pyro.poutine.scale`), or a plate that takes subsamples.
    """
    if isinstance(fit, Sampled):
        return _checked(_of_exact(fit, data), force)
    if not isinstance(fit, Fit):
        raise TypeError(
            f"fit must be a Fit or a Sampled, whose draws have densities; got {shown(fit)}. Pass each of several "
            "replicates, and use log_density with held-out data for anything else"
        )
    weighed = (_of_network if isinstance(fit.model, NetworkModel) else _of_program)(fit, data, num_samples, seed)
    if weighed.reason:
        nothing = torch.full((weighed.log_likelihood.shape[1],), math.nan, dtype=torch.float64)
        return Loo(math.nan, math.nan, math.nan, math.nan, math.nan, (nothing, nothing), weighed.reason)
    tree = xr.DataTree.from_dict({"log_likelihood": xr.Dataset({"y": _sampled(weighed.left_out, "obs_id")})})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Estimated shape parameter of Pareto")  # `_checked` raises instead
        estimate = arviz_stats.loo_approximate_posterior(
            tree, _sampled(weighed.log_joint), _sampled(weighed.log_q), var_name="y", pointwise=True
        )
    log_mean = weighed.log_likelihood.double().logsumexp(0) - math.log(num_samples)
    estimate.p = float(log_mean.sum()) - float(estimate.elpd)
    result = _result(estimate, k_hat(weighed.log_joint - weighed.log_q), weighed.observations)
    return _checked(result, force, program=not isinstance(fit.model, NetworkModel))


class _Weighed(NamedTuple):
    """Draws of q: ln p(y_n | W_s) ``[S, N]``, what importance weights leave one row out of, ln p(W_s, y) and ln q(W_s)."""

    log_likelihood: Tensor
    left_out: Tensor
    log_joint: Tensor
    log_q: Tensor
    observations: Tensor
    reason: str


def _of_network(fit: Fit, data: Any, num_samples: int, seed: int) -> _Weighed:
    chosen = rows_of(fit, "loo") if data is None else Dataset.of(data)
    if chosen is None:
        raise ValueError(
            "this fit does not hold its training data, as loaded fits, readings and those that read them; pass them, "
            "as loo(fit, data)"
        )
    check_trained_on(fit, chosen, "data")
    exact = isinstance(fit.guide, ExactLastLayer) and not fit.guide.of_labels
    draws = draws_of(fit, chosen, num_samples=num_samples, left_out=exact, seed=seed)
    log_likelihood, nothing = draws.train.log_likelihood, torch.empty(0)
    assert log_likelihood is not None
    left_out = log_likelihood if draws.left_out is None else draws.left_out
    densities = (nothing, nothing) if draws.log_joint is None or draws.log_q is None else (draws.log_joint, draws.log_q)
    return _Weighed(log_likelihood, left_out, *densities, chosen.y.double().flatten().cpu(), draws.no_density)


def _of_program(fit: Fit, data: Any, num_samples: int, seed: int) -> _Weighed:
    draws = program_draws(fit, arguments_of(data_for(fit, "loo", data), fit.device), num_samples, seed)
    if draws.weighted:
        raise ValueError(
            f"loo needs the log likelihood of the observations; that of {', '.join(draws.weighted)} has a factor, of "
            "pyro.poutine.scale: fit the program without it"
        )
    groups = [torch.as_tensor(values).flatten(1) for _, values in (draws.log_likelihood or {}).values()]
    if not groups and not draws.no_density:
        raise ValueError("loo needs a program with observations, pyro.sample(..., obs=...), that are not all masked")
    every = torch.cat([torch.empty(num_samples, 0), *groups], 1)
    return _Weighed(every, every, draws.log_joint, draws.log_q, draws.observations, draws.no_density)


def _of_exact(sampled: Sampled, data: Any) -> Loo:
    """`loo` from draws of the exact posterior."""
    if sampled.settings.get("likelihood_power", 1.0) != 1:
        raise ValueError(
            f"leaving one out needs draws with likelihood_power 1; these have {sampled.settings['likelihood_power']}"
        )
    chosen = sampled.own_data("loo", data)
    log_likelihood = sampled.log_likelihood(chosen).double().numpy()
    array = xr.DataArray(log_likelihood, dims=("chain", "draw", "obs_id"))
    array = array.assign_coords({dim: range(size) for dim, size in array.sizes.items()})
    tree = xr.DataTree.from_dict({"log_likelihood": xr.Dataset({"y": array}), "posterior": xr.Dataset({"y": array})})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Estimated shape parameter of Pareto")
        estimate = arviz_stats.loo(tree, var_name="y", pointwise=True)
        return _result(estimate, None, chosen.y.double().flatten().cpu())


def _result(estimate: Any, k_hat_q: float | None, observations: Tensor) -> Loo:
    """Convert ArviZ's result to a `Loo`."""
    elpd, k = (torch.as_tensor(values.values.copy()).double() for values in (estimate.elpd_i, estimate.pareto_k))
    return Loo(
        elpd=float(estimate.elpd),
        se=se_of_sum(elpd),
        p=float(estimate.p),
        k_hat=float(k.max()),
        k_hat_q=k_hat_q,
        pointwise=(elpd, k),
        observations=observations,
        elpd_data=estimate,
    )


def se_of_sum(terms: Tensor) -> float:
    """Standard error of the sum of independent terms ``[N]``; NaN for a single term."""
    return float(terms.std() * math.sqrt(len(terms))) if len(terms) > 1 else math.nan


def _checked(result: Loo, force: bool, program: bool = False) -> Loo:
    """The result; an `UnreliableLoo` if k-hat is too large and `force` is False."""
    k = result.pointwise[1]
    if not force and not result.k_hat <= LIMIT:
        of_q = "" if result.k_hat_q is None else f" (q itself has {result.k_hat_q:.2f})"
        raise UnreliableLoo(
            f"the largest k-hat is {result.k_hat:.2f}, and {int((~(k <= LIMIT)).sum())} of {len(k)} observations have one "
            f"above {LIMIT}{of_q}: the mean of the importance ratios cannot be estimated, and "
            f"elpd is unreliable. {_INSTEAD[program]}; force=True returns the estimate nevertheless"
        )
    return result


def _sampled(values: Tensor, *dims: str) -> xr.DataArray:
    """``[S, ...]`` as one chain, in float64."""
    array = xr.DataArray(values.double().numpy()[None], dims=("chain", "draw", *dims))
    return array.assign_coords({dim: range(size) for dim, size in array.sizes.items()})
