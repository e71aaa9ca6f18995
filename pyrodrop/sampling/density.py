"""Minus the log joint density of a model's latent sites and the data, in unconstrained coordinates.

    w_j = T_j(u_j)                                           u_j real, T_j onto the support of site j
    U(u) = -beta ln p(y | x, w) - sum_j (ln p(w_j | w_<j) + ln |det dT_j / du_j|)

beta, the power of the likelihood, is 1 for the posterior.

Neal (2011), MCMC using Hamiltonian dynamics, https://arxiv.org/abs/1206.1901.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent, biject_to

from pyrodrop import distributions
from pyrodrop.arguments import shown
from pyrodrop.constraints import Real, checked
from pyrodrop.data import Data, Dataset
from pyrodrop.devices import seeded
from pyrodrop.inputs import Inputs, mapped
from pyrodrop.likelihoods.censored import check_complete
from pyrodrop.models import NetworkModel, TrainedNetwork

_RADIUS = 2.0  # of the unconstrained initial values of hyperparameters, as in Pyro's init_to_uniform


@dataclass(frozen=True)
class Site:
    """A latent site.

    Attributes:
        to_support: the transformation T_j of the unconstrained value, which has `shape`, to the support.
    """

    shape: torch.Size
    to_support: Any


@contextmanager
def unchecked() -> Iterator[None]:
    """Let energies be infinite or NaN within the block, which samplers reject: neither Pyro nor autograd raises an error."""
    with pyro.validation_enabled(False), torch.autograd.set_detect_anomaly(False):
        yield


class _Power(Messenger):
    """Raises the likelihood to a power: applied inside `poutine.condition`, it meets only y as an observed site."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.power


