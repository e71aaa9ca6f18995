"""Estimators of the likelihood's gradient, as Pyro reparameterisation strategies.

    shared        one weight draw for the whole minibatch: no strategy at all
    per_example   one weight draw per example
    local         the activations' own distribution, one noise per example and output (or input unit, for dropout)
    flipout       one draw per minibatch, its signs flipped by example

and for prediction, which draws functions or points:

    SharedNoise        one noise per draw, the same for every example
    MarginalReparam    `local`, a noise per draw and example

The expected gradient is the same under all of them, with one exception that `LocalReparam` explains: noise of the weights
themselves in networks whose examples have several rows, such as convolutions and transformers.

Kingma, Salimans & Welling (2015), Variational Dropout and the Local Reparameterization Trick, section 2.2.
"""

from pyrodrop.reparam.flipout import FlipoutReparam
from pyrodrop.reparam.lazy import LazyWeight
from pyrodrop.reparam.local import LocalReparam
from pyrodrop.reparam.marginal import MarginalReparam
from pyrodrop.reparam.per_example import PerExampleReparam
from pyrodrop.reparam.reparameterize import STRATEGIES, reparameterize
from pyrodrop.reparam.shared_noise import SharedNoise

__all__ = [
    "STRATEGIES",
    "FlipoutReparam",
    "LazyWeight",
    "LocalReparam",
    "MarginalReparam",
    "PerExampleReparam",
    "SharedNoise",
    "reparameterize",
]
