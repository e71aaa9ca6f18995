"""Base class of the guides: q(W) = prod_j q_j(W_j), one factor per weight tensor.

A subclass implements `posterior`, the factor of one weight; sampling and the posterior mean follow from it. The parameters
of a guide belong to that guide object, so several guides can be used in one process.
Hyperparameters that a prior samples (the variances of ARD, the scales of a horseshoe) have log-normal factors

    lambda ~ LogNormal(a, b^2)          a = hyper_loc, ln b = hyper_log_scale, of the shape of lambda
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.checks import HasWeights, by_name, count, flag, real, shown
from pyrodrop.distributions import InputUnits
from pyrodrop.distributions.coins import check_drop_rate
from pyrodrop.modules import LocalModule, ParameterTree
from pyrodrop.parts import Part


@dataclass(frozen=True)
class RateKind:
    """The kind of rates that `Guide.rates` returns.

    Attributes:
        name: name of the variable in a data tree, such as ``drop_rate``.
        meaning: description of the rate.
        learned: whether training changes the rates; if False, they are constants that the user sets.
    """

    name: str
    meaning: str
    learned: bool


ALPHA = RateKind("alpha", "variance of the weights' multiplicative noise", learned=True)
DROP_RATE = RateKind("drop_rate", "probability of dropping an input", learned=False)


class Guide(Part, LocalModule):
    """A posterior over the weights of a model.

    Implementing a posterior:
        - Call ``super().__init__(model)``, and store parameters as a `ParameterTree`; the means as ``loc``, for `restart`.
        - Implement `posterior`, the distribution of one weight; with a `noise_form` it has all estimators.
        - Register a KL divergence with `divergences.pair`, or give the distribution a `log_prob`, for Monte Carlo.

    Args:
        model: a model with the methods ``weight_sites()`` and ``hyper_sites()``, such as those of `pyrodrop.models`.

    Attributes:
        rate_kind: the kind of rates that `rates` returns, for a guide that has rates.
        shapes: the shape of every weight and hyperparameter of the model, by site.

    Raises:
        TypeError: the model lacks these methods. `models.from_module` creates a model that has them from a network.
    """

    rate_kind: ClassVar[RateKind] = ALPHA

    def __init__(self, model: HasWeights) -> None:
        super().__init__()
        check_model(model, type(self).__name__)
        self.sites: tuple[str, ...] = tuple(model.weight_sites())
        self.units: dict[str, InputUnits] = input_units(model)
        hyper = model.hyper_sites()
        self.hyper_sites: dict[str, tuple[str, ...]] = {name: tuple(sites) for name, sites in hyper.items()}
        starts = {site: start for sites in hyper.values() for site, start in sites.items()}
        values = {**model.weight_sites(), **starts}
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(value.shape) for name, value in values.items()}
        self.hyper_loc: ParameterTree = ParameterTree({site: start.log() for site, start in starts.items()})
        self.hyper_log_scale: ParameterTree = ParameterTree(
            {site: torch.full_like(start, -2.0) for site, start in starts.items()}
        )

    @abstractmethod
    def posterior(self, name: str) -> TorchDistribution:
        """The posterior q_j of the weight `name`: a distribution whose event shape is the shape of the weight."""

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every weight at its Pyro site. The arguments are those of the model and are ignored."""
        drawn = {}
        for name in self.sites:
            self._draw_hyper(name)
            drawn[name] = self._draw_weight(name)
        return drawn

    def _draw_weight(self, name: str) -> Tensor:
        return pyro.sample(name, self.posterior(name))

    def restart(self, model: HasWeights) -> None:
        """Reset the means to the current weights of the model and the hyperparameters to their initial values.

        Rates and variances are not changed.

        Raises:
            TypeError: the guide does not store its means as `loc`. A custom guide then has to implement `restart` itself.
            ValueError: the model has other weights than the guide.
        """
        if not isinstance(self._modules.get("loc"), ParameterTree):
            raise TypeError(f"{type(self).__name__} has no means `loc` to reset: implement a method restart(model)")
        check_model(model, f"a {type(self).__name__}")
        want = {name: tuple(weight.shape) for name, weight in model.weight_sites().items()}
        check_shapes({name: self.shapes[name] for name in self.sites}, want, "a guide of another model")
        means: Any = self.loc
        with torch.no_grad():
            for name, value in model.weight_sites().items():
                means[name].copy_(value)
            for sites in model.hyper_sites().values():
                for site, start in sites.items():
                    self.hyper_loc[site].copy_(start.log())

    def draw(self, num_samples: int) -> dict[str, Tensor]:
        """Sample every weight outside of any Pyro trace: tensors ``[num_samples, ...]`` by site name.

        Raises:
            ValueError: `num_samples` is below 1.
            TypeError: it is no whole number.
        """
        count(num_samples, "num_samples", "the number of samples")
        with torch.no_grad():
            return {name: self.posterior(name).expand((num_samples,)).sample() for name in self.sites}

    def mean(self) -> dict[str, Tensor]:
        """The posterior mean of every weight, by site name."""
        with torch.no_grad():
            return {name: self.posterior(name).mean.clone() for name in self.sites}

    def rates(self) -> dict[str, Any]:
        """Drop rates or noise variances alpha, by weight name. Empty for a guide that has neither."""
        return {name: rate.detach() for name, rate in self.learned_rates().items()}

    def learned_rates(self) -> dict[str, Tensor]:
        """The rates that training changes, by weight name, with their gradients. Empty for a guide that has none."""
        return {}

    def _draw_hyper(self, name: str) -> None:
        for site in self.hyper_sites.get(name, ()):
            loc = self.hyper_loc[site]
            scale = torch.exp(self.hyper_log_scale[site])
            pyro.sample(site, dist.LogNormal(loc, scale).to_event(loc.dim()))


