"""Leave-one-out cross-validation with a refit for every observation whose importance ratios are unreliable.

    elpd_n = ln p(y_n | other observations) by importance sampling              if k-hat of n is at most 0.7, as in `loo`
           = ln mean_s p(y_n | W_s),   W_s ~ q fitted without observation n      otherwise

Vehtari, Gelman & Gabry (2017), Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC,
https://arxiv.org/abs/1507.04544, section 4.3. The first line estimates the density under the exact posterior, the
second line the density under a fit: they agree only as far as the fit approximates its posterior.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyrodrop.analysis.comparison.held_out import log_density
from pyrodrop.analysis.comparison.khat import LIMIT
from pyrodrop.analysis.comparison.loo import Loo, loo, se_of_sum
from pyrodrop.checks import shown
from pyrodrop.data import Data, Dataset
from pyrodrop.models.network import mixes_examples
from pyrodrop.training.replicates import fit_replicates
from pyrodrop.training.result import Fit, rows_of


def reloo(
    fit: Fit,
    model: Any,
    guide: Any,
    data: Data | None = None,
    num_samples: int = 2000,
    *,
    seed: int = 0,
    **settings: Any,
) -> Loo:
    """`loo`, with a refit for every observation whose k-hat is above 0.7. Refits are trained together, as replicates.

    The refits keep the standardisation of the whole data set, which is a part of the model.

    Args:
        fit: a fit.
        model, guide: the untrained model and guide that were passed to `pyrodrop.fit`. Every refit starts from new weights
            (``starts="new"``), unless `settings` contain ``starts="model"``.
        data: the training data, N observations; required for a loaded fit.
        num_samples: number of draws from q and from every refit, at least 25.
        seed: seed of the draws and of the refits.
        settings: further arguments of `pyrodrop.fit` for the refits: steps, lr, batch_size, estimator ...

    Returns:
        A `Loo`; k-hat of a refitted observation is 0.

    Raises:
        ValueError: the importance ratios of the fit do not exist (then use `kfold`), or examples depend on each other in
            the network; otherwise as `loo`.
        TypeError: `fit` is not a `Fit`.
        FloatingPointError: the loss of a refit is not finite.
    """
    if not isinstance(fit, Fit):
        raise TypeError(
            f"reloo refits a guide, so fit must be a Fit; got {shown(fit)}. For draws of pyrodrop.sample, "
            "sample again without the observation, or use log_density with held-out data"
        )
    plain = loo(fit, data, num_samples, force=True, seed=seed)
    chosen = rows_of(fit, "reloo") if data is None else Dataset.of(data)
    assert chosen is not None  # or loo raises
    if plain.reason:
        raise ValueError(
            f"reloo refits where importance ratios are unreliable, and here there are none: {plain.reason}. Use kfold, with "
            "k = N to leave out one observation at a time"
        )
    if mixes_examples(model, chosen.x):
        raise ValueError(
            "reloo leaves out rows of the data, but in this network the output of one example depends on the others, as in "
            "a graph: leave the held-out observations out in a likelihood of your own instead"
        )
    left_out = (~(plain.pointwise[1] <= LIMIT)).nonzero().flatten().tolist()
    if not left_out:
        return plain
    sets = [chosen.rows(torch.arange(len(chosen)) != n) for n in left_out]
    refits = fit_replicates(model, guide, sets, count=len(sets), seed=seed, **{"starts": "new", **settings})
    if refits.failed:
        raise FloatingPointError(
            f"the loss of the refits without rows {[left_out[n] for n in refits.failed]} is not finite"
        )
    elpd, k = (values.clone() for values in plain.pointwise)
    for n, refit in zip(left_out, refits, strict=True):
        elpd[n] = log_density(refit, chosen.rows(torch.tensor([n])), num_samples, seed=seed)[0]
        k[n] = 0.0
    return _replaced(plain, elpd, k)


def _replaced(plain: Loo, elpd: Tensor, k: Tensor) -> Loo:
    """The result with other values per observation, in `elpd_data` too, as ArviZ's `reloo` would compute it."""
    total, se = float(elpd.sum()), se_of_sum(elpd)
    p = plain.p + plain.elpd - total
    whole = copy.deepcopy(plain.elpd_data)
    whole.elpd_i.values[:], whole.pareto_k.values[:] = elpd.numpy(), k.numpy()
    whole.elpd, whole.se, whole.p, whole.warning = total, se, p, bool((k > whole.good_k).any())
    return replace(plain, elpd=total, se=se, p=p, k_hat=float(k.max()), pointwise=(elpd, k), elpd_data=whole)
