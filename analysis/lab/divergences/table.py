"""The table of KL divergences of posteriors from priors: how far each number can be trusted, and a check of it.

``python -m pyrodrop.analysis.lab.divergences.table`` prints it. For pairs with two densities the registered number is
compared with Monte Carlo, in standard errors, after removing the constant of an improper prior. At theta = 0 the density of
q is the probability of its masks, which leaves out the same constant. For pairs without a KL divergence the reason is
printed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from pyrodrop import priors
from pyrodrop.analysis.reports.terminal import pairs, print_table, text_table
from pyrodrop.devices import seeded
from pyrodrop.distributions import (
    BernoulliMixture,
    CorrelatedNormal,
    LowRankNormal,
    MultiplicativeNormal,
    RelaxedBernoulliMixture,
)
from pyrodrop.divergences import NoDivergence, convention, divergence

SHAPE, DRAWS = (3, 4), 100_000
EULER = 0.5772156649015329
# Per weight: E[ln q + ln |w|] plus this constant is the KL divergence that tends to zero for alpha -> infinity.
LOG_UNIFORM_CONSTANT = math.log(2 * math.pi * math.e) / 2 + (EULER + math.log(2)) / 2


def posteriors() -> dict[str, Distribution]:
    """An example of each kind of posterior, for a weight ``[3, 4]`` in float64."""
    m = torch.randn(SHAPE).double()
    return {
        "Bernoulli, theta = 0": BernoulliMixture(m, 0.3),
        "Bernoulli, theta > 0": BernoulliMixture(m, 0.3, 0.3),
        "DropConnect, theta > 0": BernoulliMixture(m, 0.3, 0.3, per="weight"),
        "concrete": RelaxedBernoulliMixture(m, torch.tensor(-1.0).double()),
        "Gaussian A": CorrelatedNormal(m, -1.0),
        "Gaussian B, sparse": MultiplicativeNormal(m, -1.0),
        "mean field": dist.Normal(m, 0.5).to_event(2),
        "low rank": LowRankNormal(m, 0.3 * torch.randn(12, 2).double(), torch.full((12,), 0.2).double()),
    }


def prior_examples() -> dict[str, Distribution]:
    """An example of each prior without latent hyperparameters, for a weight ``[3, 4]`` in float64. Priors with latent
    hyperparameters are left out: given these, they are Gaussian."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", priors.ImproperPrior)
        made: dict[str, Callable[..., Any]] = {
            "Gaussian": priors.Gaussian(0.7).expand,
            "log-uniform": priors.LogUniform().expand,
            "ARD": priors.ARD().expand,
            "ARD by input": priors.ARD("input").expand,
            "Laplace": priors.Laplace().expand,
            "Student t": priors.StudentT().expand,
        }
    like = torch.zeros(1).double()
    return {name: expand(*SHAPE, like=like) for name, expand in made.items()}


def cell(q: Any, p: Any) -> str:
    """How far the KL divergence of a pair can be trusted, and its distance from Monte Carlo if both have densities.

    Args:
        q, p: posterior and prior of a weight ``[3, 4]``.
    """
    value: Tensor = q.sample()
    try:
        number = divergence(q, p, value)
    except NoDivergence:
        return "refused"
    tag = convention(q, p).kind.replace("_", " ")
    try:
        kl_divergence(q, p)
    except NotImplementedError:  # no closed form
        return f"Monte Carlo ({tag})"
    try:
        draws = q.sample((DRAWS,))
        ratio = q.log_prob(draws) - p.log_prob(draws)
    except NotImplementedError:  # the posterior or the prior has no density
        return tag
    if not bool(torch.isfinite(ratio).all()) or isinstance(
        q, RelaxedBernoulliMixture
    ):  # sampled masks are relaxed, the KL divergence is not
        return tag
    if hasattr(getattr(p, "base_dist", p), "kl"):
        ratio = ratio + LOG_UNIFORM_CONSTANT * value.numel()
    se = float(ratio.std()) / math.sqrt(DRAWS)
    return f"{tag} ({float(number - ratio.mean()) / se:+.1f} s.e.)"


def main() -> None:
    """Print the table, and why some pairs have no KL divergence."""
    with seeded(0, torch.device("cpu")):
        rows, columns = posteriors(), prior_examples()
        texts = [["posterior", *columns]]
        reasons: dict[str, None] = {}
        for name, q in rows.items():
            texts.append([name, *(cell(q, p) for p in columns.values())])
            for p in columns.values():
                try:
                    divergence(q, p, q.sample())
                except NoDivergence as error:
                    reasons.setdefault(str(error).split(": ", 1)[1])
    title = "KL(posterior || prior): accuracy, and distance from Monte Carlo"
    print_table(text_table(title, texts, left=len(texts[0]), lines=True))
    print("refused:")
    pairs([("-", reason) for reason in reasons])


if __name__ == "__main__":
    main()
