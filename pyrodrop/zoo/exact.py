"""Small problems whose exact posterior was sampled: a network with proper priors, its data, and points to compare at.

    w ~ N(0, scale^2 / fan-in),   b ~ N(0, 1)          in standardised units where the data are standardised

The precision of the noise is fixed, because it is no latent variable of a model in this package. For the UCI sets it is that
of Gal & Ghahramani (2016), for Foong et al. (2020) that of their paper. All weights and biases are latent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.nn import functional as F

from pyrodrop.data import Dataset, Split, foong2020, mauna_loa, mnist, uci
from pyrodrop.likelihoods import Categorical, Gaussian, Likelihood
from pyrodrop.models import MLP
from pyrodrop.priors import Gaussian as GaussianPrior
from pyrodrop.zoo.entries import SETTINGS

DIGITS, TEST_DIGITS, SIDE = 160, 500, 7  # digits to train and to test, and their side after averaging squares of 4 x 4
SLICE_STEP = 5  # of the 500 points of the diagonal slice


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        name: ``exact/NAME``, by which `pyrodrop.zoo.load` finds its draws.
        summary: one line.
        widths, activation, scale: of the network and its prior; see the module docstring.
        likelihood: makes the likelihood.
        data: loads the training part and the test part.
        chains, draws, tune: of the sampler; few chains with many draws, for an R-hat of at most 1.01.
        kept: number of draws that are stored, a multiple of `chains`.
        observed: whether the test part has observations. If not, y is drawn from the reference's predictive distribution.
    """

    name: str
    summary: str
    widths: Sequence[int]
    activation: str
    scale: float
    likelihood: Callable[[], Likelihood]
    data: Callable[[], tuple[Dataset, Dataset]]
    chains: int = 16
    draws: int = 600
    tune: int = 300
    kept: int = 320
    observed: bool = True

    def model(self) -> MLP:
        """The network with its priors and new initial weights."""
        return MLP(
            self.widths,
            self.activation,
            prior={f"layers.{i}.*": GaussianPrior(scale) for i, scale in enumerate(self.scales)},
            bias_prior=GaussianPrior(1.0),
            likelihood=self.likelihood(),
        )

    @property
    def scales(self) -> list[float]:
        """The standard deviation of the weights of every layer under the prior."""
        return [self.scale / math.sqrt(width) for width in self.widths[:-1]]


def _parts(load: Callable[[], Split]) -> tuple[Dataset, Dataset]:
    split = load()
    return split.train, split.test


def _uci(name: str) -> tuple[Dataset, Dataset]:
    return _parts(lambda: uci(name)[0])


def _foong() -> tuple[Dataset, Dataset]:
    """The two clusters to train on, and points of the diagonal to compare at, whose y are placeholders."""
    train, test = _parts(foong2020)
    return train, test.rows(slice(None, None, SLICE_STEP))


def _digits() -> tuple[Dataset, Dataset]:
    """The first digits of both parts, averaged over squares of 4 x 4 pixels: ``[N, 49]``."""
    train, test = _parts(lambda: mnist(flat=False))
    subsets = train.first(DIGITS), test.first(TEST_DIGITS)
    first, judged = (Dataset(F.avg_pool2d(subset.x, 28 // SIDE).flatten(1), subset.y) for subset in subsets)
    return first, judged


_RUNS = {  # draws and tuning of the sampler, and draws that are stored
    "co2": (300, 250, 640), "mnist": (600, 300, 128), "foong": (1000, 350, 640), "yacht": (600, 300, 320),
    "boston": (700, 250, 192), "energy": (350, 250, 256),
}  # fmt: skip
_NETWORKS: dict[str, tuple[str, tuple[int, ...], str, float, Callable[[], Likelihood], Callable[[], Any]]] = {
    "co2": (
        "Mauna Loa CO2, 272 months to train and the 249 after them, 1-20-1 tanh, noise sd 2 ppm (the seasons)",
        (1, 20, 1), "tanh", 4.0, functools.partial(Gaussian, 0.25), functools.partial(_parts, mauna_loa),
    ),
    "mnist": (
        f"{DIGITS} MNIST digits of {SIDE} x {SIDE} pixels, {SIDE**2}-16-10 tanh",
        (SIDE**2, 16, 10), "tanh", 5.0, Categorical, _digits,
    ),
    "foong": (
        "two clusters in the plane (Foong et al. 2020), points on the diagonal through them, 2-50-1 ReLU",
        (2, 50, 1), "relu", 4.0, functools.partial(Gaussian, 100.0), _foong,
    ),
    **{
        name: (
            f"UCI {name}, first split, {features}-50-1 ReLU", (features, 50, 1), "relu", 2.0,
            functools.partial(Gaussian, SETTINGS[name].precision), functools.partial(_uci, name),
        )
        for name, features in (("yacht", 6), ("boston", 13), ("energy", 8))
    },
}  # fmt: skip
PROBLEMS = {
    name: Problem(f"exact/{name}", *network, draws=draws, tune=tune, kept=kept, observed=name != "foong")
    for name, network in _NETWORKS.items()
    for draws, tune, kept in [_RUNS[name]]
}
"""The exact posteriors by NAME."""

TAGS = (
    "point", "mc-dropout-0.05", "mc-dropout-0.5", "mixture-0.05", "concrete-dropout", "variational-dropout-b", "mean-field",
    "low-rank-4",
)  # fmt: skip
NAMED = {of.name: of for of in PROBLEMS.values()} | {
    name: replace(of, name=name) for of in PROBLEMS.values() for tag in TAGS for name in [f"{of.name}.{tag}"]
}
"""The exact posteriors, and trained approximations of them, by full name, such as ``exact/yacht.mean-field``."""
