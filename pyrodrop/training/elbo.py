"""The two terms of the ELBO, estimated from one sample of the guide.

    ELBO = E_q[sum_n ln p(y_n | x_n, W)] - KL(q || prior) = E_q[-nll] - kl

The model's plate scales the nll of a minibatch to the data set. An estimate for data in rows sums the nll over blocks of
rows, each with the same draws; for keyword arguments it averages over subsamples of the program's plates. Kingma, Salimans
& Welling (2015), eq. 2-3, https://arxiv.org/abs/1506.02557.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta, TorchDistribution, Unit
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent

from pyrodrop.checks import HasPosterior, HasWeights
from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.loader import Loader
from pyrodrop.devices import seeded
from pyrodrop.divergences import Convention, NoDivergence, convention, divergence, worst
from pyrodrop.guides.ensemble import Ensemble, members_of
from pyrodrop.guides.guide import Guide
from pyrodrop.models.network import NetworkModel, mixes_examples
from pyrodrop.models.trained_network import TrainedNetwork
from pyrodrop.parts import Described
from pyrodrop.prediction.agreement import check_call, innermost, knows_sites
from pyrodrop.prediction.draws import rows_at_once
from pyrodrop.reparam.lazy import LazyDistribution
from pyrodrop.steps import Arguments, Batch, Objective, making
from pyrodrop.training.rows import arguments_of, takes_num_data


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
        """The negative ELBO."""
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


def bound_terms(
    model: Callable[..., Any], guide: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *,
    nll_alone: bool = False, known: dict[str, Tensor] | None = None,
) -> tuple[Terms, float]:  # fmt: skip
    """The terms of a bound on the log evidence for a new sample of the guide, and the `common_scale`, 1 if there is none.

    That, scales that the guide gives its factors (`kl_scale`, `pyro.poutine.scale`) are left out; with `nll_alone` also the
    KL divergence, which is 0. The divergences that depend on no sample are kept in `known`.
    """
    sites = _sites(model, guide, args, kwargs)
    scale = common_scale(node for pair in sites for node in pair if node is not None)
    kept = [(site, q) for site, q in sites if q is None or not nll_alone]
    own = [(site, q and {**q, "scale": _plates(q) if scale is None else q["scale"] / scale}) for site, q in kept]
    terms = _terms(own, _hyperparameters(model), known)
    return terms._replace(nll=terms.nll / (scale or 1)), scale or 1.0


def _terms(sites: Iterable[tuple[Any, Any]], hyper: frozenset[str], known: dict[str, Tensor] | None = None) -> Terms:
    """The terms for one sample."""
    nll, kl_weights, kl_hyper = (torch.zeros(()) for _ in range(3))
    for site, q in sites:
        if q is None:
            nll = nll - scale_and_mask(site["fn"].log_prob(site["value"]), site["scale"], site["mask"]).sum()
            continue
        name = (q if site is None else site)["name"]
        if known is None or (kl := known.get(name)) is None:
            density, of_draw = _divergence(q, site)
            kl = scale_and_mask(density, q["scale"], q["mask"]).sum()
            if known is not None and not of_draw:
                known[name] = kl
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
    inner = [(site["name"], q, _elements(q["fn"])) for site, q in pairs if q is not None and site is not None]
    made = {n: q for n, q, d in inner if q.get("made") or (isinstance(d, Delta) and bool(d.log_density.any()))}
    if not made:
        return {}
    others = {q["name"]: q["fn"] for site, q in pairs if site is None}
    again = {site["name"]: site["value"] for site, _ in _sites(model, guide, args, kwargs) if site is not None}
    return {
        name: others.get(f"{name}_unconstrained", Transformed(q["fn"].event_shape))
        for name, q in made.items()
        if not torch.equal(q["value"], again[name])
    }


class Transformed(TorchDistribution):
    """Placeholder for a factor of which only samples and their densities are known."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, shape: torch.Size) -> None:
        super().__init__(torch.Size(), shape, validate_args=False)


def _elements(d: Any) -> Any:
    return d.base_dist if isinstance(d, Independent) else d


def _divergence(q: Any, site: Any) -> tuple[Tensor, bool]:
    """KL(q || p) of a site, and whether it was estimated from the sampled value.

    An auxiliary site of the guide, from which it computes the model's sites, or a factor has no p, and counts log q.
    """
    if site is None:
        return q["fn"].log_prob(q["value"]), True
    if q.get("made") or q.get("by_draw"):  # a site made of an auxiliary one: the ratio is a change of variables
        try:
            return q["fn"].log_prob(q["value"]) - site["fn"].log_prob(q["value"]), True
        except NotImplementedError as error:
            raise NoDivergence(f"no KL divergence of {site['name']!r} from its prior: {error}") from error
    if isinstance(q["fn"], LazyDistribution) and isinstance(site["fn"], LazyDistribution):
        return q["fn"].divergence(site["fn"]), True
    used: list[Tensor] = []

    def value() -> Tensor:
        used.append(q["value"])
        return used[0]

    kl = divergence(q["fn"], site["fn"], value)
    # of a point mass the divergence is -log p; the log_density of a value that the guide has drawn itself comes to it
    return (kl + q["fn"].log_prob(q["value"]), True) if isinstance(_elements(q["fn"]), Delta) else (kl, bool(used))


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


