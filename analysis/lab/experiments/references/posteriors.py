"""The approximate posteriors that are compared with the references: every one is trained from several starts.

Each single fit is a posterior, and the equal mixture of all fits is an ensemble: for point estimates a deep ensemble
(Lakshminarayanan et al. 2017), for dropout networks the stochastic ensembles of Balabanov, Mehlig & Linander (2023),
https://arxiv.org/abs/2212.08123. All have the Gaussian prior of the sampled model, so that they approximate the same
posterior. Type A of Gaussian dropout has no density in weight space and no KL divergence from that prior, so it is left out.
Inputs of the network are never dropped.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import torch

from pyrodrop import fit_replicates, guides, schedules
from pyrodrop.checks import EngineName as Name
from pyrodrop.data import Dataset
from pyrodrop.likelihoods import Gaussian
from pyrodrop.models import NetworkModel
from pyrodrop.training.replicates import Replicates
from pyrodrop.zoo.exact import Problem

THETA = 0.05  # of the mixture
LEARNING_RATES = {"logit": 0.1, "raw_alpha": 0.03, "log_variance": 0.03, "": 0.01}  # by substring of a parameter's name

POSTERIORS: Mapping[str, Callable[[NetworkModel], guides.Guide]] = {
    "point": guides.Point,
    "MC dropout .05": functools.partial(guides.BernoulliDropout, drop_rate=0.05, mask_input=False),
    "MC dropout .5": functools.partial(guides.BernoulliDropout, drop_rate=0.5, mask_input=False),
    f"mixture .05, theta {THETA:g}": functools.partial(
        guides.BernoulliDropout, drop_rate=0.05, mask_input=False, theta=THETA
    ),
    "concrete dropout": functools.partial(guides.ConcreteDropout, mask_input=False),
    "variational dropout B": functools.partial(
        guides.VariationalDropout, kind="B", rates="weight", max_alpha=math.inf, drop_rate=0.01
    ),
    "mean field": guides.MeanField,
    "low rank 4": functools.partial(guides.LowRank, rank=4),
}


def learning_rate(name: str) -> float:
    """The learning rate of a parameter by its name; it is larger for logarithms of the noise, which must move far."""
    return next(rate for pattern, rate in LEARNING_RATES.items() if pattern in name)


def learned_precisions(
    problem: Problem, data: Dataset, *, members: int, steps: int, engine: Name, seed: int
) -> list[float]:
    """The noise precisions that mean-field fits from different starts learn by maximising the ELBO.

    Raises:
        ValueError: the problem's likelihood is not Gaussian.
    """
    published = problem.likelihood()
    if not isinstance(published, Gaussian):
        raise ValueError(
            f"precision must be 'published' where there is no Gaussian noise; got 'learned' for {problem.name}, whose "
            f"likelihood is {published.describe()}"
        )
    likelihood = functools.partial(Gaussian, float(published.precision), learned=True)  # type: ignore[arg-type]
    model = dataclasses.replace(problem, likelihood=likelihood).model()
    fits = trained("mean field", model, data, members=members, steps=steps, engine=engine, seed=seed)
    return [float(fit.model.likelihood.precision.detach()) for fit in fits]  # type: ignore[attr-defined]


def trained(
    name: str, model: NetworkModel, data: Dataset, *, members: int, steps: int, engine: Name, seed: int
) -> Replicates:
    """Fits of one posterior from different starts."""
    torch.manual_seed(seed)
    return fit_replicates(
        model,
        POSTERIORS[name](model),
        data,
        count=members,
        steps=steps,
        lr=learning_rate,
        lr_schedule=schedules.cosine(steps),
        estimator="local",
        engine=engine,
        starts="new",
        device="cpu",
        seed=seed,
        progress=False,
    )
