"""KL divergences of posteriors from priors, each with a `Convention` that describes how accurate it is."""

from pyrodrop.checks import public
from pyrodrop.divergences import gaussian, log_uniform
from pyrodrop.divergences.bernoulli import ATOMS, RELAXED
from pyrodrop.divergences.log_uniform import log_uniform_kl
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
    "POINT",
    "RELAXED",
    "Convention",
    "NoDivergence",
    "convention",
    "divergence",
    "gaussian",
    "log_uniform",
    "log_uniform_kl",
    "pair",
    "refuse",
    "worst",
]

public(__name__, __all__)
