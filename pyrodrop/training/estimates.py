"""Estimates of the ELBO, and of the objective that training maximised, by draws from the guide.

data in rows         the terms of `pyrodrop.training.elbo`; the nll is a sum over blocks of rows, each with the same draws
keyword arguments    the same terms of one call, which average over subsamples of the program's plates
a loss of Pyro       its values, in the objective; those of TraceEnum_ELBO, which sums out discrete sites, also in the ELBO
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.data import Keywords
from pyrodrop.data.loader import Loader
from pyrodrop.devices import seeded
from pyrodrop.divergences import Convention, worst
from pyrodrop.guides.ensemble import Ensemble
from pyrodrop.guides.guide import Guide
from pyrodrop.models.network import NetworkModel, mixes_examples
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.networks.checks import cannot_run
from pyrodrop.parts import Described
from pyrodrop.prediction.agreement import check_call, knows_sites
from pyrodrop.prediction.draws import rows_at_once
from pyrodrop.steps import Arguments, Batch
from pyrodrop.training.elbo import DrawnTerms, Factor, common_scale, elbo_convention, site_factors
from pyrodrop.training.result_data import TrainingData
from pyrodrop.training.rows import arguments_of, takes_num_data

BLOCK = 5000  # rows that are evaluated at a time


@dataclass(frozen=True, repr=False)
class _Estimate(Described):
    value: float
    se: float
    nll: float
    kl: float
    convention: Convention
    num_samples: int

    def describe(self) -> str:
        return f"{self.value:.4g} +- {self.se:.2g} nats ({self.convention})"


class Elbo(_Estimate):
    """An estimate of the evidence lower bound, in nats for the whole data set.

    Attributes:
        value: the estimate, ``-(nll + kl)``.
        se: its standard error; NaN for one sample.
        nll: mean over draws of minus the log likelihood.
        kl: the KL divergence of the posterior from the prior. After training with ``TraceEnum_ELBO``, which estimates only
            their sum, nll and kl are NaN.
        convention: how `kl` was computed. Bounds of different conventions cannot be compared.
        num_samples: number of draws.
    """


@dataclass(frozen=True, repr=False)
class Objective(_Estimate):
    """An estimate of what the last training step maximised, in nats for the whole data set; not a bound on the evidence.

        value = -(nll + kl)

    Attributes:
        value: the estimate.
        se: its standard error; NaN for one sample.
        nll: mean over draws of minus the log likelihood; NaN after training with an `objective`.
        kl: the KL divergence in the objective: that of the weights times the guide's ``kl_scale`` and `kl_weight`, plus
            that of the hyperparameters; NaN as `nll`.
        convention: of kind ``objective``; it describes the factors. To compare two fits, use `Fit.elbo`.
        num_samples: number of draws.
        kl_weight: of the last step.
    """

    kl_weight: float = 1.0


class Terms:
    """The terms of the ELBO for draws from the guide of a fit, in evaluation mode, on all of the data.

    Args:
        data: the data; a loader is iterated once.
        num_samples: number of draws, at least 1.
        seed: of the draws.
        whole: whether to count the KL divergence in full, without the guide's ``kl_scale``.

    Attributes:
        nll, kl_weights, kl_hyper: of every draw, ``[num_samples]``, in float64.
        factors: the guide's factors, one for every site and member of an ensemble.
        scale: the factor of all sites that the terms do not have, `common_scale`; 1 if there is none.

    Raises:
        ValueError: the model cannot be called on the data; y has another shape than its distribution, or values outside its
            support.
    """

    def __init__(self, fit: Any, data: TrainingData, num_samples: int, seed: int, *, whole: bool) -> None:
        model, guide, device = fit.model, fit.guide, fit.device
        self.factors: list[Factor] = []
        drawn = DrawnTerms(model, guide, whole=whole)
        terms = torch.zeros(3, num_samples, dtype=torch.float64)
        with torch.no_grad():
            for number, (block, share) in enumerate(_blocks(model, guide, data, device)):
                args, kwargs = block.args, block.kwargs
                if number == 0 and not knows_sites(model, guide):
                    with seeded(0, device):
                        check_call(model, guide, *args, **kwargs)
                for draw, seed_of_draw in enumerate(_seeds(num_samples, seed)):
                    with pyro.validation_enabled(number == draw == 0), seeded(seed_of_draw, device):
                        try:
                            nll, *kl = map(float, drawn.draw(args, kwargs, nll_alone=number > 0))
                        except (RuntimeError, IndexError) as error:
                            if not isinstance(block, Batch) or not mixes_examples(model, block.x):
                                raise
                            raise ValueError(cannot_run(block.x, error, together=True)) from error
                    terms[:, draw] += torch.tensor([nll * share, *kl], dtype=torch.float64)
                if number == 0:
                    with seeded(seed, device):
                        members = site_factors(model, guide, *args, **kwargs)
                    self.factors = [factor for member in members for factor in member.values()]
        self.scale: float = drawn.scale or 1.0
        self.nll, self.kl_weights, self.kl_hyper = terms


def _seeds(num_samples: int, seed: int) -> list[int]:
    """A seed for each draw, so that all blocks of rows have the same draws."""
    return torch.randint(2**62, (num_samples,), generator=torch.Generator().manual_seed(seed)).tolist()


def _blocks(model: Any, guide: Any, data: TrainingData, device: torch.device) -> Iterator[tuple[Arguments, float]]:
    """Arguments of calls that together have all rows, each with the factor of its nll: the call's share of the rows if the
    model scales the likelihood to all of them, else 1."""
    if isinstance(data, Keywords):
        yield arguments_of(data, device), 1.0
        return
    example = data.sample if isinstance(data, Loader) else data
    together = mixes_examples(model, example.x)  # a ValueError for an x that the network cannot be called on
    if isinstance(data, Loader) and together:
        raise ValueError(
            "the output of one row of x depends on the others in this network, so the ELBO needs all rows at once: pass "
            f"data in memory; got {data.source}"
        )
    if isinstance(model, NetworkModel):
        model.check_targets(example)
    if isinstance(data, Loader):
        seen = 0
        for rows in data.pieces(model.targets_check(example.x) if isinstance(model, NetworkModel) else None):
            seen += len(rows)
            yield arguments_of(rows, device), 1.0
        if data.num_data not in (None, seen):
            raise ValueError(
                f"an ELBO needs every row once; {data.source} has {data.num_data} rows and yielded {seen}: pass one without "
                "drop_last, or num_data of the rows that it yields"
            )
        return
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


def elbo_of(fit: Any, data: TrainingData, num_samples: int, seed: int) -> Elbo:
    """The ELBO of a fit on these data; the arguments are those of `Fit.elbo`."""
    if fit.settings.get("objective") == TraceEnum_ELBO.__name__:
        arguments = arguments_of(data, fit.device)
        value, se = _mean_loss(fit.loss or TraceEnum_ELBO(), fit, arguments, num_samples, seed)
        scale, convention = _scale_and_convention(fit.model, fit.guide, arguments)
        terms, notes = (value / scale, se / scale, math.nan, math.nan), _notes(scale)
    else:
        draws = Terms(fit, data, num_samples, seed, whole=True)
        noise = tuple(fit.model.dropouts.noise) if isinstance(fit.model, TrainedNetwork) else ()
        notes = _notes(draws.scale, fit.settings.get("noise_by_row") or (), noise)
        convention = worst(factor.convention for factor in draws.factors)
        kl = draws.kl_weights + draws.kl_hyper
        terms = (*_mean(-(draws.nll + kl)), float(draws.nll.mean()), float(kl.mean()))
    convention = replace(convention, detail="; ".join(filter(None, [convention.detail, *notes])))
    return Elbo(*terms, convention, num_samples)


def _notes(scale: float, noise_by_row: Sequence[str] = (), noise_of_function: Sequence[str] = ()) -> list[str]:
    """What the convention of an ELBO says of a `common_scale`, where training had another posterior over activations, and
    where the network draws noise whose prior is its own distribution."""
    notes = [] if scale == 1 else [f"without the factor {scale:g} of pyro.poutine.scale around model and guide"]
    if noise_by_row:
        notes.append(
            f"of the posterior over weights; training drew the noise of {', '.join(noise_by_row)} per row or position, "
            "which is another posterior over activations"
        )
    if noise_of_function:
        more = f" and {len(noise_of_function) - 3} more" if len(noise_of_function) > 3 else ""
        names = ", ".join(noise_of_function[:3]) + more
        notes.append(f"noise of the function has no part in it, as its prior is its own distribution: {names}")
    return notes


def objective_of(fit: Any, data: TrainingData, num_samples: int, seed: int) -> Objective:
    """The objective of a fit's last step on these data; the arguments are those of `Fit.objective`."""
    if fit.loss is not None:
        value, se = _mean_loss(fit.loss, fit, arguments_of(data, fit.device), num_samples, seed)
        kind = type(fit.loss)
        name = f"Pyro's {kind.__name__}" if kind.__module__.startswith("pyro.") else kind.__name__
        return Objective(
            value, se, math.nan, math.nan, Convention("objective", f"minus the loss of {name}"), num_samples
        )
    if "objective" in fit.settings:
        raise ValueError(
            f"the file of a fit does not have the loss object it was trained with, {fit.settings['objective']}: "
            "objective() needs the fit itself; elbo(data=...) is known of a loaded one"
        )
    draws = Terms(fit, data, num_samples, seed, whole=False)
    kl_weight = float(fit.history[-1, 2]) if len(fit.history) else 1.0
    kl = kl_weight * draws.kl_weights + draws.kl_hyper
    scales = sorted({factor.scale for factor in draws.factors})
    rate_prior = fit.guide.rate_prior if isinstance(fit.guide, Guide | Ensemble) else None
    factors = [f"the weights' KL divergence times kl_weight {kl_weight:g}"] if kl_weight != 1 else []
    if scales != [1.0]:
        factors.append(f"KL divergences scaled by the guide, kl_scale {', '.join(f'{scale:g}' for scale in scales)}")
    if rate_prior is not None:
        factors.append(f"minus the log density of the rates under {type(rate_prior).__name__}")
    of_kl = worst(factor.convention for factor in draws.factors)
    detail = "; ".join([*(factors or ["all factors are 1: the ELBO"]), f"of the KL divergence: {of_kl}"])
    convention = Convention("objective", detail, of_kl.error)
    value, se = _mean(-(draws.nll + kl))
    return Objective(value, se, float(draws.nll.mean()), float(kl.mean()), convention, num_samples, kl_weight)


