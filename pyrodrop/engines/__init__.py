"""Engines: who makes the steps of stochastic variational inference (Pyro, a replayed trace, or a compiled graph)."""

from pyrodrop.engines.choice import choose, worth_compiling
from pyrodrop.engines.engine import NAMES, Engine, Name, Plan
from pyrodrop.engines.graph import Batch, Parameter, evaluate, pure_graph
from pyrodrop.engines.loss import Loss
from pyrodrop.engines.moving import Moving, Watch
from pyrodrop.engines.pyro_engine import Pyro
from pyrodrop.engines.untraceable import Untraceable

__all__ = [
    "NAMES",
    "Batch",
    "Engine",
    "Loss",
    "Moving",
    "Name",
    "Parameter",
    "Plan",
    "Pyro",
    "Untraceable",
    "Watch",
    "choose",
    "evaluate",
    "pure_graph",
    "worth_compiling",
]
