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

from torch.nn import functional as F

from pyrodrop.data import Dataset, foong2020, mauna_loa, mnist, uci
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


def _co2() -> tuple[Dataset, Dataset]:
    split = mauna_loa()
    return split.train, split.test


def _foong() -> tuple[Dataset, Dataset]:
    """The two clusters to train on, and points of the diagonal to compare at, whose y are placeholders."""
    split = foong2020()
    return split.train, split.test.rows(slice(None, None, SLICE_STEP))


def _uci(name: str) -> tuple[Dataset, Dataset]:
    split = uci(name)[0]
    return split.train, split.test


def _digits() -> tuple[Dataset, Dataset]:
    """The first digits of both parts, averaged over squares of 4 x 4 pixels: ``[N, 49]``."""
    split = mnist(flat=False, progress=False)
    subsets = split.train.first(DIGITS), split.test.first(TEST_DIGITS)
    train, test = (Dataset(F.avg_pool2d(subset.x, 28 // SIDE).flatten(1), subset.y) for subset in subsets)
    return train, test


def _table(name: str, features: int, **options: int) -> Problem:
    setting = SETTINGS[name]
    return Problem(
        name=f"exact/{name}",
        summary=f"UCI {name}, first split, {features}-{setting.hidden}-1 ReLU",
        widths=(features, setting.hidden, 1),
        activation="relu",
        scale=2.0,
        likelihood=functools.partial(Gaussian, setting.precision),
        data=functools.partial(_uci, name),
        **options,  # type: ignore[arg-type]
    )


PROBLEMS = {
    "co2": Problem(
        name="exact/co2",
        summary="Mauna Loa CO2, 272 months to train and the 249 after them, 1-20-1 tanh, noise sd 2 ppm (the seasons)",
        widths=(1, 20, 1),
        activation="tanh",
        scale=4.0,
        likelihood=functools.partial(Gaussian, 0.25),
        data=_co2,
        draws=300,
        tune=250,
        kept=640,
    ),
    "mnist": Problem(
        name="exact/mnist",
        summary=f"{DIGITS} MNIST digits of {SIDE} x {SIDE} pixels, {SIDE**2}-16-10 tanh",
        widths=(SIDE**2, 16, 10),
        activation="tanh",
        scale=5.0,
        likelihood=Categorical,
        data=_digits,
        kept=128,
    ),
    "foong": Problem(
        name="exact/foong",
        summary="two clusters in the plane (Foong et al. 2020), points on the diagonal through them, 2-50-1 ReLU",
        widths=(2, 50, 1),
        activation="relu",
        scale=4.0,
        likelihood=functools.partial(Gaussian, 100.0),
        data=_foong,
        draws=1000,
        tune=350,
        kept=640,
        observed=False,
    ),
    "yacht": _table("yacht", 6),
    "boston": _table("boston", 13, draws=700, tune=250, kept=192),
    "energy": _table("energy", 8, draws=350, tune=250, kept=256),
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
