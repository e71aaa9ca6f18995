"""Draws of a Gaussian process, for its data tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrodrop.analysis.comparison.draws import Predictive, check_trained_on
from pyrodrop.analysis.gp import GaussianProcess, GaussianProcessClassifier
from pyrodrop.checks import shown
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.likelihoods import Categorical

_JOINT = 2000  # most points whose covariance is decomposed


def gp_draws(
    process: Any, train: Dataset, test_x: Tensor | None, num_samples: int, *, weights: bool, seed: int
) -> tuple[tuple[Predictive, Predictive | None], dict[Any, Any], dict[str, Any]]:
    """Draws at the training points and at further points.

    Args:
        test_x: further points ``[M, Q]``, or None.

    Returns:
        The draws at both sets of points, f ``[S, N, D]`` and ``[S, M, D]``; further variables of the group ``posterior``;
        and attributes. y is sampled given each draw of f. Draws are joint over all points if there are at most 2000 points.

    Raises:
        TypeError: `process` is no Gaussian process of `pyrodrop.analysis.gp`.
        ValueError: `weights` is True, or `train` are not the data of the process.
    """
    if not isinstance(process, GaussianProcess | GaussianProcessClassifier):
        raise TypeError(
            "fit must be a Fit, Replicates that are restarts, or a Gaussian process of pyrodrop.analysis.gp; got "
            f"{shown(process)}"
        )
    check_trained_on(process.data, train, "train")
    if weights:
        raise ValueError("a Gaussian process has no weights; leave weights=False")
    x = train.x if test_x is None else torch.cat([train.x, test_x.to(train.x)])
    f = process.predict(x, num_samples, seed=seed, joint=len(x) <= _JOINT).f.detach()
    posterior: dict[Any, Any] = {}
    if isinstance(process, GaussianProcess):
        distribution: Any = torch.distributions.Normal(f[..., 0], process.noise_sd)
        observed = train.y.double().reshape(len(train))
        posterior["noise_sd"] = "draw", np.full(num_samples, process.noise_sd), {"long_name": "standard deviation of y"}
    else:
        distribution = torch.distributions.Categorical(logits=f)
        observed = Categorical().as_target(train.y)
    with seeded(seed, f.device):
        y = distribution.sample()
    count = len(train)
    log_likelihood = rebuilt(lambda value: value[:, :count], distribution).log_prob(observed)
    at_train = Predictive(f=f[:, :count], y=y[:, :count], log_likelihood=log_likelihood)
    further = None if test_x is None else Predictive(f=f[:, count:], y=y[:, count:])
    attrs = {
        "guide": "Gaussian process",
        "prior": type(process.kernel).__name__,
        "log_evidence": process.log_evidence,
        "log_evidence_kind": process.evidence_kind,
        "hyperparameters": ", ".join(f"{n} = {v}" for n, v in process.hyperparameters.items()),
    }
    return (at_train, further), posterior, attrs