class MeanField(Objective):
    """nll + weight * kl(weights) + kl(hyperparameters), with divergences in closed form where one exists."""

    def backward(self, batch: Arguments, weight: Any) -> Tensor:
        terms, loss = self._loss(batch, weight)
        loss.backward()  # type: ignore[no-untyped-call]
        return terms

    def _loss(self, batch: Arguments, weight: Any) -> tuple[Tensor, Tensor]:
        with making(batch):
            terms = elbo_terms(self.model, self.guide, *batch.args, **batch.kwargs)
        loss = terms.nll + weight * terms.kl_weights + terms.kl_hyper
        return torch.stack([terms.nll.detach(), terms.kl.detach()]), loss

    def terms(self, batch: Arguments) -> Tensor:
        with torch.no_grad():
            return self._loss(batch, 1.0)[0]

    def gradients(self, batch: Arguments, weight: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        terms, loss = self._loss(batch, weight)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return terms, [gradient.to_dense() for gradient in gradients]  # of nn.Embedding(sparse=True)


def check_differentiable(drawn: Any) -> None:
    """Raise a ValueError for a draw in a guide's trace that the parameters of its distribution cannot differentiate."""
    for site in drawn.nodes.values():
        if site["type"] != "sample" or site["is_observed"] or site_is_subsample(site) or site["fn"].has_rsample:
            continue
        if site["fn"].log_prob(site["value"]).requires_grad:
            kind = type(innermost(site["fn"])).__name__
            raise ValueError(
                "objective None differentiates draws of the guide by its parameters, which is impossible for the site "
                f"{site['name']!r} with its {kind} distribution: the gradient would lack a term. Pass "
                "objective=pyro.infer.Trace_ELBO(), or TraceEnum_ELBO(), which sums over its values"
            )


BLOCK = 5000  # rows that are evaluated at a time


@dataclass(frozen=True, repr=False)
class Elbo(Described):
    """An estimate of the evidence lower bound, in nats for the whole data set.

    Attributes:
        value: the estimate, ``-(nll + kl)``.
        se: its standard error; NaN for one sample.
        nll: mean over draws of minus the log likelihood.
        kl: the KL divergence of the posterior from the prior.
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


def elbo_of(fit: Any, data: Dataset | Loader | Keywords, num_samples: int, seed: int) -> Elbo:
    """The ELBO of a fit on these data; the arguments are those of `Fit.elbo`.

    Raises:
        ValueError: data are a loader; the model cannot be called on them; y has another shape than its distribution, or
            values outside its support; the guide leaves sites to be summed out.
    """
    model, guide, device = fit.model, fit.guide, fit.device
    # a seed for each draw, so that all blocks of rows have the same draws
    seeds = torch.randint(2**62, (num_samples,), generator=torch.Generator().manual_seed(seed)).tolist()
    terms = torch.zeros(2, num_samples, dtype=torch.float64)
    of_package = isinstance(model, HasWeights) and isinstance(guide, HasPosterior) and not model.hyper_sites()
    known: dict[str, Tensor] | None = {} if of_package else None
    with torch.no_grad():
        for number, (block, share) in enumerate(_blocks(model, guide, data, device)):
            args, kwargs = block.args, block.kwargs
            if number == 0 and not knows_sites(model, guide):
                with seeded(0, device):
                    check_call(model, guide, *args, **kwargs)
            for draw, seed_of_draw in enumerate(seeds):
                with pyro.validation_enabled(number == draw == 0), seeded(seed_of_draw, device):
                    of_draw, scale = bound_terms(model, guide, args, kwargs, nll_alone=number > 0, known=known)
                terms[:, draw] += torch.tensor([float(of_draw.nll) * share, float(of_draw.kl)], dtype=torch.float64)
            if number == 0:
                with seeded(seed, device):
                    convention = worst(site_conventions(model, guide, *args, **kwargs).values())
    nll, kl = terms
    values = -(nll + kl)
    se = float(values.std() / math.sqrt(num_samples)) if num_samples > 1 else math.nan
    notes = [convention.detail]
    if scale != 1:
        notes.append(f"without the factor {scale:g} of pyro.poutine.scale around model and guide")
    if noise_by_row := fit.settings.get("noise_by_row"):
        notes.append(
            f"of the posterior over weights; training drew the noise of {', '.join(noise_by_row)} per row or position, "
            "which is another posterior over activations"
        )
    if noise := list(model.dropouts.noise) if isinstance(model, TrainedNetwork) else []:
        notes.append(
            f"noise of the function has no part in it, as its prior is its own distribution: {', '.join(noise)}"
        )
    detail = "; ".join(filter(None, notes))
    return Elbo(
        float(values.mean()), se, float(nll.mean()), float(kl.mean()), replace(convention, detail=detail), num_samples
    )


def _blocks(
    model: Any, guide: Any, data: Dataset | Loader | Keywords, device: torch.device
) -> Iterator[tuple[Arguments, float]]:
    """Arguments of calls that together have all rows, each with the factor of its nll: the call's share of the rows if the
    model scales the likelihood to all of them, else 1."""
    if isinstance(data, Keywords):
        yield arguments_of(data, device), 1.0
        return
    if isinstance(data, Loader):
        raise ValueError(f"elbo needs data in memory, elbo(data=(x, y)); got {data.source}")
    together = mixes_examples(model, data.x)  # a ValueError for an x that the network cannot be called on
    if isinstance(model, NetworkModel):
        model.targets_check(data.x)(data)
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