def _mean_loss(loss: Any, fit: Any, arguments: Arguments, num_samples: int, seed: int) -> tuple[float, float]:
    """Minus the mean of a loss object's values for several draws, and its standard error."""
    loss = copy.copy(loss)  # some learn something at their first call, which draws more than later calls
    values = []
    with torch.no_grad():
        for draw, seed_of_draw in enumerate(_seeds(num_samples, seed)):
            with pyro.validation_enabled(draw == 0), seeded(seed_of_draw, arguments.device):
                values.append(-float(loss.loss(fit.model, fit.guide, *arguments.args, **arguments.kwargs)))
    return _mean(torch.tensor(values, dtype=torch.float64))


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean and its standard error, NaN for one value."""
    se = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(values.mean()), se


def _scale_and_convention(model: Any, guide: Any, arguments: Arguments) -> tuple[float, Convention]:
    """The `common_scale`, and the convention of the guide's divergences; sites of the model that the guide leaves to be
    summed out have none."""
    args, kwargs = arguments.args, arguments.kwargs
    with seeded(0, arguments.device), torch.no_grad():
        drawn = poutine.trace(guide).get_trace(*args, **kwargs)
        nodes = poutine.trace(poutine.replay(model, trace=drawn)).get_trace(*args, **kwargs).nodes
        latent = [n for n, node in nodes.items() if node["type"] == "sample" and not node["is_observed"]]
        summed = [name for name in latent if name not in drawn and not site_is_subsample(nodes[name])]
        model = poutine.block(model, hide=summed) if summed else model
        scale = common_scale([*drawn.nodes.values(), *nodes.values()])
        return scale or 1.0, elbo_convention(model, guide, *args, **kwargs)
