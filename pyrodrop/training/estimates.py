"""Estimates of the ELBO by draws from the guide, from the terms of `pyrodrop.training.elbo`.

data in rows         the nll is a sum over blocks of rows, each with the same draws
keyword arguments    the terms of one call, which average over subsamples of the program's plates
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch

from pyrodrop.data import Keywords
from pyrodrop.data.loader import Loader
from pyrodrop.devices import seeded
from pyrodrop.divergences import Convention
from pyrodrop.guides.ensemble import Ensemble
from pyrodrop.guides.guide import Guide
from pyrodrop.models.network import NetworkModel, mixes_examples
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.networks.checks import cannot_run
from pyrodrop.networks.pooling import PoolsBySlices
from pyrodrop.parts import Described
from pyrodrop.prediction.agreement import check_call, knows_sites
from pyrodrop.prediction.draws import rows_at_once
from pyrodrop.steps import Arguments, Batch
from pyrodrop.training.elbo import DrawnTerms, elbo_convention
from pyrodrop.training.result_data import TrainingData
from pyrodrop.training.rows import arguments_of, takes_num_data

BLOCK = 5000  # rows that are evaluated at a time


@dataclass(frozen=True, repr=False)
class Elbo(Described):
    """An estimate of the evidence lower bound, in nats for the whole data set.

    Attributes:
        value: the estimate, ``-(nll + kl)``.
        se: its standard error; NaN for one sample.
        nll: mean over draws of minus the log likelihood.
        kl: the KL divergence of the posterior from the prior.
        convention: how `kl` was computed. Bounds of different conventions cannot be compared.
        num_samples: number of draws.
    """

    value: float
    se: float
    nll: float
    kl: float
    convention: Convention
    num_samples: int

    def describe(self) -> str:
        return f"{self.value:.4g} +- {self.se:.2g} nats ({self.convention})"


def elbo_of(fit: Any, data: TrainingData, num_samples: int, seed: int) -> Elbo:
    """The ELBO of a fit on these data; the arguments are those of `Fit.elbo`.

    Raises:
        ValueError: data are a loader; the model cannot be called on them; y has another shape than its distribution, or
            values outside its support; the guide leaves sites to be summed out.
    """
    model, guide, device = fit.model, fit.guide, fit.device
    drawn = DrawnTerms(model, guide)
    # a seed for each draw, so that all blocks of rows have the same draws
    seeds = torch.randint(2**62, (num_samples,), generator=torch.Generator().manual_seed(seed)).tolist()
    terms = torch.zeros(2, num_samples, dtype=torch.float64)
    with torch.no_grad(), PoolsBySlices():
        for number, (block, share) in enumerate(_blocks(model, guide, data, device)):
            args, kwargs = block.args, block.kwargs
            if number == 0 and not knows_sites(model, guide):
                with seeded(0, device):
                    check_call(model, guide, *args, **kwargs)
            for draw, seed_of_draw in enumerate(seeds):
                with pyro.validation_enabled(number == draw == 0), seeded(seed_of_draw, device):
                    try:
                        of_draw = drawn.draw(args, kwargs, nll_alone=number > 0)
                    except (RuntimeError, IndexError) as error:
                        if not isinstance(block, Batch) or not mixes_examples(model, block.x):
                            raise
                        raise ValueError(cannot_run(block.x, error, together=True)) from error
                terms[:, draw] += torch.tensor([float(of_draw.nll) * share, float(of_draw.kl)], dtype=torch.float64)
            if number == 0:
                with seeded(seed, device):
                    convention = elbo_convention(model, guide, *args, **kwargs)
    nll, kl = terms
    values = -(nll + kl)
    se = float(values.std() / math.sqrt(num_samples)) if num_samples > 1 else math.nan
    detail = "; ".join(filter(None, [convention.detail, *_notes(fit, drawn.scale or 1.0)]))
    return Elbo(
        float(values.mean()), se, float(nll.mean()), float(kl.mean()), replace(convention, detail=detail), num_samples
    )


def _blocks(model: Any, guide: Any, data: TrainingData, device: torch.device) -> Iterator[tuple[Arguments, float]]:
    """Arguments of calls that together have all rows, each with the factor of its nll: the call's share of the rows if the
    model scales the likelihood to all of them, else 1."""
    if isinstance(data, Keywords):
        yield arguments_of(data, device), 1.0
        return
    if isinstance(data, Loader):
        raise ValueError(f"elbo needs data in memory, elbo(data=(x, y)); got {data.source}")
    together = mixes_examples(model, data.x)  # a ValueError for an x that the network cannot be called on
    if isinstance(model, NetworkModel):
        model.check_targets(data)
    size = len(data)
    if takes_num_data(model) and takes_num_data(guide) and not together:
        size = BLOCK
    if isinstance(model, NetworkModel) and isinstance(guide, Guide | Ensemble) and not together:
        with seeded(0, device):  # a network may draw noise
            size = rows_at_once(model, arguments_of(data.rows(slice(BLOCK)), device).args[0], device)
    for first in range(0, len(data), size):
        rows = data.rows(slice(first, first + size))
        scaled = {} if len(rows) == len(data) else {"num_data": len(data)}
        yield Batch(arguments_of(rows, device).args, scaled), len(rows) / len(data)


def _notes(fit: Any, scale: float) -> Iterator[str]:
    """What the convention of an ELBO says of a `common_scale`, where training had another posterior over activations, and
    where the network draws noise whose prior is its own distribution."""
    if scale != 1:
        yield f"without the factor {scale:g} of pyro.poutine.scale around model and guide"
    if noise_by_row := fit.settings.get("noise_by_row"):
        yield (
            f"of the posterior over weights; training drew the noise of {', '.join(noise_by_row)} per row or position, "
            "which is another posterior over activations"
        )
    noise = list(fit.model.dropouts.noise) if isinstance(fit.model, TrainedNetwork) else []
    if noise:
        yield f"noise of the function has no part in it, as its prior is its own distribution: {', '.join(noise)}"
