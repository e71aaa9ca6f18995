"""Estimators of the likelihood's gradient, as Pyro reparameterisation strategies.

    shared        one weight draw for the whole minibatch: no strategy at all
    per_example   one weight draw an example
    local         the activations' own law, one noise an example and output (or input unit, for dropout)
    flipout       one draw a minibatch, its signs flipped by example

Kingma, Salimans & Welling (2015), Variational Dropout and the Local Reparameterization Trick, section 2.2.
"""

from pyrodrop.reparam.flipout import FlipoutReparam
from pyrodrop.reparam.lazy import LazyWeight
from pyrodrop.reparam.local import LocalReparam
from pyrodrop.reparam.per_example import PerExampleReparam
from pyrodrop.reparam.reparameterize import STRATEGIES, reparameterize

__all__ = ["STRATEGIES", "FlipoutReparam", "LazyWeight", "LocalReparam", "PerExampleReparam", "reparameterize"]
