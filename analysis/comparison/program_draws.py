"""Draws of a Pyro program with the log densities of each, as variables of an ArviZ data tree.

posterior               other sites         [chain, draw, plates ..., SITE_dim_0 ...]
posterior_predictive    observed sites      likewise, sampled from the model, if all can be sampled
observed_data           observed sites      [plates ..., ...]
log_likelihood          observed sites      [chain, draw, plates ...], or [chain, draw, SITE_counted] if some are masked
sample_stats            lp, log_q           [chain, draw]
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.distributions import Delta, Unit
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.devices import seeded
from pyrodrop.prediction.agreement import innermost
from pyrodrop.sampling import Sampled
from pyrodrop.steps import Arguments
from pyrodrop.training.elbo import common_scale
from pyrodrop.training.program_draws import Conditioned, Undrawable, check_whole, drawn_anew, guide_at, many, traced
from pyrodrop.training.result import Fit

Variables = dict[Hashable, tuple[tuple[str, ...], Any]]


class ProgramDraws(NamedTuple):
    """One chain: variables of the groups, without the dimension of chains; log p(z, y) and log q(z) of every draw.

    `no_density` is the reason why log q is no density, or log p not that of the draws, or empty. `log_likelihood` is None if
    sites were summed out in training; masked observations, whose log density is 0, are left out of it and of `observations`,
    all their values in one row. `undrawable` is the reason why `predictive` is empty, or empty itself. `weighted` names the
    observed sites whose log likelihood has a factor, by `pyro.poutine.scale`.
    """

    posterior: Variables
    predictive: Variables
    observed: Variables
    log_likelihood: Variables | None
    observations: Tensor
    log_joint: Tensor
    log_q: Tensor
    no_density: str
    undrawable: str
    weighted: list[str]


def program_draws(
    fit: Fit | Sampled,
    arguments: Arguments,
    num_samples: int,
    seed: int,
    values: Mapping[str, Tensor] | None = None,
) -> ProgramDraws:
    """Draws of all sites of a program, with the log densities of each draw.

    Args:
        values: of the latent sites in place of the guide's draws, ``[num_samples, ...]`` by name; sites that were summed out
            are then not in `posterior`.

    Raises:
        ValueError: a site is in a plate that takes subsamples.
    """
    model, known = fit.model, {} if values is None else dict(values)

    def guide_of(inputs: Sequence[Tensor]) -> Any:
        return guide_at(dict(zip(known, inputs, strict=True))) if isinstance(fit, Sampled) else fit.guide

    def traces(inputs: Sequence[Tensor]) -> tuple[Any, Any, Any]:
        drawn = traced("guide", guide_of(inputs), arguments)
        replicated = None if undrawable else drawn_anew(model, drawn, arguments)
        given = poutine.trace(poutine.replay(model, trace=replicated if summed and not undrawable else drawn))
        return drawn, replicated, given.get_trace(*arguments.args, **arguments.kwargs)

    undrawable, summed, first = "", list[str](), [value[0] for value in known.values()]
    with fit.as_trained(), torch.no_grad(), seeded(seed, arguments.device):
        try:
            drawn_anew(model, traced("guide", guide_of(first), arguments), arguments)
        except Undrawable as error:
            undrawable = str(error)
        with Conditioned() as stay:
            drawn, _, given = traces(first)
        nodes = {str(name): node for name, node in given.nodes.items() if _is_site(node) and name not in stay.sites}
        for node in nodes.values():
            check_whole(node)
        common = common_scale([*drawn.nodes.values(), *given.nodes.values()])
        seen = [name for name, node in nodes.items() if node["is_observed"] and not node["infer"].get("_deterministic")]
        weights = {name: torch.as_tensor(nodes[name]["scale"]).double() / (common or 1.0) for name in seen}
        weighted = [name for name, weight in weights.items() if bool((weight - 1).abs().max() > 1e-6)]
        latent = [name for name in nodes if name not in seen]
        summed += [name for name in latent if name not in drawn and not nodes[name]["is_observed"]]

        if known:
            latent = [name for name in latent if name not in summed]

        def draw(*inputs: Tensor) -> list[Tensor]:
            drawn, replicated, given = traces(inputs)
            _compute_densities((drawn, given), common)
            values = [(given if undrawable else replicated).nodes[name]["value"] for name in (*latent, *seen)]
            values += [given.nodes[name]["log_prob"] for name in seen]
            return [*values, given.log_prob_sum(), drawn.log_prob_sum()]

        columns = [value.cpu() for value in many(draw, num_samples, seed, arguments.device, *known.values())]
    named = dict(zip((*latent, *seen), columns, strict=False))
    sites, (log_joint, log_q) = len(latent) + len(seen), columns[-2:]
    densities = dict(zip(seen, columns[sites:-2], strict=True))
    masks = {name: mask for name in seen if (mask := densities[name].ne(0).any(0)).any()}  # 0 where masked
    return ProgramDraws(
        {_label(name): _variable(nodes, name, named[name]) for name in latent},
        {} if undrawable else {_label(name): _variable(nodes, name, named[name]) for name in seen},
        {
            _label(name): (_variable(nodes, name, named[name])[0][1:], nodes[name]["value"].cpu().numpy())
            for name in seen
        },
        None
        if summed
        else {_label(name): _counted(nodes, name, densities[name], mask) for name, mask in masks.items()},
        torch.cat([torch.empty(0), *(_values(nodes[name], mask).double() for name, mask in masks.items())]),
        log_joint.double(),
        log_q.double(),
        _without_density(drawn, summed),
        undrawable,
        weighted,
    )


def _compute_densities(traces: Sequence[Any], common: float | None) -> None:
    """Compute the log densities of traces, without the `common_scale` of their sites; if there is none, without the factors
    of `pyro.poutine.scale` around latent sites, as of annealing."""
    for trace in traces:
        for node in trace.nodes.values():
            if node["type"] == "sample" and not (common is None and node["is_observed"]):
                node["scale"] = 1.0 if common is None else node["scale"] / common
        trace.compute_log_prob()


def _is_site(node: Any) -> bool:
    return node["type"] == "sample" and not site_is_subsample(node) and not isinstance(node["fn"], Unit)


def _variable(nodes: dict[str, Any], name: str, values: Tensor) -> tuple[tuple[str, ...], Any]:
    """Dimensions and values of a site's draws: plates by their names, others by numbers."""
    node = nodes[name]
    batch = len(node["fn"].batch_shape)
    plates = {frame.dim + batch: frame.name for frame in node["cond_indep_stack"] if frame.vectorized}
    dims = [_label(plates.get(number, f"{name}_dim_{number}"), "plate") for number in range(values.dim() - 1)]
    return ("draw", *(f"{dim}_plate" if dim in nodes else dim for dim in dims)), values.numpy()


