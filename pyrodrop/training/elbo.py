"""The two terms of the ELBO, estimated from one sample of the guide.

    ELBO = E_q[sum_n ln p(y_n | x_n, W)] - KL(q || prior) = E_q[-nll] - kl

The model's plate scales the nll of a minibatch to the data set. Kingma, Salimans & Welling (2015), eq. 2-3,
https://arxiv.org/abs/1506.02557.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions import Delta, TorchDistribution, Unit
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent

from pyrodrop.checks import HasWeights
from pyrodrop.divergences import Convention, NoDivergence, convention, divergence, worst
from pyrodrop.guides.ensemble import members_of
from pyrodrop.models.network import repeatable
from pyrodrop.reparam.lazy import LazyDistribution


class Terms(NamedTuple):
    """The terms for one sample of the guide, in nats for the whole data set; differentiable scalars.

    Attributes:
        nll: negative log likelihood.
        kl_weights: KL divergence of the weights' posterior from their prior.
        kl_hyper: KL divergence of the priors' latent hyperparameters; 0 if there are none.
    """

    nll: Tensor
    kl_weights: Tensor
    kl_hyper: Tensor

    @property
    def kl(self) -> Tensor:
        """The KL divergence of weights and hyperparameters."""
        return self.kl_weights + self.kl_hyper

    @property
    def loss(self) -> Tensor:
        """The estimate of the negative ELBO."""
        return self.nll + self.kl


def elbo_terms(model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> Terms:
    """The negative log likelihood at one sample of the guide, and the KL divergence of the guide's factors from the priors.

    Their sum is the loss of Pyro's `TraceMeanField_ELBO`, but counts the ``log_density`` of a Delta, as `Trace_ELBO` does.
    Handlers around model or guide (scale, mask, condition) have the same effect as there. If the guide draws two sites of a
    Pyro model in the opposite order, the prior of the site that it draws first may depend on the other: that site
    contributes log q - log p of its draw. Pyro only warns about this.

    Raises:
        ValueError: the guide does not sample a latent site of the model.
    """
    return _terms(_sites(model, guide, args, kwargs), _hyperparameters(model))


def terms_of(model: Callable[..., Any], guide_trace: Any, model_trace: Any) -> Terms:
    """`elbo_terms` of a trace of the guide, and of one of the model that was replayed from it."""
    return _terms(_pairs(model, guide_trace, model_trace), _hyperparameters(model))


class DrawnTerms:
    """The terms of a bound on the log evidence, for several samples of one trained model and guide, which must not change.

    Scales that the guide gives its factors (`kl_scale`, `pyro.poutine.scale`), a `rate_prior` and the `common_scale` are
    left out.
    """

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any]) -> None:
        self.model: Callable[..., Any] = model
        self.guide: Callable[..., Any] = guide
        self._hyper = _hyperparameters(model)
        self.scale: float | None = None  # the common one

    def draw(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, nll_alone: bool = False) -> Terms:
        """`elbo_terms` for a new sample of the guide; with `nll_alone` the KL divergence is left out, and is 0."""
        with repeatable(self.model):
            sites = _sites(self.model, self.guide, args, kwargs)
        if nll_alone:
            sites = [(site, q) for site, q in sites if q is None]
        else:
            self.scale = common_scale(node for pair in sites for node in pair if node is not None)
            sites = [(site, q and self._scaled(q)) for site, q in sites if not (q and q["infer"].get("penalty"))]
        terms = _terms(sites, self._hyper)
        return terms._replace(nll=terms.nll / (self.scale or 1))

    def _scaled(self, q: dict[str, Any]) -> dict[str, Any]:
        """A site of the guide with the scale of its plates alone, or without the common one."""
        return {**q, "scale": _plates(q) if self.scale is None else q["scale"] / self.scale}


def _terms(sites: Iterable[tuple[Any, Any]], hyper: frozenset[str]) -> Terms:
    """The terms for one sample."""
    nll, kl_weights, kl_hyper = (torch.zeros(()) for _ in range(3))
    for site, q in sites:
        if q is None:
            nll = nll - scale_and_mask(site["fn"].log_prob(site["value"]), site["scale"], site["mask"]).sum()
            continue
        name = (q if site is None else site)["name"]
        kl = scale_and_mask(_divergence(q, site), q["scale"], q["mask"]).sum()
        if (name.removesuffix("_unconstrained") if site is None else name) in hyper:
            kl_hyper = kl_hyper + kl
        else:
            kl_weights = kl_weights + kl
    return Terms(nll, kl_weights, kl_hyper)


def common_scale(nodes: Iterable[Any]) -> float | None:
    """The factor that all sites have beyond that of their plates, as by `pyro.poutine.scale` around model and guide.

    1 if they have the same tensor of several factors, as weights of rows; None if they differ, or all sites are observed.
    """
    drawn = [node for node in nodes if node["type"] == "sample" and not site_is_subsample(node)]
    sites = [node for node in drawn if not node["infer"].get("_deterministic")]
    scales = [torch.as_tensor(site["scale"]).double().cpu() / _plates(site) for site in sites]
    alike = all(scale.shape == scales[0].shape and torch.allclose(scale, scales[0], rtol=1e-6) for scale in scales)
    if not alike or all(site["is_observed"] for site in sites):
        return None
    one = scales[0].min() != scales[0].max() or math.isclose(scales[0].max(), 1, rel_tol=1e-6)
    return 1.0 if one else float(scales[0].max())


class Factor(NamedTuple):
    """The guide's and the model's distribution at one site.

    Attributes:
        q: the guide's distribution.
        p: the model's distribution, the prior.
    """

    q: Any
    p: Any

    @property
    def convention(self) -> Convention:
        """How the KL divergence is computed: exactly, approximately or up to a constant; see `Convention`."""
        return convention(self.q, self.p)


def site_factors(
    model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
) -> list[dict[str, Factor]]:
    """The guide's factors by site: one dictionary per member of an ensemble, and one for any other guide."""
    factors = []
    with torch.no_grad():
        for member in members_of(guide):
            pairs = _sites(model, member, args, kwargs)
            made = _made_of_others(pairs, model, member, args, kwargs)
            drawn = [(site["name"], site, q) for site, q in pairs if q is not None and site is not None]
            factors.append({name: Factor(made.get(name, q["fn"]), site["fn"]) for name, site, q in drawn})
    return factors