class Density:
    """The density of a model's latent sites and of data.

    Args:
        model: in evaluation mode.
        x, y: all of the data.
        likelihood_power: beta.

    Raises:
        ValueError: a site has no density, or a support that depends on other sites.
    """

    def __init__(self, model: NetworkModel, x: Inputs, y: Tensor, likelihood_power: float = 1.0) -> None:
        self.model: NetworkModel = model
        self.x: Inputs = x
        self.y: Tensor = y
        self.likelihood_power: float = likelihood_power
        first = next(iter(model.weight_sites().values()))
        self.dtype: torch.dtype = first.dtype
        self.device: torch.device = first.device
        self.sites: dict[str, Site] = self._latent()
        self.sizes: list[int] = [site.shape.numel() for site in self.sites.values()]

    def flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """Unconstrained values as one vector ``[D]``, all sites one after the other."""
        return torch.cat([values[name].reshape(-1) for name in self.sites])

    def by_site(self, q: Tensor) -> dict[str, Tensor]:
        """The unconstrained value of every site, ``[..., *shape]``, in vectors ``[..., D]``."""
        return {
            name: value.reshape(*q.shape[:-1], *site.shape)
            for (name, site), value in zip(self.sites.items(), q.split(self.sizes, -1), strict=True)
        }

    def constrained(self, q: Tensor) -> dict[str, Tensor]:
        """The value of every site on its support, otherwise as `by_site`."""
        return {name: self.sites[name].to_support(value) for name, value in self.by_site(q).items()}

    def joint(self, *args: Any) -> Any:
        """Call the model with the likelihood to its power, as a program for Pyro."""
        with _Power(self.likelihood_power):
            return self.model(*args)

    def energy(self, values: Mapping[str, Tensor]) -> Tensor:
        """U at unconstrained values, a differentiable scalar."""
        constrained = {name: site.to_support(values[name]) for name, site in self.sites.items()}
        with poutine.block(), unchecked():
            trace = poutine.trace(poutine.condition(self.joint, data=constrained)).get_trace(self.x, self.y)
        log_joint: Any = trace.log_prob_sum()
        for name, site in self.sites.items():
            log_joint = log_joint + site.to_support.log_abs_det_jacobian(values[name], constrained[name]).sum()
        return -log_joint  # type: ignore[no-any-return]

    def draw(self, seed: int) -> dict[str, Tensor]:
        """Unconstrained values: hyperparameters uniform on [-2, 2], and weights from their prior given these."""
        weights = self.model.weight_sites()
        with seeded(seed, self.device), torch.no_grad(), poutine.block(), unchecked():
            hyper = {
                name: (2 * torch.rand(site.shape, dtype=self.dtype, device=self.device) - 1) * _RADIUS
                for name, site in self.sites.items()
                if name not in weights
            }
            if not hyper and self._priors is not None:
                drawn = {name: prior() for name, prior in self._priors.items()}
            else:
                nodes = self._traced({name: self.sites[name].to_support(value) for name, value in hyper.items()})
                drawn = {name: nodes[name]["value"] for name in self.sites if name not in hyper}
            return {
                name: hyper[name] if name in hyper else site.to_support.inv(drawn[name]).to(self.dtype)
                for name, site in self.sites.items()
            }

    @functools.cached_property
    def _priors(self) -> dict[str, Any] | None:
        """The priors in the order of a call, in a model without hyperparameters; None if a call draws other values.

        Drawing from them takes a tenth of the time of a call of the model, which matters for thousands of chains.
        """

        def seeded_anew(draw: Any) -> Any:
            with seeded(0, self.device):
                return draw()

        nodes = seeded_anew(lambda: self._traced({}))
        priors = {name: node["fn"] for name, node in nodes.items() if name in self.sites}
        values = seeded_anew(lambda: {name: prior() for name, prior in priors.items()})
        return priors if all(torch.equal(values[name], nodes[name]["value"]) for name in self.sites) else None

    def _latent(self) -> dict[str, Site]:
        """The latent sites by name."""
        weights = {name: value.detach() for name, value in self.model.weight_sites().items()}
        hyper = {n: value.detach() for sites in self.model.hyper_sites().values() for n, value in sites.items()}
        with seeded(0, self.device), torch.no_grad(), poutine.block(), unchecked():
            nodes = self._traced(weights | hyper)
            again = self._traced(weights | {name: 1.7 * value for name, value in hyper.items()})
            latent = {
                name: node
                for name, node in nodes.items()
                if node["type"] == "sample"
                and not site_is_subsample(node)
                and (name in weights or name in hyper or not node["is_observed"])
            }
            return {name: _site(name, node, again[name]) for name, node in latent.items()}

    def _traced(self, values: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """The sites of a call with these values."""
        conditioned = poutine.condition(self.model, data=dict(values))
        return poutine.trace(conditioned).get_trace(self.x, self.y).nodes  # type: ignore[no-any-return]


@checked
def density_of(
    model: NetworkModel,
    data: Data,
    dtype: torch.dtype | None = None,
    likelihood_power: Annotated[float, Real("the power of the likelihood", above=0)] = 1.0,
) -> Density:
    """The density of a copy of the model in evaluation mode, and of the data on its device.

    Raises:
        TypeError: `model` is not one of `pyrodrop.models`.
        ValueError: the network draws masks that no weight carries, `dtype` or `likelihood_power` is not allowed, the data do
            not fit the model, or a site has a prior under which a sampler cannot move.
    """
    if not isinstance(model, NetworkModel):
        raise TypeError(
            "the posterior needs a model of pyrodrop.models, such as MLP or from_module; got "
            f"{shown(model)}. For other Pyro models use pyro.infer.mcmc.util.initialize_model"
        )
    if isinstance(model, TrainedNetwork) and model.dropouts.noise:
        raise ValueError(
            "the network was read with dropout that no weight carries: its masks are noise of the function, which the joint "
            "density of the weights does not contain. Build the model from the network without this dropout: "
            "models.from_module(net.eval(), ...)"
        )
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32, torch.float64 or None; got {dtype!r}")
    dataset = Dataset.of(data)
    check_complete(model, dataset.y, "sampling the exact posterior")
    model = copy.deepcopy(model)
    if dtype is not None:
        model.to(dtype)
    model.standardize(dataset)
    model.check(dataset)
    model.eval()
    first = next(iter(model.weight_sites().values()))

    def wide(values: Tensor) -> Tensor:  # so that x is not rounded before it is standardised
        values = _ordinary(values)
        return values.to(torch.promote_types(values.dtype, first.dtype)) if values.is_floating_point() else values

    x: Inputs = mapped(lambda part: wide(part).to(first.device), dataset.x)
    y = _ordinary(dataset.y).to(first.device)
    return Density(model, x, y.to(first.dtype) if y.is_floating_point() else y, float(likelihood_power))


def _ordinary(values: Tensor) -> Tensor:
    """The tensor, or a copy that autograd can record if it was made under `torch.inference_mode`."""
    return values.clone() if values.is_inference() else values


def _site(name: str, node: Any, again: Any) -> Site:
    """A latent site; a ValueError if a sampler cannot move it.

    Args:
        again: the site in a trace with other hyperparameters.
    """
    fn, value = node["fn"], node["value"]
    element = fn
    while isinstance(element, Independent):
        element = element.base_dist
    for kind, reason in _REFUSED.items():
        if isinstance(element, kind):
            raise ValueError(f"the prior of {name!r} {reason}")
    if fn.support.is_discrete:
        raise ValueError(
            f"a potential needs continuous latent sites; {name!r} has a {type(element).__name__} distribution, which is "
            "discrete"
        )
    try:
        fn.log_prob(value)
        to_support, other = biject_to(fn.support), biject_to(again["fn"].support)
    except NotImplementedError as error:
        raise ValueError(f"the posterior of {name!r} has no density that a sampler could use: {error}") from error
    shape = torch.Size(to_support.inverse_shape(value.shape))
    probe = torch.randn(shape, dtype=value.dtype, device=value.device)
    if not torch.equal(to_support(probe), other(probe)):
        raise ValueError(
            f"the support of {name!r} depends on other latent sites, so that one transformation cannot serve all of their "
            "values: give it a prior of fixed support"
        )
    return Site(shape, to_support)


_PROPER = "use a proper prior, such as priors.Gaussian, priors.ARD with a hyperprior, or priors.Horseshoe"
_REFUSED: dict[type, str] = {
    distributions.LogUniform: "is log-uniform, which is improper: its density does not integrate to a finite number, and "
    "the posterior has infinite mass around w = 0, so there is nothing to sample (Hron et al. 2018, arXiv:1807.01969). "
    f"For sampling, {_PROPER}",
    dist.ImproperUniform: f"is improper: its density does not integrate to a finite number. For sampling, {_PROPER}",
    distributions.TruncatedLogUniform: "is truncated log-uniform: its density is 0 beyond its bounds and in a gap around "
    f"w = 0, which splits the posterior into parts that gradients do not connect. For sampling, {_PROPER}",
}
