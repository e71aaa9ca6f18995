"""The two terms of the ELBO, by one draw from the guide.

    ELBO = E_q[sum_n ln p(y_n | x_n, W)] - KL(q || prior) = E_q[-nll] - kl

A minibatch's nll is scaled to the data set by the model's plate. Kingma, Salimans & Welling (2015), eq. 2-3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions import Delta, TorchDistribution
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent

from pyrodrop.divergences import Convention, NoDivergence, convention, divergence, worst
from pyrodrop.networks.modes import repeatable
from pyrodrop.reparam.lazy import LazyLaw


class Terms(NamedTuple):
    """One draw's terms, in nats for the whole data set; scalars, differentiable.

    Attributes:
        nll: minus the log likelihood.
        kl_weights: divergence of the weights.
        kl_hyper: divergence of the priors' hyperparameters, where they are latent.
    """

    nll: Tensor
    kl_weights: Tensor
    kl_hyper: Tensor

    @property
    def kl(self) -> Tensor:
        """The whole divergence."""
        return self.kl_weights + self.kl_hyper

    @property
    def loss(self) -> Tensor:
        """Minus the ELBO's estimate."""
        return self.nll + self.kl


def elbo_terms(model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> Terms:
    """Minus the log likelihood at one draw from the guide, and the divergence of its factors from the priors.

    Their sum is the loss of Pyro's `TraceMeanField_ELBO`, in parts. Handlers around model or guide (scale, mask,
    condition) act as they do there.

    Raises:
        ValueError: a weight that the model draws and the guide does not.
    """
    return _terms(_sites(model, guide, args, kwargs), _hyperparameters(model))


class DrawnTerms:
    """The terms of several draws from one trained model and guide, which do not change in between.

    A weight's divergence in closed form is the same number for every draw if its posterior and prior depend on no other
    site, and is evaluated once.

    Args:
        model, guide: as of `elbo_terms`.
        whole: whether every divergence counts in full, as a bound on the evidence has it, whatever the guide scales its
            factors by (`kl_scale`, `pyro.poutine.scale`). False for what training minimises.
    """

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any], *, whole: bool = False) -> None:
        self.model, self.guide, self.whole = model, guide, whole
        self._hyper = _hyperparameters(model)
        self._fixed = _without_hyperparameters(model, guide)
        self._known: dict[str, Tensor] = {}

    def terms(self, *args: Any, **kwargs: Any) -> Terms:
        """`elbo_terms` of one draw."""
        return _terms(self._sites(*args, **kwargs), self._hyper, self._fixed, self._known, self.whole)

    def nll(self, *args: Any, **kwargs: Any) -> Tensor:
        """Minus the log likelihood at one draw, without the divergence."""
        observed = [(site, q) for site, q in self._sites(*args, **kwargs) if q is None]
        return _terms(observed, self._hyper).nll

    def _sites(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        with repeatable(self.model):
            return _sites(self.model, self.guide, args, kwargs)


def _terms(
    sites: Iterable[tuple[Any, Any]],
    hyper: frozenset[str],
    fixed: frozenset[str] = frozenset(),
    known: dict[str, Tensor] | None = None,
    whole: bool = False,
) -> Terms:
    """The terms of one draw; divergences of `fixed` sites that its values do not enter are kept in `known`."""
    nll, kl_weights, kl_hyper = _zero(), _zero(), _zero()
    for site, q in sites:
        if q is None:
            nll = nll - scale_and_mask(site["fn"].log_prob(site["value"]), site["scale"], site["mask"]).sum()
            continue
        if site is None:  # what the guide draws besides and makes the model's sites of
            density = scale_and_mask(q["fn"].log_prob(q["value"]), _plates(q) if whole else q["scale"], q["mask"]).sum()
            if q["name"].removesuffix("_unconstrained") in hyper:
                kl_hyper = kl_hyper + density
            else:
                kl_weights = kl_weights + density
            continue
        name = site["name"]
        kl = None if known is None else known.get(name)
        if kl is None:
            exact, of_draw = _divergence(q, site)
            kl = scale_and_mask(exact, _plates(q) if whole else q["scale"], q["mask"]).sum()
            if known is not None and name in fixed and not of_draw:
                known[name] = kl
        if name in hyper:
            kl_hyper = kl_hyper + kl
        else:
            kl_weights = kl_weights + kl
    return Terms(nll, kl_weights, kl_hyper)


class Factor(NamedTuple):
    """A guide's factor at one site, with the model's.

    Attributes:
        q, p: the distributions.
        scale: what the guide scales the factor's divergence by in training; 1 but for ``kl_scale`` and handlers.
    """

    q: Any
    p: Any
    scale: float

    @property
    def convention(self) -> Convention:
        """How far the divergence can be trusted."""
        return convention(self.q, self.p)


def site_factors(
    model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
) -> list[dict[str, Factor]]:
    """The guide's factors by site; a dictionary for every member of an ensemble, one for any other guide."""
    found = []
    with torch.no_grad():
        for member in getattr(guide, "members", [guide]):
            pairs = _sites(model, member, args, kwargs)
            sites = [(site, q) for site, q in pairs if q is not None and site is not None]
            made = _made_of_others(pairs, model, member, args, kwargs)
            found.append(
                {
                    site["name"]: Factor(made.get(site["name"], q["fn"]), site["fn"], _mean(q["scale"]) / _plates(q))
                    for site, q in sites
                }
            )
    return found


def elbo_convention(model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> Convention:
    """How far the divergence can be trusted: the worst of the guide's factors."""
    return worst(site_conventions(model, guide, *args, **kwargs).values())


def site_conventions(
    model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
) -> dict[str, Convention]:
    """How far the divergence of every factor can be trusted, by site; of an ensemble, that of the worst member."""
    members = site_factors(model, guide, *args, **kwargs)
    return {site: worst(member[site].convention for member in members if site in member) for site in members[0]}


def _sites(
    model: Callable[..., Any], guide: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[Any, Any]]:
    """The model's sample sites, each with the guide's of that name; None for an observed one."""
    guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
    model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)
    sites: list[tuple[Any, Any]] = []
    for name, site in model_trace.nodes.items():
        if site["type"] != "sample" or site_is_subsample(site):
            continue
        if not site["is_observed"] and name not in guide_trace:
            raise ValueError(
                f"the guide has no factor for {name!r}, which the model draws; it has {list(guide_trace.nodes)}"
            )
        sites.append((site, None if site["is_observed"] else guide_trace.nodes[name]))
    drawn = [
        site for site in guide_trace.nodes.values() if site["type"] == "sample" and str(site["name"]) not in model_trace
    ]
    others: list[tuple[Any, Any]] = [(None, q) for q in drawn if not q["is_observed"] and not site_is_subsample(q)]
    if others:
        sites = [(site, q if q is None else {**q, "made": isinstance(_elements(q["fn"]), Delta)}) for site, q in sites]
    return sites + others


def _made_of_others(
    pairs: list[tuple[Any, Any]], model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """What stands for the factors of sites that a guide makes of others that it draws: point masses at another place each
    time. A site that is at the same place in a second draw is a point mass."""
    made = {site["name"]: q for site, q in pairs if q is not None and site is not None and q.get("made")}
    if not made:
        return {}
    others = {q["name"]: q["fn"] for site, q in pairs if site is None}
    again = {site["name"]: q for site, q in _sites(model, guide, args, kwargs) if q is not None and site is not None}
    return {
        name: others.get(f"{name}_unconstrained", Transformed(q["fn"].event_shape))
        for name, q in made.items()
        if not torch.equal(q["value"], again[name]["value"])
    }


class Transformed(TorchDistribution):
    """Stands for a factor that is known by its draws and their density alone."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, shape: torch.Size) -> None:
        super().__init__(torch.Size(), shape, validate_args=False)


def _elements(d: Any) -> Any:
    return d.base_dist if isinstance(d, Independent) else d


def _divergence(q: Any, site: Any) -> tuple[Tensor, bool]:
    """KL(q || p) of a site, and whether it was estimated from the drawn value."""
    if q.get("made"):  # a guide's draw and its density are at another site, the change of variables is here
        try:
            return q["fn"].log_prob(q["value"]) - site["fn"].log_prob(q["value"]), True
        except NotImplementedError as error:
            raise NoDivergence(f"no divergence of {site['name']!r} from its prior: {error}") from error
    if isinstance(q["fn"], LazyLaw) and isinstance(site["fn"], LazyLaw):
        return q["fn"].divergence(site["fn"]), True
    used = False

    def value() -> Tensor:
        nonlocal used
        used = True
        return q["value"]  # type: ignore[no-any-return]

    return divergence(q["fn"], site["fn"], value), used


def _without_hyperparameters(model: Callable[..., Any], guide: Callable[..., Any]) -> frozenset[str]:
    """Names of the weights whose prior and posterior depend on no other site, of a model and guide that know."""
    if not (hasattr(model, "weight_sites") and hasattr(model, "hyper_sites") and hasattr(guide, "posterior")):
        return frozenset()
    return frozenset(model.weight_sites()) - frozenset(model.hyper_sites())


def _mean(scale: float | Tensor) -> float:
    return float(torch.as_tensor(scale).double().mean())


def _plates(site: Any) -> float:
    """What the plates around a site scale it by: how many of their rows a minibatch's row stands for."""
    return math.prod(frame.full_size / frame.size for frame in site["cond_indep_stack"] if frame.full_size)


def _hyperparameters(model: Callable[..., Any]) -> frozenset[str]:
    """Names of the latent hyperparameters of a model that knows them."""
    while not hasattr(model, "hyper_sites"):
        if not hasattr(model, "fn"):  # not a model of ours in Pyro's handlers
            return frozenset()
        model = model.fn
    return frozenset(site for sites in model.hyper_sites().values() for site in sites)


def _zero() -> Tensor:
    return torch.zeros(())
