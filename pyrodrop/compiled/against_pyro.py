"""Whether a graph computes what Pyro does from the same state and the same random numbers: loss, gradients and buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.arrays import near
from pyrodrop.devices import seeded
from pyrodrop.module_states import undisturbed
from pyrodrop.steps import Arguments, Buffers, Objective


class Results(NamedTuple):
    """The results of a step.

    Attributes:
        terms: nll and kl, ``[2]``.
        gradients: the gradient of every parameter.
        buffers: the buffers after the step.
    """

    terms: Tensor
    gradients: Sequence[Tensor]
    buffers: Sequence[Tensor] = ()


def by_pyro(objective: Objective, leaves: Sequence[Tensor], batch: Arguments, moving: Buffers, seed: int) -> Results:
    """The results that Pyro computes from the random numbers of a seed; modules do not change."""
    controls = torch.ones(2, dtype=leaves[0].dtype, device=leaves[0].device)
    with pyro.validation_enabled(False), seeded(seed, batch.device), undisturbed(*moving.parts):
        terms, gradients = objective.gradients(batch, controls, leaves)
        return Results(terms, gradients, [buffer.detach().clone() for buffer in moving.tensors()])


def difference(wanted: Results, found: Results, names: Sequence[str], size: float = 0.0) -> str:
    """The first result that differs by more than rounding, such as ``the gradient of NAME``; empty if all agree.

    Gradients are compared relative to their largest entry, or to a thousandth of the largest entry of all gradients if that
    is more, since a gradient may be 0 up to rounding, such as that of the key bias of attention.

    Args:
        names: names of the parameters.
        size: size of the terms whose sum is the loss, from `size_of_terms`.
    """
    tolerance = 1e-7 if wanted.gradients[0].dtype == torch.float64 else 1e-3
    if not near(wanted.terms.to(found.terms.dtype), found.terms, tolerance, size / 100):
        return "the loss"
    sizes = [float(gradient.abs().max()) for gradient in wanted.gradients if gradient.numel()]
    least = 1e-3 * max((size for size in sizes if math.isfinite(size)), default=0.0)
    for name, want, got in zip(names, wanted.gradients, found.gradients, strict=True):
        if not near(want.to(got.dtype), got, tolerance, least):
            return f"the gradient of {name}"
    pairs = zip(wanted.buffers, found.buffers, strict=True)
    return "" if all(near(want.to(got.dtype), got, tolerance) for want, got in pairs) else "a buffer"


def size_of_terms(objective: Objective, batch: Arguments) -> float:
    """The sum of the absolute log densities of all sites: rounding of the loss is relative to it, not to the loss."""
    with seeded(1, batch.device), undisturbed(objective.model, objective.guide), _Sites() as seen:
        objective.terms(batch)
        # at the end, as a lazy weight of the guide has a log density once the model has used it
        terms = [site["scale"] * site["fn"].log_prob(site["value"]) for site in seen.sites]
    return float(sum(term.detach().abs().sum() for term in terms))


class _Sites(Messenger):
    """Keeps all sample sites."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[Any] = []

    def _pyro_post_sample(self, site: Any) -> None:
        if not site_is_subsample(site):
            self.sites.append(site)
