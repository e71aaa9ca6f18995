"""Distributions of the dropout posteriors and their priors. They can be used on their own in any Pyro program."""

from pyrodrop.checks import public
from pyrodrop.distributions.bernoulli_mixture import BernoulliMixture, RelaxedBernoulliMixture
from pyrodrop.distributions.low_rank_normal import LowRankNormal
from pyrodrop.distributions.multiplicative_normal import CorrelatedNormal, CutNormal, MultiplicativeNormal
from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.unsampled import LogUniform, PooledNormal
from pyrodrop.distributions.weight import ConstantLeftOut, NoiseForm, WeightDistribution

__all__ = [
    "BernoulliMixture",
    "ConstantLeftOut",
    "CorrelatedNormal",
    "CutNormal",
    "InputUnits",
    "LogUniform",
    "LowRankNormal",
    "MultiplicativeNormal",
    "NoiseForm",
    "PooledNormal",
    "RelaxedBernoulliMixture",
    "WeightDistribution",
]

public(__name__, __all__)
