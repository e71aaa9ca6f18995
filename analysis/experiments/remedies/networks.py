"""The bounds of `bounds` for the six networks whose exact posterior was sampled, beside their log evidence.

q is a factorised Gaussian over weights and biases, `MeanField`. A network of n hidden units is the same function under every
permutation of them, and with tanh under 2^n changes of sign, so its posterior has as many equal modes. q is at one of them.
If the modes are separate, every bound is below the log evidence by at least the logarithm of their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from pyro.infer import RenyiELBO
from torch import Tensor

import pyrodrop
from pyrodrop import guides, schedules
from pyrodrop.analysis.experiments.critiques.panel import Size, sized
from pyrodrop.analysis.experiments.references import evidence, load
from pyrodrop.analysis.experiments.remedies.bounds import DRAWS, FAULT
from pyrodrop.analysis.reports.console import core_seconds
from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.data import Dataset
from pyrodrop.zoo.exact import PROBLEMS, Problem

TITLE = "log evidence less the bound of k draws, nats, six networks"
STEPS: dict[Size, int] = {"default": 6000, "quick": 20}
MORE: dict[Size, int] = {"default": 3000, "quick": 20}
REPEATED: dict[Size, int] = {"default": 20_000, "quick": 1000}  # total number of draws of q for each bound
REMEDY = "and then by the bound of 10 draws"
BOUND = RenyiELBO(alpha=0, num_particles=10)


def measure(size: Size, seed: int) -> dict[str, dict[str, float]]:
    """For every problem and both ways of training: log evidence, distances of the bounds from it, core-seconds."""
    rows = {}
    for name, truth in read_record(evidence.FILE).content.items():
        problem, exact = PROBLEMS[name], load(name)
        train, model, start = problem.data()[0], problem.model(), core_seconds()
        first = {**_settings(STEPS, size, seed), "lr": 1e-2, "estimator": "local"}
        fits = {FAULT: pyrodrop.fit(model, guides.MeanField(model), train, **first)}
        spent = {FAULT: core_seconds() - start}
        fits[REMEDY] = pyrodrop.fit(
            fits[FAULT].model, fits[FAULT].guide, train, **_settings(MORE, size, seed), lr=3e-3, objective=BOUND,
            estimator="shared",
        )  # fmt: skip
        spent[REMEDY] = core_seconds() - start
        for way, fit in fits.items():
            weights = log_weights(problem, exact, fit, train, sized(REPEATED, size), seed)
            rows[f"{name}, {way}"] = {
                "log evidence": truth,
                "ln of equal modes": equal_modes(problem),
                **{f"k = {k}": truth - float((weights.view(-1, k).logsumexp(1) - math.log(k)).mean()) for k in DRAWS},
                "core-seconds": spent[way],
            }
    return rows


def _settings(steps: Mapping[Size, int], size: Size, seed: int) -> dict[str, Any]:
    count = sized(steps, size)
    return {"steps": count, "lr_schedule": schedules.cosine(count), "device": "cpu", "seed": seed, "progress": False}


def log_weights(problem: Problem, exact: Any, fit: Any, train: Dataset, count: int, seed: int) -> Tensor:
    """ln p(y, w | x) - ln q(w) of draws of q, in float64, ``[count]``."""
    drawn, density = {}, torch.zeros(count, dtype=torch.float64)
    with pyrodrop.devices.seeded(seed, torch.device("cpu")), torch.no_grad():
        for name in exact.samples:
            q = fit.guide.posterior(name)
            drawn[name] = w = q.sample((count,))
            sd = problem.scales[int(name.split(".")[1])] if name.endswith("weight") else 1.0
            prior = torch.distributions.Normal(0.0, sd).log_prob(w).double().flatten(1).sum(1)
            density += prior - q.log_prob(w).double()
    return density + evidence.log_likelihood(exact, drawn, train)


def equal_modes(problem: Problem) -> float:
    """The logarithm of the number of equal modes: ln n!, plus n ln 2 if the activation is odd."""
    hidden = problem.widths[1]
    return math.lgamma(hidden + 1) + (hidden * math.log(2) if problem.activation == "tanh" else 0.0)
