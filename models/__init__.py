"""Networks as Pyro models that declare the priors of their weights."""

if __name__ != "pyrodrop.models":
    raise ImportError("import pyrodrop.models, not models")

from pyrodrop.models.conv_net import ConvNet
from pyrodrop.models.lenet import LeNet5, LeNet300100
from pyrodrop.models.mlp import MLP
from pyrodrop.models.network import NetworkModel, from_module
from pyrodrop.models.prior_function import WithPriorFunction
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.models.wide_and_deep import WideAndDeep

__all__ = [
    "MLP",
    "ConvNet",
    "LeNet5",
    "LeNet300100",
    "NetworkModel",
    "TrainedNetwork",
    "WideAndDeep",
    "WithPriorFunction",
    "from_module",
]
