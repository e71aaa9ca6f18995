"""Gaussian processes as columns of the UCI table: hyperparameters and noise maximise the evidence of each split.

    gp      squared exponential, one length scale per input
    nngp    the infinitely wide network with one hidden layer of ReLU units, including biases

Exact for up to 10,000 rows, with inducing points above. There is no grid and no validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyrodrop import likelihoods, models, priors
from pyrodrop.analysis.gp import GaussianProcess, Start, from_model
from pyrodrop.analysis.lab.experiments.uci import protocol as uci_protocol
from pyrodrop.analysis.lab.experiments.uci.plan import Noise, Part, Plan
from pyrodrop.data import Dataset


@dataclass(frozen=True)
class Process:
    """A Gaussian process.

    Attributes:
        summary: one-line description.
        kernel: makes the kernel of `GaussianProcess` from the training rows and the plan.
    """

    summary: str
    kernel: Callable[[Dataset, Plan], str | Start]
    noises: tuple[Noise, ...] = ("learned",)
    with_rate: bool = False

    def draws(self, protocol: uci_protocol.Protocol) -> int:
        """1, since the distribution of y is known in closed form."""
        return 1

    def at_once(self, rows: int, plan: Plan) -> int:
        return 1

    def predictors(self, parts: Sequence[Part], plan: Plan, first: int, progress: bool | None) -> list[GaussianProcess]:
        return [
            GaussianProcess(
                part.train, self.kernel(part.train, plan), seed=plan.seed + first + number, progress=progress
            )
            for number, part in enumerate(parts)
        ]


def _network(data: Dataset, plan: Plan) -> Start:
    """The kernel of the table's network; the search starts at weight variances of one over the fan-in."""
    widths = [data.x.shape[1], *plan.hidden, 1]
    assert data.targets is not None
    model = models.MLP(
        widths,
        prior={f"layers.{n}.weight": priors.Gaussian(1 / math.sqrt(width)) for n, width in enumerate(widths[:-1])},
        bias_prior=priors.Gaussian(1.0),
        likelihood=likelihoods.Gaussian(10 / float(data.targets.scale) ** 2),
    )
    model.standardize(data)
    return from_model(model)


PROCESSES = {
    "gp": Process(
        "Gaussian process, squared exponential with a length scale an input", lambda *_: "squared-exponential"
    ),
    "nngp": Process("Gaussian process of the infinitely wide network", _network),
}
