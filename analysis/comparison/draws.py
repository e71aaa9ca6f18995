"""Samples of a posterior, each with its function, the likelihood of the data, and two densities.

    W_s ~ q                                                      s = 1 ... S
    f_s = network(x; W_s)                                        [S, N, ...], in the units of y
    log_joint_s = ln p(W_s) + sum_n ln p(y_n | x_n, W_s)         both in nats, if the densities exist
    log_q_s     = ln q(W_s)

The importance ratio of the exact posterior to q is exp(log_joint - log_q) up to a constant. It does not exist if q has
atoms or is concentrated on a line (theta = 0, points, type A), or if the prior is improper or has no density.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.checks import Inputs, mapped, num_rows
from pyrodrop.checks import count as whole_number
from pyrodrop.data import Dataset
from pyrodrop.devices import seeded
from pyrodrop.files import under
from pyrodrop.guides import Ensemble
from pyrodrop.guides.guide import Guide
from pyrodrop.likelihoods import aligned, per_row
from pyrodrop.models import NetworkModel
from pyrodrop.models.network import mixes_examples
from pyrodrop.prediction import draws as functions
from pyrodrop.prediction.draws import draw_masks, example_of, masks_of
from pyrodrop.training.elbo import site_conventions
from pyrodrop.training.result import Fit

_BYTES = 256 * 2**20  # most bytes of weights in memory at a time


@dataclass(frozen=True)
class Predictive:
    """Draws at N points, on the CPU: f ``[S, N, ...]``, y ``[S, N, ...]``, ln p(y_n | f_s) ``[S, N]`` where y_n is known."""

    f: Tensor
    y: Tensor
    log_likelihood: Tensor | None = None


@dataclass(frozen=True)
class Draws:
    """S draws from one fit.

    Attributes:
        train, test: predictions at the training points, and at further points or None.
        sites: weights and latent hyperparameters, ``[S, ...]`` each; empty unless `keep` was True.
        log_joint, log_q: ``[S]``, in float64; both None if one of these two densities does not exist.
        left_out: ln p(y_n | other rows, the layers below), ``[S, N]``, if it was requested.
        log_prior: ln p of every weight and hyperparameter given those on which it depends, ``[S]`` in float64 by site; empty
            if one of the two densities does not exist.
        no_density: why one of the two densities does not exist; empty if both exist.
    """

    train: Predictive
    test: Predictive | None
    sites: dict[str, Tensor]
    log_joint: Tensor | None
    log_q: Tensor | None
    no_density: str
    log_prior: dict[str, Tensor] = field(default_factory=dict)
    left_out: Tensor | None = None

    @property
    def log_ratio(self) -> Tensor | None:
        """log_joint - log_q: ``[S]``."""
        return None if self.log_joint is None or self.log_q is None else self.log_joint - self.log_q


def draws_of(
    fit: Fit,
    train: Dataset,
    test_x: Inputs | None = None,
    num_samples: int = 1000,
    *,
    keep: bool = False,
    left_out: bool = False,
    seed: int = 0,
) -> Draws:
    """Sample weights and evaluate the network at them, in chunks that fit into memory.

    Args:
        fit: a fit of a model of `pyrodrop.models`, with any guide.
        train: the training data, for the log likelihood and log_joint.
        keep: whether to return the `sites`.
        left_out: whether to return `left_out`, for a `guides.ExactLastLayer`.
        seed: seed of the draws; the global random state is unchanged.

    Raises:
        ValueError: `num_samples` is less than 1.
        TypeError: the model is not one of `pyrodrop.models`.
    """
    num_samples = whole_number(num_samples, "num_samples", "the number of draws")
    model, guide = fit.model, fit.guide
    if not isinstance(model, NetworkModel):
        raise TypeError(f"the model of the fit must be one of pyrodrop.models; got a {type(model).__name__}")
    reason = no_density(fit, train)
    if reason and not keep:  # whole weights are not needed
        return Draws(
            train=_predicted(fit, train.x, train.y, num_samples, seed),
            test=None if test_x is None else _predicted(fit, test_x, None, num_samples, seed),
            sites={},
            log_joint=None,
            log_q=None,
            no_density=reason,
        )
    x, y = _to(train.x, fit.device), model.likelihood.as_target(train.y.to(fit.device))
    weights = list(model.weight_sites().values())
    per_draw = sum(w.numel() for w in weights) * weights[0].element_size()
    chunk = max(1, min(num_samples, _BYTES // per_draw))
    parts: dict[str, list[Tensor]] = {}
    shapes = masks_of(model, example_of(model, x, fit.device), mixes_examples(model, x))
    with seeded(seed, fit.device), torch.no_grad(), fit.as_trained():
        for first in range(0, num_samples, chunk):
            count = min(chunk, num_samples - first)
            sites, log_q = _draw(model, guide, x, count, density=not reason)
            masks = draw_masks(shapes, count, weights[0])
            predictive = _predictive(fit, sites, masks, x, y)
            arrays = {f"train.{n}": v for n, v in vars(predictive).items() if v is not None}
            if test_x is not None:
                arrays |= {
                    f"test.{n}": v for n, v in vars(_predictive(fit, sites, masks, test_x)).items() if v is not None
                }
            if log_q is not None:
                assert predictive.log_likelihood is not None
                log_prior = log_prior_of(model, sites)
                arrays |= {f"prior.{n}": v for n, v in log_prior.items()}
                log_likelihood = predictive.log_likelihood.double().sum(1)
                arrays |= {"log_q": log_q, "log_joint": torch.stack([*log_prior.values(), log_likelihood]).sum(0)}
            if left_out:
                each = [guide.left_out({n: v[draw] for n, v in sites.items()}) for draw in range(count)]  # type: ignore[attr-defined]
                arrays["left_out"] = torch.stack(each)
            if keep:
                arrays |= {f"sites.{n}": v for n, v in sites.items()}
            for name, value in arrays.items():
                parts.setdefault(name, []).append(value.detach().cpu())
    whole = {name: torch.cat(values) for name, values in parts.items()}
    return Draws(
        train=Predictive(**under("train.", whole)),
        test=None if test_x is None else Predictive(**under("test.", whole)),
        sites=under("sites.", whole),
        log_joint=whole.get("log_joint"),
        log_q=whole.get("log_q"),
        no_density=reason,
        log_prior=under("prior.", whole),
        left_out=whole.get("left_out"),
    )


def check_trained_on(fit: Any, data: Dataset, name: str) -> None:
    """Check that a fit was trained on these data.

    Args:
        fit: a fit with a `fingerprint` of its data, which is not checked if it is None.

    Raises:
        ValueError: the data have another fingerprint, have missing values, or do not fit the model.
    """
    model: Any = getattr(fit, "model", None)
    if isinstance(model, NetworkModel):
        model.targets_check(data.x)(data)
    fingerprint = getattr(fit, "fingerprint", None)
    if fingerprint is not None and fingerprint != data.fingerprint:
        raise ValueError(
            f"{name} must be the data that this fit was trained on; got {len(data)} rows with another fingerprint. For "
            "other observations there is held-out log density"
        )


def no_density(fit: Fit, data: Dataset) -> str:
    """The reason why log p - log q does not exist for the weights of a fit; empty if it exists."""
    model, guide = fit.model, fit.guide
    assert isinstance(model, NetworkModel)
    few = data if mixes_examples(model, data.x) else data.first(1)
    x, y = _to(few.x, fit.device), few.y.to(fit.device)
    with seeded(0, fit.device), fit.as_trained():
        for site, meaning in site_conventions(model, guide, x, y).items():
            if meaning.kind == "up_to_constant":
                return f"log p - log q does not exist at {site!r}: {meaning.detail}"
        if isinstance(guide, Ensemble) and any(member.hyper_sites for member in guide.members):
            return "log q does not exist for an ensemble whose members have latent hyperparameters"
        try:
            with torch.no_grad():
                sites, _ = _draw(model, guide, x, 1, density=True)
                log_prior_of(model, sites)
        except NotImplementedError as error:  # a posterior or prior without a density
            return f"log p - log q does not exist: {error}"
    return ""


def _draw(
    model: NetworkModel, guide: Callable[..., Any], x: Inputs, count: int, *, density: bool
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Weights and hyperparameters ``[count, ...]`` by site, and ln q of all of them together, ``[count]``.

    Guides of this package and Pyro's automatic ones sample in a plate; other guides are called once per draw.
    """
    if isinstance(guide, Ensemble):
        sites = guide.draw(count)
        return sites, _log_mixture(guide, sites) if density else None
    names = [*model.weight_sites(), *(n for sites in model.hyper_sites().values() for n in sites)]
    if isinstance(guide, Guide | AutoGuide):
        with poutine.block(), pyro.plate("draws", count):
            return _of_trace(guide, x, names, density=density)
    with poutine.block():
        each = [_of_trace(guide, x, names, density=density) for _ in range(count)]
    stacked = {n: torch.stack([sites[n] for sites, _ in each]) for n in names}
    log_q = [value for _, value in each if value is not None]
    return stacked, torch.stack(log_q) if log_q else None


