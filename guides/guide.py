"""What every guide shares: q(W) = prod_j q_j(W_j), one factor a weight.

A posterior says what the factor of one weight is (`posterior`) and the rest follows: drawing, the posterior mean, and
rates to read. Its parameters are its own, so any number of guides live in one process. Hyperparameters that a prior draws
(ARD's variances, a horseshoe's scales) have log-normal factors

    lambda ~ LogNormal(a, b^2)          a = hyper_loc, ln b = hyper_log_scale, of the hyperparameter's shape
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions import InputUnits
from pyrodrop.modules import LocalModule, ParameterTree


@runtime_checkable
class HasWeights(Protocol):
    """A model that can say which weights it draws, from where training starts, and which hyperparameters."""

    def weight_sites(self) -> dict[str, Tensor]: ...

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]: ...


@dataclass(frozen=True)
class RateKind:
    """What the numbers are that a guide's `rates` returns.

    Attributes:
        name: of the variable in a data tree, such as ``drop_rate``.
        meaning: in words.
        learned: whether training changes them; if not, they are the user's.
    """

    name: str
    meaning: str
    learned: bool


ALPHA = RateKind("alpha", "variance of the weights' multiplicative noise", learned=True)
DROP_RATE = RateKind("drop_rate", "probability of dropping an input", learned=False)


class Guide(LocalModule):
    """A posterior over the weights of a model.

    Args:
        model: a model that knows its weights, such as those of `pyrodrop.models`.

    Attributes:
        rate_kind: what `rates` returns, for a guide that has rates.

    Raises:
        TypeError: the model does not; `models.from_module` makes one that does of any network.
    """

    rate_kind: ClassVar[RateKind] = ALPHA

    def __init__(self, model: HasWeights) -> None:
        super().__init__()
        if not isinstance(model, HasWeights):
            raise TypeError(
                f"{type(self).__name__} needs a model that knows its weights (weight_sites, hyper_sites), as models.MLP "
                f"and models.from_module make; got {type(model).__name__}"
            )
        self.sites = tuple(model.weight_sites())
        self.units = input_units(model)
        hyper = model.hyper_sites()
        self.hyper_sites = {name: tuple(sites) for name, sites in hyper.items()}
        starts = {site: start for sites in hyper.values() for site, start in sites.items()}
        self.hyper_loc = ParameterTree({site: start.log() for site, start in starts.items()})
        self.hyper_log_scale = ParameterTree({site: torch.full_like(start, -2.0) for site, start in starts.items()})

    @abstractmethod
    def posterior(self, name: str) -> TorchDistribution:
        """q of one weight, an event of the weight's shape."""

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw every weight, each at its site. Arguments are the model's and are not looked at."""
        drawn = {}
        for name in self.sites:
            self._draw_hyper(name)
            drawn[name] = pyro.sample(name, self.posterior(name))
        return drawn

    def restart(self, model: HasWeights) -> None:
        """Start anew from the weights that the model has now, and its hyperparameters' starts; rates and variances stay.

        Raises:
            TypeError: the guide keeps no means under the name `loc`; a guide of one's own then has a `restart` of its own.
        """
        if not isinstance(self._modules.get("loc"), ParameterTree):
            raise TypeError(f"{type(self).__name__} has no means `loc` to start anew; give it a method restart(model)")
        means: Any = self.loc
        with torch.no_grad():
            for name, value in model.weight_sites().items():
                means[name].copy_(value)
            for sites in model.hyper_sites().values():
                for site, start in sites.items():
                    self.hyper_loc[site].copy_(start.log())

    def draw(self, num_samples: int) -> dict[str, Tensor]:
        """That many weights of every site, ``[num_samples, ...]``, without a trace."""
        with torch.no_grad():
            return {name: self.posterior(name).expand((num_samples,)).sample() for name in self.sites}

    def mean(self) -> dict[str, Tensor]:
        """The posterior mean of every weight."""
        with torch.no_grad():
            return {name: self.posterior(name).mean.clone() for name in self.sites}

    def rates(self) -> dict[str, Any]:
        """What the guide's noise is by weight name: drop rates, or alphas. Empty for a guide that has neither."""
        return {}

    def describe(self) -> str:
        """One line for tables and saved files."""
        return type(self).__name__

    def _draw_hyper(self, name: str) -> None:
        for site in self.hyper_sites.get(name, ()):
            loc = self.hyper_loc[site]
            scale = torch.exp(self.hyper_log_scale[site])
            pyro.sample(site, dist.LogNormal(loc, scale).to_event(loc.dim()))


def input_units(model: HasWeights) -> dict[str, InputUnits]:
    """Where the input units of a model's weights are: as the model says (``input_units()``), or else their second axis."""
    if hasattr(model, "input_units"):
        known = model.input_units()
        return {name: known.get(name, InputUnits(None)) for name in model.weight_sites()}
    return {name: InputUnits(1 if w.dim() > 1 else None) for name, w in model.weight_sites().items()}


def first_weights(model: HasWeights) -> tuple[str, ...]:
    """The weights that see x itself: as the model says (``first_weights()``), or else its first one."""
    if hasattr(model, "first_weights"):
        return tuple(model.first_weights())
    return tuple(name for name, w in model.weight_sites().items() if w.dim() > 1)[:1]


def check_units(names: Iterable[str], model: HasWeights, what: str, instead: str) -> None:
    """Raise a ValueError if of one of the weights `names` it is not known which axis counts input units.

    Args:
        names: the weights that noise by input unit is meant for.
        model: whose they are.
        what: the noise, for the message.
        instead: what else can be done; in it ``NAME: value`` stands for such an entry of every weight.
    """
    units, shapes = input_units(model), {name: tuple(w.shape) for name, w in model.weight_sites().items()}
    wrong = [name for name in names if len(shapes[name]) > 1 and units[name].axis is None]
    if wrong:
        which = " and ".join(f"{name!r} of shape {shapes[name]}" for name in wrong)
        axes = ", ".join(f"{name!r}: 0" for name in wrong)
        instead = re.sub("NAME: ([^,]*)", lambda found: ", ".join(f"{name!r}: {found[1]}" for name in wrong), instead)
        raise ValueError(
            f"{what} needs to know which axis of a weight counts the input units of its layer; {which} "
            f"{'belongs' if len(wrong) == 1 else 'belong'} to no layer of a known kind. For a weight, say its axis: "
            f"models.from_module(..., input_axes={{{axes}}}); for what is none, {instead}"
        )
