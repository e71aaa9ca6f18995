"""KL divergences of posteriors from priors, each with a `Convention` that describes how accurate it is."""

from pyrodrop.divergences import gaussian, pushforward
from pyrodrop.divergences.bernoulli import ATOMS, RELAXED, binary_entropy, lost_entropy
from pyrodrop.divergences.log_uniform import FORMS
from pyrodrop.divergences.log_uniform_kl import kingma, log_uniform_kl, molchanov
from pyrodrop.divergences.table import (
    EXACT,
    POINT,
    Convention,
    NoDivergence,
    convention,
    divergence,
    pair,
    refuse,
    worst,
)

__all__ = [
    "ATOMS",
    "EXACT",
    "FORMS",
    "POINT",
    "RELAXED",
    "Convention",
    "NoDivergence",
    "binary_entropy",
    "convention",
    "divergence",
    "gaussian",
    "kingma",
    "log_uniform_kl",
    "lost_entropy",
    "molchanov",
    "pair",
    "pushforward",
    "refuse",
    "worst",
]
