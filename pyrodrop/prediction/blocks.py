"""Draws of functions, in blocks of draws and tiles of draws and points.

    f_t(x_n) = network(x_n; W_t),   W_t ~ q        [T, N, ...]

A block of W_t is drawn at a time, its size set by the weights alone, so that a seed means the same functions whatever x
they are evaluated at. A block runs over x in tiles, its size set by what a tile's activations take. What does not depend
on the draw, the layers before the first noise, is computed once a tile for all of its draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from torch import Tensor

from pyrodrop.distributions.noise_form import is_constant
from pyrodrop.inputs import Inputs
from pyrodrop.networks.many import for_each
from pyrodrop.reparam.lazy import LazyLaw, LazyWeight
from pyrodrop.reparam.marginal import MarginalReparam, check_local_form
from pyrodrop.reparam.shared_noise import SharedNoise, unit_noise

Outputs = Callable[[Mapping[str, Tensor], Any], Tensor]


@dataclass(frozen=True)
class Block:
    """Some draws of every weight, each in the form that costs least.

    Attributes:
        num_draws: T.
        noise: what differs between draws, first axis T: whole weights, or unit noise of the sites in `laws`.
        laws: laws of the weights that are given by their unit noise.
        fixed: weights that are the same in every draw.
        local: whether the noise of `laws` is drawn by example, on the spot.
        mapped: whether the network can be mapped over draws; one with recurrent layers runs draw by draw.
    """

    num_draws: int
    noise: dict[str, Tensor]
    laws: dict[str, Any]
    fixed: dict[str, Tensor]
    local: bool = False
    mapped: bool = True

    def __call__(self, outputs: Outputs, x: Inputs, part: slice = slice(None)) -> Tensor:
        """The outputs at x of some of the draws, ``[draws, N, ...]``."""
        noise = {name: value[part] for name, value in self.noise.items()}
        if not noise:
            y = outputs(self.fixed, x)
            return y.expand(len(range(self.num_draws)[part]), *y.shape)
        randomness: Literal["different", "error"] = "different" if self.local else "error"
        return for_each(lambda one: outputs(self.weights(one), x), noise, mapped=self.mapped, randomness=randomness)

    def weights(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of one draw, drawn or lazy."""
        found = dict(self.fixed)
        for name, value in noise.items():
            if name in self.laws:
                strategy = MarginalReparam(value) if self.local else SharedNoise(value)
                found[name] = LazyWeight(LazyLaw(self.laws[name], strategy, name))
            else:
                found[name] = value
        return found


def blocks(
    guide: Callable[..., Any], sites: Mapping[str, Tensor], x: Inputs, num_draws: int, max_bytes: int
) -> Iterator[Block]:
    """Draws of functions of any guide; x is what a guide that is no `pyrodrop.guides.Guide` is called with."""
    if not hasattr(guide, "posterior"):
        per_draw = sum(w.numel() * w.element_size() for w in sites.values())
        for size in _sizes(num_draws, max_bytes // per_draw):
            yield Block(size, _draw_weights(guide, sites, x, size), {}, {})
        return
    laws = {name: guide.posterior(name) for name in sites}
    fixed = {name: q.loc for name, q in laws.items() if is_constant(q)}
    free = {name: q for name, q in laws.items() if name not in fixed}
    scaled = {name: q for name, q in free.items() if unit_noise(q, 1) is not None}
    per_draw = sum(
        (scaled[n].noise_shape.numel() if n in scaled else sites[n].numel()) * sites[n].element_size() for n in free
    )
    for size in _sizes(num_draws, max_bytes // max(1, per_draw)):
        noise = {}
        for name, q in free.items():
            units = unit_noise(q, size)
            noise[name] = q.expand((size,)).sample() if units is None else units
        yield Block(size, noise, scaled, fixed)


def local_blocks(guide: Callable[..., Any], sites: Mapping[str, Tensor], num_draws: int) -> Iterator[Block]:
    """Draws with a noise of their own for every point: right for each point alone, not for several together.

    Raises:
        TypeError: the guide does not know the posterior of a weight.
        ValueError: a posterior has no noise by example.
    """
    if not hasattr(guide, "posterior"):
        name = getattr(guide, "__name__", type(guide).__name__)
        raise TypeError(
            "joint=False needs a guide that knows the posterior of every weight (posterior(name)), as those of "
            f"pyrodrop.guides but Ensemble do; got {name}: leave joint at True"
        )
    laws = {name: guide.posterior(name) for name in sites}
    for name, q in laws.items():
        check_local_form(name, q)
    fixed = {name: q.loc for name, q in laws.items() if is_constant(q)}
    free = {name: q for name, q in laws.items() if name not in fixed}
    like = next(iter(sites.values()))
    yield Block(num_draws, {name: like.new_zeros(num_draws) for name in free}, free, fixed, local=True)


def _sizes(total: int, most: int) -> Iterator[int]:
    most = max(1, most)
    for first in range(0, total, most):
        yield min(most, total - first)


def _draw_weights(
    guide: Callable[..., Any], sites: Mapping[str, Tensor], x: Inputs, num_samples: int
) -> dict[str, Tensor]:
    """Weights ``[num_samples, ...]`` of any guide.

    One of `pyrodrop.guides` knows how, and Pyro's automatic guides run in a plate. Another runs draw by draw: a plate would
    give every statement of it an axis more, which it need not be written for.

    Raises:
        ValueError: the guide does not draw every weight.
    """
    if hasattr(guide, "draw"):
        drawn: Mapping[str, Tensor] = guide.draw(num_samples)
        return {name: drawn[name] for name in sites}
    with poutine.block():
        if isinstance(guide, AutoGuide):
            with pyro.plate("draws", num_samples):
                together = _sites_of(guide, sites, x)
            if all(together[name].shape == (num_samples, *like.shape) for name, like in sites.items()):
                return together
        each = [_sites_of(guide, sites, x) for _ in range(num_samples)]
    return {name: torch.stack([one[name] for one in each]) for name in sites}


def _sites_of(guide: Callable[..., Any], sites: Mapping[str, Tensor], x: Inputs) -> dict[str, Tensor]:
    nodes: dict[str, Any] = dict(poutine.trace(guide).get_trace(x).nodes)
    missing = [name for name in sites if name not in nodes]
    if missing:
        raise ValueError(
            f"the guide has no site {', '.join(missing)}, which the model draws; it has {', '.join(nodes)}"
        )
    return {name: nodes[name]["value"] for name in sites}
