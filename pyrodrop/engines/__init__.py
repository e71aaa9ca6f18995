"""One step of stochastic variational inference, traced once and replayed."""

from pyrodrop.engines.choice import choose, worth_compiling
from pyrodrop.engines.engine import NAMES, Engine, Name, Plan
from pyrodrop.engines.graph import Batch, Parameter, evaluate
from pyrodrop.engines.moving import Moving, Watch
from pyrodrop.engines.pyro_engine import Pyro
from pyrodrop.engines.untraceable import Untraceable

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
