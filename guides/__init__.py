"""Approximate posteriors over the weights of a network, as Pyro guides."""

if __name__ != "pyrodrop.guides":
    raise ImportError("import pyrodrop.guides, not guides")

from pyrodrop.checks import public
from pyrodrop.guides.bernoulli_dropout import BernoulliDropout, DropConnect
from pyrodrop.guides.concrete_dropout import ConcreteDropout
from pyrodrop.guides.ensemble import Ensemble
from pyrodrop.guides.exact_last_layer import ExactLastLayer
from pyrodrop.guides.from_noise import FromNoise, from_noise
from pyrodrop.guides.gaussian_dropout import GaussianDropout
from pyrodrop.guides.guide import Guide, RateKind
from pyrodrop.guides.log_normal_dropout import LogNormalDropout
from pyrodrop.guides.low_rank import LowRank
from pyrodrop.guides.mean_field import MeanField
from pyrodrop.guides.point import Point
from pyrodrop.guides.sparse_dropout import ARDDropout, SparseDropout
from pyrodrop.guides.variational_dropout import VariationalDropout

__all__ = [
    "ARDDropout",
    "BernoulliDropout",
    "ConcreteDropout",
    "DropConnect",
    "Ensemble",
    "ExactLastLayer",
    "FromNoise",
    "GaussianDropout",
    "Guide",
    "LogNormalDropout",
    "LowRank",
    "MeanField",
    "Point",
    "RateKind",
    "SparseDropout",
    "VariationalDropout",
    "from_noise",
]

public(__name__, __all__)
