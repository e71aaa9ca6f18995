"""Engines: who makes the steps of stochastic variational inference (Pyro, a replayed trace, or a compiled graph)."""

from pyrodrop.engines.choice import choose, choose_in_parts, worth_compiling
from pyrodrop.engines.engine import NAMES, Engine, Name, Plan
from pyrodrop.engines.graph import Batch, Parameter, evaluate, pure_graph
from pyrodrop.engines.in_parts import InParts, Joint, Part
from pyrodrop.engines.loss import Loss
from pyrodrop.engines.moving import Moving, Watch
from pyrodrop.engines.pyro_engine import Pyro
from pyrodrop.engines.stacked_in_blocks import StackedInBlocks
from pyrodrop.engines.untraceable import Untraceable

__all__ = [
    "NAMES",
    "Batch",
    "Engine",
    "InParts",
    "Joint",
    "Loss",
    "Moving",
    "Name",
    "Parameter",
    "Part",
    "Plan",
    "Pyro",
    "StackedInBlocks",
    "Untraceable",
    "Watch",
    "choose",
    "choose_in_parts",
    "evaluate",
    "pure_graph",
    "worth_compiling",
]
