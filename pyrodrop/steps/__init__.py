"""The parts of a training step that all engines share: arguments, a loss, the buffers it updates, and an update."""

from pyrodrop.steps.batch import Arguments, Batch, Call, Shapes
from pyrodrop.steps.buffers import Buffers
from pyrodrop.steps.engine import Engine, Plan
from pyrodrop.steps.loss import Loss, Objective, OfPyro, Parameter
from pyrodrop.steps.update import Update

__all__ = [
    "Arguments",
    "Batch",
    "Buffers",
    "Call",
    "Engine",
    "Loss",
    "Objective",
    "OfPyro",
    "Parameter",
    "Plan",
    "Shapes",
    "Update",
]
