"""Networks as Pyro models that declare the priors of their weights."""

if __name__ != "pyrodrop.models":
    raise ImportError("import pyrodrop.models, not models")

from pyrodrop.models.mlp import MLP
from pyrodrop.models.network import NetworkModel, from_module

__all__ = ["MLP", "NetworkModel", "from_module"]