def elbo_convention(model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> Convention:
    """The convention of the guide's KL divergence: the worst over its factors."""
    return worst(site_conventions(model, guide, *args, **kwargs).values())


def site_conventions(
    model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any
) -> dict[str, Convention]:
    """The convention of the KL divergence by site; for an ensemble, the worst over its members."""
    members = site_factors(model, guide, *args, **kwargs)
    return {site: worst(member[site].convention for member in members if site in member) for site in members[0]}


def _sites(model: Any, guide: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The `_pairs` of one sample of the guide."""
    drawn = poutine.trace(guide).get_trace(*args, **kwargs)
    return _pairs(model, drawn, poutine.trace(poutine.replay(model, trace=drawn)).get_trace(*args, **kwargs))


def _pairs(model: Callable[..., Any], guide_trace: Any, model_trace: Any) -> list[tuple[Any, Any]]:
    """Pairs of the sample sites of a trace of the model and of one of the guide, from which the model was replayed.

    The guide's site is None for an observed site of the model; the model's is None for an auxiliary site of the guide.
    """
    in_guide = [
        site for site in guide_trace.nodes.values() if site["type"] == "sample" and str(site["name"]) not in model_trace
    ]
    others: list[tuple[Any, Any]] = [(None, q) for q in in_guide if not q["is_observed"] and not site_is_subsample(q)]
    order, latest = {name: place for place, name in enumerate(guide_trace.nodes)}, -1
    independent = _of_package(model) is not None
    sites: list[tuple[Any, Any]] = []
    for name, site in model_trace.nodes.items():
        if site["type"] != "sample" or site_is_subsample(site):
            continue
        if site["is_observed"]:
            sites.append((site, None))
            continue
        if name not in guide_trace:
            raise ValueError(
                f"the guide must sample every latent site of the model; it has no site {name!r}, only "
                f"{list(guide_trace.nodes)}"
            )
        q = guide_trace.nodes[name]
        # if so, the prior may depend on a site that the guide samples later
        later = order[name] < latest and not independent
        sites.append((site, {**q, "by_draw": later, "made": bool(others) and isinstance(_elements(q["fn"]), Delta)}))
        latest = max(latest, order[name])
    return sites + others + [(None, q) for q in in_guide if q["is_observed"] and isinstance(_elements(q["fn"]), Unit)]


def _made_of_others(
    pairs: list[tuple[Any, Any]], model: Any, guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Distributions of the sites that a guide computes from its auxiliary sites, or gives a log_density, in place of its
    Delta distributions.

    Such a site has another value in a second run of the guide; a site with the same value is a true point mass and is not
    returned.
    """
    made = {site["name"]: q for site, q in pairs if q is not None and site is not None and _is_made(q)}
    if not made:
        return {}
    others = {q["name"]: q["fn"] for site, q in pairs if site is None}
    again = {site["name"]: site["value"] for site, _ in _sites(model, guide, args, kwargs) if site is not None}
    return {
        name: others.get(f"{name}_unconstrained", Transformed(q["fn"].event_shape))
        for name, q in made.items()
        if not torch.equal(q["value"], again[name])
    }


def _is_made(q: Any) -> bool:
    of_element = _elements(q["fn"])
    return bool(q.get("made")) or (isinstance(of_element, Delta) and bool(of_element.log_density.any()))


class Transformed(TorchDistribution):
    """Placeholder for a factor of which only samples and their densities are known."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, shape: torch.Size) -> None:
        super().__init__(torch.Size(), shape, validate_args=False)


def _elements(d: Any) -> Any:
    return d.base_dist if isinstance(d, Independent) else d


def _divergence(q: Any, site: Any) -> Tensor:
    """KL(q || p) of a site.

    An auxiliary site of the guide, from which it computes the model's sites, or a factor has no p, and counts log q.
    """
    if site is None:
        return q["fn"].log_prob(q["value"])  # type: ignore[no-any-return]
    if q.get("made") or q.get("by_draw"):  # a site made of an auxiliary one: the ratio is a change of variables
        try:
            return q["fn"].log_prob(q["value"]) - site["fn"].log_prob(q["value"])  # type: ignore[no-any-return]
        except NotImplementedError as error:
            raise NoDivergence(f"no KL divergence of {site['name']!r} from its prior: {error}") from error
    if isinstance(q["fn"], LazyDistribution) and isinstance(site["fn"], LazyDistribution):
        return q["fn"].divergence(site["fn"])
    kl = divergence(q["fn"], site["fn"], lambda: q["value"])
    # of a point mass the divergence is -log p; the log_density of a value that the guide has drawn itself comes to it
    return kl + q["fn"].log_prob(q["value"]) if isinstance(_elements(q["fn"]), Delta) else kl


def _plates(site: Any) -> float:
    """The factor by which the plates around a site scale it: size of the data set over size of the minibatch."""
    return math.prod(frame.full_size / frame.size for frame in site["cond_indep_stack"] if frame.full_size)


def _hyperparameters(model: Callable[..., Any]) -> frozenset[str]:
    """Names of the latent hyperparameters of a model with a method ``hyper_sites``; empty for other models."""
    inner = _of_package(model)
    return frozenset() if inner is None else frozenset(s for sites in inner.hyper_sites().values() for s in sites)


def _of_package(model: Any) -> Any:
    """The pyrodrop model (one with ``hyper_sites``) inside of Pyro's handlers, or the model itself; None for others."""
    while not isinstance(model, HasWeights):
        if not hasattr(model, "fn"):
            return None
        model = model.fn
    return model
