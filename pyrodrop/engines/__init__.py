"""Engines: who makes the steps of stochastic variational inference (Pyro, a replayed trace, or a compiled graph)."""

from pyrodrop.engines.batch import Arguments, Batch, Call
from pyrodrop.engines.buffers import Buffers, Watch
from pyrodrop.engines.choice import choose, choose_in_parts, choose_stacked, worth_compiling
from pyrodrop.engines.engine import NAMES, Engine, Name, Plan
from pyrodrop.engines.graph import Parameter, pure_graph
from pyrodrop.engines.in_parts import InParts, Joint, Part
from pyrodrop.engines.loss import Loss
from pyrodrop.engines.objective import MeanField, Objective, OfPyro
from pyrodrop.engines.pyro_engine import Pyro
from pyrodrop.engines.stacked import Stacked, StackedLoss
from pyrodrop.engines.untraceable import Untraceable, first_that_works

__all__ = [
    "NAMES",
    "Arguments",
    "Batch",
    "Buffers",
    "Call",
    "Engine",
    "InParts",
    "Joint",
    "Loss",
    "MeanField",
    "Name",
    "Objective",
    "OfPyro",
    "Parameter",
    "Part",
    "Plan",
    "Pyro",
    "Stacked",
    "StackedLoss",
    "Untraceable",
    "Watch",
    "choose",
    "choose_in_parts",
    "choose_stacked",
    "first_that_works",
    "pure_graph",
    "worth_compiling",
]
