"""Problems with one input, whose uncertainty can be judged from a plot, with the guide that was best on them.

A network 1-50-1 with tanh units, the exact posterior of its last layer above a mean field of the first, and the priors and
noise of `priors.from_gp` for the training rows, which are written down here so that an entry is built without the data.
Rows, network and training are those of docs/twenty-problems.md. Of the six guides there, this one has the log densities that
are nearest to those of the exact posterior, by the sum of the differences over the three problems.

It does not solve *in-between*: 38 % of the test rows, most of which are in the gap, are in their 95 % intervals. The exact
posterior under these priors has a smaller log density there, and a mean field or dropout a far smaller one.
"""

from __future__ import annotations

import functools

from pyrodrop import likelihoods, priors
from pyrodrop.data import Dataset
from pyrodrop.guides import ExactLastLayer
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.zoo.entry import Check, Entry, settings

UNITS, STEPS = 50, 3000
SCALES = {  # of the weights and biases of the first and of the last layer, and the precision of the noise
    "motorcycle": (7.196, 3.097, 0.2041, 0.4541, 0.00191),
    "snelson": (6.597, 7.948, 0.2648, 0.4461, 12.24),
    "in-between": (11.85, 12.32, 0.2976, 0.4803, 70.11),
}


def _model(data: Dataset, *, scales: tuple[float, ...]) -> NetworkModel:
    first, first_bias, last, last_bias, precision = scales
    return MLP(
        [1, UNITS, 1],
        "tanh",
        prior={"layers.0.weight": priors.Gaussian(first), "layers.1.weight": priors.Gaussian(last)},
        bias_prior={"layers.0.bias": priors.Gaussian(first_bias), "layers.1.bias": priors.Gaussian(last_bias)},
        likelihood=likelihoods.Gaussian(precision),
        seed=None,
    )


TOYS = {
    "motorcycle": (
        "head acceleration after an impact",
        "Silverman (1985), Some aspects of the spline smoothing approach to regression curve fitting; the data",
    ),
    "snelson": (
        "Snelson's example",
        "Snelson & Ghahramani (2006), Sparse Gaussian processes using pseudo-inputs; the data",
    ),
    "in-between": (
        "a cosine with a gap in its data",
        "Foong, Li, Hernández-Lobato & Turner (2019), In-between uncertainty in Bayesian neural networks; the data",
    ),
}

ENTRIES = tuple(
    Entry(
        name=f"toys/{name}",
        summary=f"{what}, exact last layer above a mean field, tanh, 1 x {UNITS}",
        source=source,
        data=f"toys/{name}",
        model=functools.partial(_model, scales=SCALES[name]),
        guide=ExactLastLayer,  # type: ignore[arg-type]
        training=functools.partial(settings, steps=STEPS, lr=1e-2),
        published={},
        purpose="uncertainty one can see",
        check=Check(steps=300, draws=200),
        draws=1000,
    )
    for name, (what, source) in TOYS.items()
)
