"""Foong, Burt, Li & Turner (2020): the spread between two clusters of data.

The network and data of the paper's figure 1: the set `origin`, ReLU layers of 50, w ~ N(0, 16 / fan-in), b ~ N(0, 1),
noise of standard deviation .1. The slice is the diagonal, with t = x_1 sqrt(2); the clusters are at t = -sqrt(2)
and sqrt(2). For one hidden layer no factorised Gaussian (theorem 1: the variance at 0 is at most the sum of those at the
clusters) and no MC dropout (theorem 2: the variance is convex in x) is less sure between the clusters than at both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.gp import GaussianProcess, from_model
from pyrodrop.analysis.lab import RESULTS
from pyrodrop.analysis.lab.experiments.critiques.panel import Panel, Size, fitted, sized
from pyrodrop.data import foong2020
from pyrodrop.guides import Guide

RATE, MEMBERS, DRAWS, WIDTH, NOISE = 0.05, 5, 1000, 50, 0.1
SAMPLED, PROCESS, PUBLISHED = "HMC (ours)", "Gaussian process, wide limit", "HMC, published"
DISTANCE = "mean |ln sd / ref.|"
LOW_RANK = "low rank"
ENSEMBLE, MANY_DROPOUTS = "deep ensemble", "ensemble of MC dropout"
GUIDES: Mapping[str, Callable[[Any], Guide]] = {
    "MC dropout, rate .05": lambda model: guides.BernoulliDropout(model, RATE, mask_input=False),
    "mean field": guides.MeanField,
    "variational dropout": lambda model: guides.VariationalDropout(
        model, "B", "weight", max_alpha=math.inf, drop_rate=0.01
    ),
    LOW_RANK: lambda model: guides.LowRank(model, rank=4),
    ENSEMBLE: guides.Point,
}
ESTIMATOR: Mapping[str, Any] = {LOW_RANK: "shared"}  # local for the others
STARTS: Mapping[str, int] = {LOW_RANK: 2}  # `MEMBERS` for the others; low rank costs several times as much
CHAINS: dict[Size, dict[str, Any]] = {  # of one hidden layer; those of two need hours to mix
    "default": {"chains": 32, "draws": 400, "tune": 400},
    "quick": {"chains": 4, "draws": 8, "tune": 100, "max_steps": 4},
}
STEPS: dict[Size, int] = {"default": 4000, "quick": 40}


def panel(size: Size, seed: int) -> Panel:
    """Spreads along the diagonal, and whether the chains have mixed; every posterior is trained from several starts."""
    t, published = published_slice()
    x = (t / math.sqrt(2))[:, None].expand(-1, 2).contiguous()
    spreads = {depth: approximations(depth, x, sized(STEPS, size), seed) for depth in (1, 2)}
    spreads[1][SAMPLED], mixing = sampled(x, sized(CHAINS, size), seed)
    references = {1: spreads[1][SAMPLED], 2: spreads[2][PROCESS]}
    spreads[1][PUBLISHED] = published
    table = {
        f"{depth} hidden, {name}": _row(t, sd, references[depth])
        for depth, by_name in spreads.items()
        for name, sd in by_name.items()
    }
    return {"sd of f along the diagonal": table, "chains": {"1 hidden": mixing}}


def network(depth: int) -> models.MLP:
    """The network of the paper with this number of hidden layers."""
    first, other = priors.Gaussian(4 / math.sqrt(2)), priors.Gaussian(4 / math.sqrt(WIDTH))
    return models.MLP(
        [2, *[WIDTH] * depth, 1],
        prior={"layers.0.*": first, "*": other},
        likelihood=likelihoods.Gaussian(NOISE**-2),
        bias_prior=priors.Gaussian(1.0),
    )


def approximations(depth: int, x: Tensor, steps: int, seed: int) -> dict[str, Tensor]:
    """Standard deviation of f at x by posterior; that of single fits is the mean over the starts."""
    deviations: dict[str, Tensor] = {}
    data = foong2020().train
    for name, guide in GUIDES.items():
        torch.manual_seed(seed)
        model = network(depth)
        fits = fitted(
            model,
            guide(model),
            data,
            count=STARTS.get(name, MEMBERS),
            steps=steps,
            lr=5e-3,
            estimator=ESTIMATOR.get(name, "local"),
            seed=seed,
        )
        if name != ENSEMBLE:
            deviations[name] = torch.stack([fit.predict(x, DRAWS, seed=seed).spread[:, 0] for fit in fits]).mean(0)
        if name in (ENSEMBLE, next(iter(GUIDES))):
            deviations[ENSEMBLE if name == ENSEMBLE else MANY_DROPOUTS] = fits.predict(x, DRAWS, seed=seed).spread[:, 0]
    process = GaussianProcess(data, from_model(network(depth)), learn=False, progress=False)
    deviations[PROCESS] = process.predict(x, 2).spread[:, 0]
    return {name: sd.double() for name, sd in deviations.items()}


def sampled(x: Tensor, chains: dict[str, Any], seed: int) -> tuple[Tensor, dict[str, float]]:
    """Standard deviation of f at x under the exact posterior, by sampling, and the diagnostics of the chains."""
    run = pyrodrop.sample(network(1), foong2020().train, seed=seed, device="cpu", progress=False, **chains)
    mixed = run.diagnostics(x)
    row = {"R-hat of f": mixed.r_hat_f, "effective draws of f, least": mixed.ess_f, "median": mixed.ess_f_median}
    return run.predict(x, 2000, seed=seed).spread[:, 0].double(), row


def published_slice() -> tuple[Tensor, Tensor]:
    """t and the standard deviation of f by the HMC of the paper for one hidden layer, at 51 points."""
    content = json.loads((RESULTS / "foong2020.json").read_text(encoding="utf-8"))
    return torch.tensor(content["t"]), torch.tensor(content["sd"]).double()


def _row(t: Tensor, sd: Tensor, reference: Tensor) -> dict[str, float]:
    at = [float(sd[(t - end).abs().argmin()]) for end in (-math.sqrt(2), math.sqrt(2))]
    between = float(sd[t.abs().argmin()])
    return {
        "sd between": between,
        "sd at the clusters": sum(at) / 2,
        "ratio": between / (sum(at) / 2),
        "sum of variances at the clusters": at[0] ** 2 + at[1] ** 2,
        DISTANCE: float((sd.log() - reference.log()).abs().mean()),
    }
