"""One step of stochastic variational inference, traced once and replayed."""

from pyrodrop.stepper.engines import NAMES, Engine, Name, Plan, Pyro, choose, worth_compiling
from pyrodrop.stepper.graph import Batch, Parameter, evaluate
from pyrodrop.stepper.moving import Moving, Watch
from pyrodrop.stepper.untraceable import Untraceable

__all__ = [
    "NAMES",
    "Batch",
    "Engine",
    "Moving",
    "Name",
    "Parameter",
    "Plan",
    "Pyro",
    "Untraceable",
    "Watch",
    "choose",
    "evaluate",
    "worth_compiling",
]