def _counted(nodes: dict[str, Any], name: str, densities: Tensor, counts: Tensor) -> tuple[tuple[str, ...], Any]:
    """Log densities of a site as a variable: without masked observations, and the others then in one dimension."""
    if counts.all():
        return _variable(nodes, name, densities)
    return ("draw", f"{_label(name)}_counted"), densities[:, counts].numpy()


def _values(node: Any, counts: Tensor) -> Tensor:
    """The values of the observations that count, one per entry of the log density, in a row."""
    value = node["value"].cpu()
    return value.broadcast_to(counts.shape + value.shape[value.dim() - node["fn"].event_dim :])[counts].flatten()


def _label(name: str, kind: str = "site") -> str:
    """The name of a site or plate in a tree, which has dimensions ``chain`` and ``draw`` and paths of its own."""
    return f"{name}_{kind}" if name in ("chain", "draw") else name.replace("/", "_")


def _without_density(drawn: Any, summed: list[str]) -> str:
    if summed:
        return f"discrete sites were summed out in training: {', '.join(summed)}"
    nodes = [node for node in drawn.nodes.values() if _is_site(node)]
    if any(node["infer"].get("is_auxiliary") for node in nodes):
        return ""
    points = [node["name"] for node in nodes if isinstance(innermost(node["fn"]), Delta)]
    return f"the guide has points, which have no density: {', '.join(points)}" if points else ""
