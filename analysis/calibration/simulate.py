"""Draw parameters from a model's prior, and for each a data set from its likelihood.

    w_r ~ p(w)                                  r = 1 ... R, with the latent hyperparameters of the prior
    y_r ~ p(y | f(x; w_r))                      [R, N, ...], at the same x

For calibration this must be the joint distribution that a fit assumes. So everything else that the fit could learn or
compute from the data must be fixed. `check_model` raises an error for models with parameters without a prior, a learned
noise precision, priors that are improper or that depend on the posterior, or layers that normalise over minibatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

from pyrodrop import distributions
from pyrodrop.changes import evaluating
from pyrodrop.checks import Inputs, num_rows, shown
from pyrodrop.devices import seeded
from pyrodrop.likelihoods import aligned, elements, per_row
from pyrodrop.models import NetworkModel
from pyrodrop.models.trained_network import TrainedNetwork

_NUMBERS = 2**23  # weights and outputs that are processed at a time


@dataclass(frozen=True)
class Simulated:
    """R draws of the parameters, each with a data set.

    Attributes:
        weights: the drawn weights, ``[R, ...]`` by site.
        y: observations, ``[R, N, ...]``.
    """

    weights: dict[str, Tensor]
    y: Tensor


def check_model(model: Any, x: Inputs) -> None:
    """Check that a model has a joint distribution of parameters and data that can be simulated and fitted.

    Raises:
        TypeError: `model` is not a model of `pyrodrop.models`.
        ValueError: training would learn something that has no proper prior; the message says what to do about it.
    """
    if not isinstance(model, NetworkModel):
        raise TypeError(
            "calibration needs a model of pyrodrop.models, whose prior and likelihood can be sampled; got "
            f"{shown(model)}"
        )
    reason = _why_not(model, x)
    if reason:
        raise ValueError(f"calibration draws everything that a fit learns from its prior; {reason}")


def simulate(model: NetworkModel, x: Inputs, count: int, seed: int) -> Simulated:
    """Draw parameters from the prior and data from the likelihood, with the network in evaluation mode.

    Args:
        model: a model of `pyrodrop.models` that `check_model` accepts.
        x: inputs of every data set, ``[N, ...]``.
        seed: seed of the draws; the global random state is unchanged.
    """
    device = next(iter(model.weight_sites().values())).device
    with seeded(seed, device), torch.no_grad(), evaluating(model), pyro.validation_enabled(False):
        weights = _weights(model, count)
        y = _distribution(model, outputs_of(model, weights, x)).sample()
    return Simulated(weights, y)


def outputs_of(model: NetworkModel, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """Outputs ``[D, N, ...]`` for D sets of weights ``[D, ...]``, a limited number of sets at a time."""
    per_draw = sum(w.numel() for w in model.weight_sites().values()) + 64 * num_rows(x)
    size, count = max(1, _NUMBERS // per_draw), len(next(iter(weights.values())))
    parts = [
        model.outputs({name: value[first : first + size] for name, value in weights.items()}, x)
        for first in range(0, count, size)
    ]
    return torch.cat(parts)


def functions_of(model: NetworkModel, outputs: Tensor) -> Tensor:
    """f ``[D, N, ...]`` in the units of y."""
    return model.likelihood.location(outputs, model.targets)


def log_likelihood(model: NetworkModel, outputs: Tensor, y: Tensor) -> Tensor:
    """ln p(y | f) of all observations together, in nats, in float64.

    Args:
        outputs: outputs of the network, ``[D, N, ...]``.
        y: observations of one data set, ``[N, ...]``.

    Returns:
        ``[D]``.
    """
    distribution = _distribution(model, outputs)
    return distribution.log_prob(aligned(model.likelihood.as_target(y), distribution)).double().sum(-1)  # type: ignore[no-any-return]


def _distribution(model: NetworkModel, outputs: Tensor) -> Any:
    """The distribution of y, batch shape ``[D, N]``."""
    return per_row(model.likelihood(outputs, model.targets), 2)


def _weights(model: NetworkModel, count: int) -> dict[str, Tensor]:
    """Draws ``[count, ...]`` of every weight, each given its own draw of the prior's hyperparameters."""
    nodes = _prior_sites(model, count)
    initial = model.weight_sites()
    return {name: nodes[name]["value"].expand(count, *like.shape).to(like) for name, like in initial.items()}


def _prior_sites(model: NetworkModel, count: int) -> Mapping[str, Any]:
    initial, units = model.weight_sites(), model.input_units()
    with poutine.block(), poutine.trace() as capture, pyro.plate("draws", count):
        for name, prior in model.priors.items():
            pyro.sample(name, prior.for_site(name, initial[name], units[name]))
    return capture.trace.nodes  # type: ignore[no-any-return]


def _why_not(model: NetworkModel, x: Inputs) -> str:
    """A message on what a fit would learn without a proper prior; empty if there is nothing."""
    points = list(model.free)
    if points:
        return (
            f"{', '.join(points)} would be trained without a prior, as point estimates: give them one (bias_prior=...), or "
            "fix them with requires_grad_(False) before the model is made"
        )
    learned = [name for name, _ in model.likelihood.named_parameters()]
    if learned:
        return (
            f"the likelihood {model.likelihood.describe()} has learned parameters without a prior ({', '.join(learned)}): "
            "fix them, as in likelihoods.Gaussian(precision=...)"
        )
    if isinstance(model, TrainedNetwork):
        return f"a {type(model).__name__} draws masks that are not weights: make a model with models.from_module"
    model.properties(x)
    if not model.mixes_examples(x) and model.mixes_in_training(x):
        return (
            "in training this network normalises over the minibatch (BatchNorm), so that the fitted model is not the one "
            "that generates the data: put these layers in evaluation mode (.eval()) before the model is made"
        )
    return next(filter(None, (_why_not_prior(model, name) for name in model.priors)), "")


def _why_not_prior(model: NetworkModel, name: str) -> str:
    like = model.weight_sites()[name]
    with seeded(0, like.device), torch.no_grad(), poutine.block(), poutine.trace() as capture:
        try:
            prior = model.priors[name].for_site(name, like, model.input_units()[name])
        except NotImplementedError as error:  # of a distribution that has no sample
            return f"the prior of {name!r} cannot be sampled: {error}"
        hyperpriors: dict[str, Any] = {
            n: node["fn"] for n, node in capture.trace.nodes.items() if node["type"] == "sample"
        }
        for site, distribution in (hyperpriors | {name: prior}).items():
            kind = elements(distribution)
            if isinstance(kind, distributions.LogUniform | dist.ImproperUniform):
                return (
                    f"the prior of {site!r} is improper ({type(kind).__name__}): its density does not integrate to a finite "
                    "number, so that it cannot be drawn from. Use a proper prior, such as priors.Gaussian"
                )
            if isinstance(kind, distributions.PooledNormal):
                return (
                    f"the prior of {site!r} has variances that follow the posterior (ARD without a hyperprior), so that "
                    "there is no prior to draw from: give it a hyperprior, or use priors.Gaussian"
                )
            try:
                distribution.log_prob(distribution.sample())
            except NotImplementedError as error:  # of a distribution without a sample or density
                return f"the prior of {site!r} cannot be sampled or has no density: {error or type(kind).__name__}"
    return ""
