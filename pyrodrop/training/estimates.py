"""Estimates of the ELBO, and of the objective that training maximised, by draws from the guide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyro
import torch
from torch import Tensor

from pyrodrop.agreement import check_call, check_guide, knows_sites
from pyrodrop.cards import Described
from pyrodrop.data import Dataset
from pyrodrop.data.streamed import BLOCK, Streamed
from pyrodrop.devices import seeded
from pyrodrop.divergences import Convention, worst
from pyrodrop.elbo import DrawnTerms, Factor, Terms, site_factors
from pyrodrop.inputs import mapped
from pyrodrop.models.network import NetworkModel, mixes_examples
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.module_states import evaluating, undisturbed
from pyrodrop.networks.checks import cannot_run
from pyrodrop.surroundings import refuse
from pyrodrop.training.minibatches import takes_num_data


@dataclass(frozen=True, repr=False)
class Elbo(Described):
    """An estimate of the evidence lower bound, in nats for the whole data set.

    Attributes:
        value: the estimate, ``-(nll + kl)``.
        se: its standard error; NaN for one sample.
        nll: mean over draws of minus the log likelihood.
        kl: the KL divergence of the posterior from the prior. Both are NaN where a loss object of Pyro estimated their sum
            alone.
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


@dataclass(frozen=True, repr=False)
class Objective(Described):
    """An estimate of what the last training step maximised, in nats for the whole data set; not a bound on the evidence.

        value = -(likelihood_power nll + kl)

    Attributes:
        value: the estimate.
        se: its standard error; NaN for one sample.
        nll: mean over draws of minus the log likelihood.
        kl: the KL divergence in the objective: that of the weights times the guide's ``kl_scale`` and `kl_weight`, plus
            that of the hyperparameters.
        likelihood_power, kl_weight: of the last step.
        convention: of kind ``objective``, with the factors in words. To compare two fits, use `Fit.elbo`.
        num_samples: number of draws.
    """

    value: float
    se: float
    nll: float
    kl: float
    likelihood_power: float
    kl_weight: float
    convention: Convention
    num_samples: int

    def describe(self) -> str:
        return f"{self.value:.4g} +- {self.se:.2g} nats ({self.convention})"


class DrawnFrom(Protocol):
    """The terms of the ELBO for draws from a guide, as `Draws` has them."""

    nll: Tensor
    kl_weights: Tensor
    kl_hyper: Tensor
    factors: list[Factor]
    noise: tuple[str, ...]