def _of_trace(
    guide: Callable[..., Any], x: Inputs, names: Sequence[str], *, density: bool
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The model's sites as the guide samples them, and ln q of all that the guide samples."""
    nodes: dict[str, Any] = dict(poutine.trace(guide).get_trace(x).nodes)
    drawn = {n: s for n, s in nodes.items() if s["type"] == "sample" and not site_is_subsample(s)}
    values = {n: s["value"] for n, s in drawn.items()}
    return {n: values[n] for n in names}, _sum({n: s["fn"] for n, s in drawn.items()}, values) if density else None


def _log_mixture(guide: Ensemble, sites: Mapping[str, Tensor]) -> Tensor:
    """ln mean_m q_m."""
    each = [_sum({n: member.posterior(n) for n in sites}, sites) for member in guide.members]
    return torch.logsumexp(torch.stack(each), 0) - math.log(len(each))


def log_prior_of(model: NetworkModel, sites: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """ln p of each weight and latent hyperparameter, given values ``[S, ...]`` by site: ``[S]`` in float64 by site."""
    initial, units = model.weight_sites(), model.input_units()
    count = len(next(iter(sites.values())))
    with poutine.block(), pyro.plate("draws", count), poutine.trace() as capture, poutine.condition(data=dict(sites)):
        for name, prior in model.priors.items():
            pyro.sample(name, prior.for_site(name, initial[name], units[name]))
    nodes: dict[str, Any] = dict(capture.trace.nodes)
    return {name: nodes[name]["fn"].log_prob(value).double() for name, value in sites.items()}


def _sum(distributions: Mapping[str, TorchDistribution], sites: Mapping[str, Tensor]) -> Tensor:
    """Log density of all sites together, ``[S]`` in float64."""
    return torch.stack([distributions[name].log_prob(value).double() for name, value in sites.items()]).sum(0)


def _predictive(
    fit: Fit, sites: Mapping[str, Tensor], masks: Mapping[str, Tensor], x: Inputs, y: Tensor | None = None
) -> Predictive:
    """The predictions at x for these weights and masks."""
    model: Any = fit.model
    noise = {name: sites[name] for name in model.weight_sites()} | dict(masks)
    inside = any(mask.dim() == 1 for mask in masks.values())
    block = functions.Draws(model, len(next(iter(noise.values()))), noise, {}, {}, drawn_inside=inside)
    output: Tensor | None = None
    for draw, first, tile in block.tiles(x, fit.device):
        if output is None:
            output = tile.new_empty((block.num_draws, num_rows(x), *tile.shape[2:]))
        output[draw : draw + len(tile), first : first + tile.shape[1]] = tile
    assert output is not None
    distribution = per_row(model.likelihood(output, model.targets), 2)
    f = model.likelihood.location(output, model.targets)
    return Predictive(
        f=f,
        y=distribution.sample(),
        log_likelihood=None if y is None else distribution.log_prob(aligned(y, distribution)),
    )


def _predicted(fit: Fit, x: Inputs, y: Tensor | None, num_samples: int, seed: int) -> Predictive:
    """The draws of `Fit.predict` at x; the same seed gives the same functions at any x."""
    prediction = fit.predict(x, num_samples, seed=seed)
    log_likelihood = None
    if y is not None:
        distribution, y = prediction.distribution, fit.model.likelihood.as_target(y)  # type: ignore[attr-defined]
        log_likelihood = distribution.log_prob(aligned(y.to(prediction.f.device), distribution)).cpu()
    return Predictive(f=prediction.f.cpu(), y=prediction.y.cpu(), log_likelihood=log_likelihood)


def _to(x: Inputs, device: torch.device) -> Any:
    return mapped(lambda tensor: tensor.to(device), x)
