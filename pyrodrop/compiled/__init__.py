"""Engines: who makes the steps of stochastic variational inference (Pyro, a replayed trace, or a compiled graph)."""

from pyrodrop.steps.batch import Arguments, Batch, Call
from pyrodrop.steps.buffers import Buffers, Watch
from pyrodrop.compiled.choice import choose, choose_in_parts, choose_stacked, worth_compiling
from pyrodrop.compiled.engine import NAMES, Engine, Name, Plan
from pyrodrop.compiled.graph import Parameter, pure_graph
from pyrodrop.compiled.in_parts import InParts, Joint, Part
from pyrodrop.compiled.recorded import Recorded
from pyrodrop.steps.loss import MeanField, Objective, OfPyro
from pyrodrop.compiled.pyro_engine import Pyro
from pyrodrop.compiled.stacked import Stacked, StackedLoss
from pyrodrop.compiled.untraceable import Untraceable, first_that_works

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
