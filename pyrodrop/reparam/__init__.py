"""Estimators of the gradient of the expected log likelihood, as Pyro reparameterisation strategies.

    shared        one weight sample for the whole minibatch; no strategy is needed
    per_example   one weight sample per example
    local         activations are sampled from the distribution that the posterior induces, independently per example

and for prediction, which samples functions:

    SharedNoise        one noise sample per function, the same for every example

The expected gradient is the same under all of them, with one exception, which `pyrodrop.reparam.local` explains: noise of
single weights in networks whose examples have several rows, such as convolutions and transformers.

Kingma, Salimans & Welling (2015), Variational Dropout and the Local Reparameterization Trick, section 2.2,
https://arxiv.org/abs/1506.02557.
"""

from pyrodrop.checks import public
from pyrodrop.reparam.lazy import LazyWeight
from pyrodrop.reparam.local import LocalReparam
from pyrodrop.reparam.per_example import PerExampleReparam
from pyrodrop.reparam.reparameterize import STRATEGIES, reparameterize
from pyrodrop.reparam.shared_noise import SharedNoise

__all__ = [
    "STRATEGIES",
    "LazyWeight",
    "LocalReparam",
    "PerExampleReparam",
    "SharedNoise",
    "reparameterize",
]

public(__name__, __all__)