class Draws:
    """The terms of the ELBO for draws from a guide, on all rows of the data.

    Args:
        model, guide: a trained pair; the network runs in evaluation mode.
        data: the data; those that are read while training are read once.
        device: where model and guide are.
        num_samples: number of draws, at least 1.
        seed: of the draws.
        whole: whether to count the KL divergence in full, without the guide's ``kl_scale``.

    Attributes:
        nll, kl_weights, kl_hyper: of every draw, ``[num_samples]``, in float64.
        factors: the factors of the guide, by site, for every member of an ensemble.
        noise: the dropouts of a network that was read (`pyrodrop.read`) which no weight carries.

    Raises:
        ValueError: the network cannot be called on the data, y has another shape than its distribution or values outside its
            support, or the guide was made for another model.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        data: Dataset | Streamed,
        device: torch.device,
        num_samples: int,
        seed: int,
        *,
        whole: bool,
    ) -> None:
        refuse("an estimate of the ELBO")
        self._data, self._device = data, device
        self._example = data.sample if isinstance(data, Streamed) else data
        self.noise: tuple[str, ...] = tuple(model.dropouts.noise) if isinstance(model, TrainedNetwork) else ()
        with torch.no_grad(), evaluating(model, guide):
            seeds = torch.randint(2**62, (num_samples,), generator=torch.Generator().manual_seed(seed)).tolist()
            self._rows = _rows_at_a_time(model, guide, self._example)
            self._check(model, guide)
            terms = self._terms(DrawnTerms(model, guide, whole=whole), model, seeds)
            with seeded(seed, device):
                members: list[dict[str, Factor]] = site_factors(model, guide, *self._part(0))
        self.nll: Tensor
        self.kl_weights: Tensor
        self.kl_hyper: Tensor
        self.nll, self.kl_weights, self.kl_hyper = torch.tensor(terms, dtype=torch.float64).unbind(1)
        self.factors: list[Factor] = [factor for member in members for factor in member.values()]

    def _check(self, model: Any, guide: Any) -> None:
        """Check that the data fit the model, and the guide the model."""
        if isinstance(self._data, Streamed) and mixes_examples(model, self._example.x):
            raise ValueError(
                "the output of one row of x depends on the others in this network, so the ELBO needs all rows at once: pass "
                f"data in memory; got {self._data.source}"
            )
        if isinstance(model, NetworkModel):
            model.check_targets(self._example)
        if knows_sites(model, guide):
            check_guide(model, guide)
            return
        kwargs = {} if len(self._example) <= self._rows else {"num_data": len(self._example)}
        with seeded(0, self._device), undisturbed(model, guide):
            check_call(model, guide, *self._part(0), **kwargs)

    def _terms(self, drawn: DrawnTerms, model: Any, seeds: Sequence[int]) -> list[tuple[float, float, float]]:
        """The terms of every draw, some rows at a time; a seed makes a draw the same one for all of them."""
        terms: list[Terms] = []
        nll = [0.0] * len(seeds)
        for number, (x, y, size) in enumerate(self._pieces(model)):
            kwargs = {} if len(y) == size else {"num_data": size}
            for place, draw in enumerate(seeds):
                with pyro.validation_enabled(number == place == 0), seeded(draw, self._device):
                    if number:
                        nll[place] += float(drawn.nll(x, y, **kwargs)) * len(y) / size
                        continue
                    try:
                        terms.append(drawn.terms(x, y, **kwargs))
                    except (RuntimeError, IndexError) as error:
                        if place or not mixes_examples(model, self._example.x):
                            raise
                        raise ValueError(cannot_run(self._example.x, error, together=True)) from error
                    nll[place] = float(terms[place].nll) * len(y) / size
        return [(n, float(t.kl_weights), float(t.kl_hyper)) for n, t in zip(nll, terms, strict=True)]

    def _pieces(self, model: Any) -> Iterator[tuple[Any, Tensor, int]]:
        """All rows of x and y, some at a time, on the device, and the number of rows that the likelihood is scaled to."""
        data = self._data
        if not isinstance(data, Streamed):
            for first in range(0, len(data), self._rows):
                yield *self._part(first), len(data)
            return
        seen = 0
        for piece in data.blocks(model.targets_check(self._example.x) if isinstance(model, NetworkModel) else None):
            seen += len(piece)
            yield mapped(lambda part: part.to(self._device), piece.x), piece.y.to(self._device), len(piece)
        if data.num_data not in (None, seen):
            raise ValueError(
                f"an ELBO needs every row once; {data.source} has {data.num_data} rows and yielded {seen}: pass one without "
                "drop_last, or num_data of the rows that it yields"
            )

    def _part(self, first: int) -> tuple[Any, Tensor]:
        """Some rows of x and y, on the device."""
        chosen = slice(first, first + self._rows)
        x, y = self._example.x, self._example.y
        return mapped(lambda part: part[chosen].to(self._device), x), y[chosen].to(self._device)


def elbo_of(draws: DrawnFrom, settings: Mapping[str, Any]) -> Elbo:
    """The ELBO from draws with the whole KL divergence; `settings` are those of the fit."""
    kl = draws.kl_weights + draws.kl_hyper
    value, se = mean_of(-(draws.nll + kl))
    convention = _with_noise_by_row(worst(factor.convention for factor in draws.factors), settings)
    convention = _with_noise_of_function(convention, draws.noise)
    return Elbo(value, se, float(draws.nll.mean()), float(kl.mean()), convention, len(draws.nll))


def objective_of(draws: DrawnFrom, settings: Mapping[str, Any], kl_weight: float, rate_prior: Any = None) -> Objective:
    """The objective of a step with this weight of the KL divergence; `settings` are those of the fit."""
    power = float(settings.get("likelihood_power", 1.0))
    kl = kl_weight * draws.kl_weights + draws.kl_hyper
    value, se = mean_of(-(power * draws.nll + kl))
    scales = sorted({factor.scale for factor in draws.factors})
    words = [f"the likelihood to the power {power:g}"] if power != 1 else []
    words += [f"the weights' KL divergence times kl_weight {kl_weight:g}"] if kl_weight != 1 else []
    words += [f"KL divergences scaled by the guide, kl_scale {', '.join(f'{s:g}' for s in scales)}"] * (scales != [1.0])
    words += [f"minus the log density of the rates under {type(rate_prior).__name__}"] if rate_prior is not None else []
    rest = worst(factor.convention for factor in draws.factors)
    detail = "; ".join([*(words or ["all factors are 1: the ELBO"]), f"of the KL divergence: {rest}"])
    convention = Convention("objective", detail, rest.error)
    return Objective(value, se, float(draws.nll.mean()), float(kl.mean()), power, kl_weight, convention, len(draws.nll))


def _with_noise_by_row(convention: Convention, settings: Mapping[str, Any]) -> Convention:
    """The convention, with a note where training had another posterior over activations."""
    sites = settings.get("noise_by_row")
    if not sites:
        return convention
    words = (
        "of the posterior over weights; training drew the noise of "
        f"{', '.join(sites)} per row or position, which is another posterior over activations"
    )
    return replace(convention, detail="; ".join(filter(None, [convention.detail, words])))


def _with_noise_of_function(convention: Convention, noise: Sequence[str]) -> Convention:
    """The convention, with a note where the network draws noise whose prior is its own distribution."""
    if not noise:
        return convention
    some = ", ".join(noise[:3]) + (f" and {len(noise) - 3} more" if len(noise) > 3 else "")
    words = f"noise of the function has no part in it, as its prior is its own distribution: {some}"
    return replace(convention, detail="; ".join(filter(None, [convention.detail, words])))


def _rows_at_a_time(model: Callable[..., Any], guide: Callable[..., Any], data: Dataset) -> int:
    """`BLOCK`, or all rows where model or guide take no num_data, or the output of one row depends on the others."""
    together = mixes_examples(model, data.x)  # a ValueError for an x that the network cannot be called on
    apart = takes_num_data(model) and takes_num_data(guide) and len(data) > BLOCK
    return BLOCK if apart and not together else len(data)


def mean_of(values: Tensor) -> tuple[float, float]:
    """Mean and its standard error, NaN for one value."""
    se = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(values.mean()), se