def check_model(model: Any, what: str) -> None:
    """Raise a TypeError unless a guide can read the weights of `model`; `what` names the guide in the message."""
    if isinstance(model, type) or not isinstance(model, HasWeights):
        got = f"the class {model.__name__}: make a model of it first" if isinstance(model, type) else shown(model)
        raise TypeError(
            f"{what} needs a model with the methods weight_sites() and hyper_sites(), such as models.MLP "
            f"or models.from_module(...); got {got}"
        )


def check_shapes(shapes: Mapping[str, Any], want: Mapping[str, Any], who: str, name: str = "guide") -> None:
    """Check that a guide has the sites of a model.

    Raises:
        ValueError: a name or shape differs.
    """
    for site in {**want, **shapes}:
        expected, got = (f"has shape {list(of[site])}" if site in of else "does not exist" for of in (want, shapes))
        if expected != got:
            raise ValueError(
                f"{name} must have the latent sites of the model, in which {site!r} {expected}; got {who}, in which it {got}"
                ": make it with this model"
            )


def drop_rates(setting: float | Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """The drop rate of every weight, from one rate or a mapping from name patterns to rates.

    Raises:
        ValueError: a rate is outside [0, 1), or a pattern does not fit.
        TypeError: a rate is no number.
    """
    rates: dict[str, Any] = by_name(setting, names, "drop_rate")
    for name, rate in rates.items():
        check_drop_rate(rate, name)
    return {name: real(rate, "drop_rate", f"the rate of {name!r}", least=0, below=1) for name, rate in rates.items()}


def input_units(model: HasWeights) -> dict[str, InputUnits]:
    """The input units of every weight: ``model.input_units()`` if it exists, otherwise axis 1 unless it is a vector."""
    if hasattr(model, "input_units"):
        known = model.input_units()
        return {name: known.get(name, InputUnits(None)) for name in model.weight_sites()}
    return {name: InputUnits(1 if w.dim() > 1 else None) for name, w in model.weight_sites().items()}


def first_weights(model: HasWeights) -> tuple[str, ...]:
    """The weights that act on x: ``model.first_weights()`` if it exists, otherwise the first weight with several axes."""
    if hasattr(model, "first_weights"):
        return tuple(model.first_weights())
    return tuple(name for name, w in model.weight_sites().items() if w.dim() > 1)[:1]


FEW_INPUTS = 20  # of a network with fewer, none is dropped unless asked for: one of them is too much of x to lose


def undropped_inputs(
    model: HasWeights, drop_rate: float | Mapping[str, float], mask_input: bool | None
) -> dict[str, float]:
    """The rate 0 of the weights that act on x and are not to be dropped.

    Args:
        mask_input: whether to drop inputs of the network; if None, not if they are few, unless `drop_rate` names weights, no
            other weight is dropped, or the first layer cannot be identified.
    """
    if mask_input is None:
        if isinstance(drop_rate, Mapping):
            return {}
        try:
            first = first_weights(model)
        except ValueError:
            return {}
        units, shapes = input_units(model), {name: w.shape for name, w in model.weight_sites().items()}
        few = [n for n in first if units[n].axis is not None and units[n].count(shapes[n]) < FEW_INPUTS]
        return dict.fromkeys(few, 0.0) if any(len(s) > 1 and n not in few for n, s in shapes.items()) else {}
    mask = flag(mask_input, "mask_input", "whether to drop inputs of the network itself")
    return {} if mask else dict.fromkeys(first_weights(model), 0.0)


def check_units(names: Iterable[str], model: HasWeights, what: str, instead: str) -> None:
    """Raise a ValueError if the axis that indexes input units is unknown for one of the weights `names`.

    Args:
        instead: an alternative, for the message, in which NAME is replaced by the name of the weight.
    """
    units, weights = input_units(model), model.weight_sites()
    for name in names:
        if weights[name].dim() > 1 and units[name].axis is None:
            raise ValueError(
                f"{what} needs to know which axis of a weight indexes the input units of its layer; {name!r} of shape "
                f"{tuple(weights[name].shape)} belongs to no layer of a known kind. For a weight, specify its axis: "
                f"models.from_module(..., input_axes={{{name!r}: 0}}); otherwise {instead.replace('NAME', repr(name))}"
            )
