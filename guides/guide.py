"""What every guide shares: q(W) = prod_j q_j(W_j), one factor a weight.

A posterior says what the factor of one weight is (`posterior`) and the rest follows: drawing, the posterior mean, and
rates to read. Its parameters are its own, so any number of guides live in one process. Hyperparameters that a prior draws
(ARD's variances, a horseshoe's scales) have log-normal factors

    lambda ~ LogNormal(a, b^2)          a = hyper_loc, ln b = hyper_log_scale, of the hyperparameter's shape
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol, runtime_checkable

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.modules import LocalModule, ParameterTree


@runtime_checkable
class HasWeights(Protocol):
    """A model that can say which weights it draws, from where training starts, and which hyperparameters."""

    def weight_sites(self) -> dict[str, Tensor]: ...

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]: ...


class Guide(LocalModule):
    """A posterior over the weights of a model.

    Args:
        model: a model that knows its weights, such as those of `pyrodrop.models`.

    Raises:
        TypeError: the model does not; `models.from_module` makes one that does of any network.
    """

    def __init__(self, model: HasWeights) -> None:
        super().__init__()
        if not isinstance(model, HasWeights):
            raise TypeError(
                f"{type(self).__name__} needs a model that knows its weights (weight_sites, hyper_sites), as models.MLP "
                f"and models.from_module make; got {type(model).__name__}"
            )
        self.sites = tuple(model.weight_sites())
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
