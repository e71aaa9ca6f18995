"""Networks as Pyro models that declare the priors of their weights."""

if __name__ != "pyrodrop.models":
    raise ImportError("import pyrodrop.models, not models")

from pyrodrop.checks import public
from pyrodrop.models.lenet import LeNet5, LeNet300100
from pyrodrop.models.mlp import MLP
from pyrodrop.models.neighbours import Neighbours
from pyrodrop.models.network import NetworkModel, from_module
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.models.wide_and_deep import WideAndDeep

__all__ = [
    "MLP",
    "LeNet5",
    "LeNet300100",
    "Neighbours",
    "NetworkModel",
    "TrainedNetwork",
    "WideAndDeep",
    "from_module",
]

public(__name__, __all__)
