"""Training steps, densities and draws that are faster than by Pyro's handlers, with the same results up to rounding.

    Accelerated                             the steps of a fit by a recorded or compiled graph
    StackedLoss, accelerate                 the steps of many fits at once
    pure(function, inputs)                  a function of tensors as a `Program`, for densities and predictions
    calling(function, program, inputs)      a function that calls a program, as one graph, compiled or not
    compile_svi                             faster steps for a training loop that calls `SVI.step`

`Untraceable` says why a program cannot be recorded, and names the line of the program if it is known.
"""

from pyrodrop.compiled.inductor import calling
from pyrodrop.compiled.program import Program, pure
from pyrodrop.compiled.record import Untraceable
from pyrodrop.compiled.steps import Accelerated, StackedLoss, accelerate, bytes_of_step
from pyrodrop.compiled.svi import compile_svi

__all__ = [
    "Accelerated",
    "Program",
    "StackedLoss",
    "Untraceable",
    "accelerate",
    "bytes_of_step",
    "calling",
    "compile_svi",
    "pure",
]
