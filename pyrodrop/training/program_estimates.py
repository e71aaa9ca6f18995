"""Estimates of the ELBO of Pyro programs, and of loss objects of Pyro, by draws from the guide.

keyword arguments     terms of `pyrodrop.elbo`, which average over subsamples of the program's plates
TraceEnum_ELBO        the loss object itself: discrete sites that the guide leaves to it are summed out
any other loss        the terms for the ELBO; the loss object for the objective
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, TypeVar

import pyro
import torch
from pyro import poutine
from pyro.infer import ELBO
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.agreement import check_call
from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.streamed import Streamed
from pyrodrop.devices import seeded
from pyrodrop.divergences import Convention
from pyrodrop.elbo import DrawnTerms, Factor, elbo_convention, site_factors
from pyrodrop.module_states import evaluating, undisturbed
from pyrodrop.steps import Arguments
from pyrodrop.surroundings import refuse
from pyrodrop.training.estimates import Elbo, Objective, mean_of
from pyrodrop.training.minibatches import arguments_of

T = TypeVar("T")


class ProgramDraws:
    """The terms of the ELBO for draws from the guide of a Pyro program.

    Raises:
        ValueError, TypeError: guide and model cannot be called with these arguments, or do not belong together.
    """

    noise: tuple[str, ...] = ()

    def __init__(self, model: Any, guide: Any, given: Arguments, num_samples: int, seed: int, *, whole: bool) -> None:
        refuse("an estimate of the ELBO")
        with seeded(0, given.device), evaluating(model, guide), undisturbed(model, guide), torch.no_grad():
            check_call(model, guide, *given.args, **given.kwargs)
        drawn = DrawnTerms(model, guide, whole=whole)

        def terms() -> list[float]:
            return [float(term) for term in drawn.terms(*given.args, **given.kwargs)]

        values = _each(terms, model, guide, given, num_samples, seed)
        self.nll: Tensor
        self.kl_weights: Tensor
        self.kl_hyper: Tensor
        self.nll, self.kl_weights, self.kl_hyper = torch.tensor(values, dtype=torch.float64).unbind(1)
        with seeded(seed, given.device), evaluating(model, guide):
            members: list[dict[str, Factor]] = site_factors(model, guide, *given.args, **given.kwargs)
        self.factors: list[Factor] = [factor for member in members for factor in member.values()]


def elbo_of_loss(loss: ELBO, model: Any, guide: Any, given: Arguments, num_samples: int, seed: int) -> Elbo:
    """The ELBO as minus the mean of a loss object's values, which have no terms: nll and kl are NaN."""
    value, se = _mean_loss(loss, model, guide, given, num_samples, seed)
    return Elbo(value, se, math.nan, math.nan, convention_of_call(model, guide, given), num_samples)


def objective_of_loss(loss: ELBO, model: Any, guide: Any, given: Arguments, num_samples: int, seed: int) -> Objective:
    """Minus the mean of a loss object's values."""
    value, se = _mean_loss(loss, model, guide, given, num_samples, seed)
    whose = "Pyro's " if type(loss).__module__.startswith("pyro.") else ""
    convention = Convention("objective", f"minus the loss of {whose}{type(loss).__name__}")
    return Objective(value, se, math.nan, math.nan, 1.0, 1.0, convention, num_samples)


def convention_of_call(model: Any, guide: Any, given: Arguments) -> Convention:
    """The convention of the guide's divergences; sites of the model that the guide leaves to be summed out have none."""
    with seeded(0, given.device), torch.no_grad(), evaluating(model, guide), undisturbed(model, guide):
        drawn = poutine.trace(guide).get_trace(*given.args, **given.kwargs)
        nodes = poutine.trace(poutine.replay(model, trace=drawn)).get_trace(*given.args, **given.kwargs).nodes
        summed = [
            name
            for name, node in nodes.items()
            if node["type"] == "sample"
            and not node["is_observed"]
            and not site_is_subsample(node)
            and name not in drawn
        ]
        model = poutine.block(model, hide=summed) if summed else model
        return elbo_convention(model, guide, *given.args, **given.kwargs)


def _mean_loss(loss: Any, model: Any, guide: Any, given: Arguments, num_samples: int, seed: int) -> tuple[float, float]:
    loss = copy.copy(loss)  # some note what they find out at their first call, which draws more than later ones

    def value() -> float:
        return -float(loss.loss(model, guide, *given.args, **given.kwargs))

    values = _each(value, model, guide, given, num_samples, seed)
    return mean_of(torch.tensor(values, dtype=torch.float64))


def _each(draw: Callable[[], T], model: Any, guide: Any, given: Arguments, num_samples: int, seed: int) -> list[T]:
    """The results of several draws, each with a random state of its own, in evaluation mode; the first is validated."""
    found = []
    for number, own in enumerate(torch.randint(2**62, (num_samples,), generator=torch.Generator().manual_seed(seed))):
        checked = pyro.validation_enabled(number == 0)
        with seeded(int(own), given.device), evaluating(model, guide), torch.no_grad(), checked:
            found.append(draw())
    return found


def convention_in_words(model: Any, guide: Any, data: Dataset | Streamed | Keywords | None) -> str:
    """The convention of a fit's ELBO in words, found by one call, on two rows; empty without data."""
    if data is None:
        return ""
    device = next((p.device for p in getattr(guide, "parameters", list)()), torch.device("cpu"))
    few = data.sample if isinstance(data, Streamed) else data
    few = few.rows(slice(2)) if isinstance(few, Dataset) else few
    try:
        return str(convention_of_call(model, guide, arguments_of(few, device)))
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:  # networks that need more than two rows
        return f"unknown: {str(error).splitlines()[0]}"
