"""Samples of functions, in blocks of samples and tiles of samples and points.

    f_t(x_n) = network(x_n; W_t),   W_t ~ q        [T, N, ...]

W_t are sampled in blocks whose size depends on the weights alone, so that a seed gives the same functions at any x. A block
is evaluated on x in tiles whose size depends on the memory of the activations. Layers before the first noise do not depend
on the sample and are computed once per tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from torch import Tensor

from pyrodrop.checks import HasDraws, HasPosterior, Inputs
from pyrodrop.distributions.coins import keep_mask
from pyrodrop.distributions.noise_form import is_constant
from pyrodrop.guides.guide import Guide
from pyrodrop.networks.call import for_each
from pyrodrop.prediction.agreement import check_shapes
from pyrodrop.reparam.lazy import LazyDistribution, LazyWeight
from pyrodrop.reparam.marginal import MarginalReparam, check_local_form
from pyrodrop.reparam.shared_noise import SharedNoise, unit_noise

Outputs = Callable[[Mapping[str, Tensor], Any], Tensor]


@dataclass(frozen=True)
class Block:
    """T samples of every weight, each stored in the form that needs the least memory.

    Attributes:
        num_draws: T.
        noise: the tensors that differ between samples, ``[T, ...]`` by site: the weight itself, or unit noise for the
            sites in `distributions`.
        distributions: posterior distributions of the weights that are represented by unit noise.
        fixed: weights that are the same in every sample.
        local: whether noise is sampled independently per example when the network runs; `noise` is then a placeholder.
        drawn_inside: whether the network itself draws masks while it runs; these are not stored in the block.
        mapped: whether `torch.vmap` can run the network over samples. Other networks, such as those with recurrent layers,
            run in a loop, or in one call of `of_draws`.
        of_draws: function of `noise`, `distributions`, `fixed` and x that returns the outputs of all samples, or None.
    """

    num_draws: int
    noise: dict[str, Tensor]
    distributions: dict[str, Any]
    fixed: dict[str, Tensor]
    local: bool = False
    drawn_inside: bool = False
    mapped: bool = True
    of_draws: Callable[..., Tensor | None] | None = None

    def __call__(self, outputs: Outputs, x: Inputs, samples: slice = slice(None)) -> Tensor:
        """The outputs at x for some samples of the block, ``[samples, N, ...]``."""
        noise = {name: value[samples] for name, value in self.noise.items()}
        if not noise:
            y = outputs(self.fixed, x)
            return y.expand(len(range(self.num_draws)[samples]), *y.shape)
        if not (self.mapped or self.local) and self.of_draws is not None:
            together = self.of_draws(noise, self.distributions, self.fixed, x)
            if together is not None:
                return together
        randomness: Literal["different", "error"] = "different" if self.local or self.drawn_inside else "error"
        return for_each(lambda draw: outputs(self.weights(draw), x), noise, mapped=self.mapped, randomness=randomness)

    def whole(self, name: str) -> Tensor:
        """The weight, or mask, of every draw, ``[T, ...]``."""
        q, noise = self.distributions.get(name), self.noise[name]
        return noise if q is None else torch.stack([SharedNoise(of_draw).whole(q) for of_draw in noise])

    def weights(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of one sample, as tensors or lazy weights."""
        weights = dict(self.fixed)
        for name, value in noise.items():
            if name in self.distributions:
                strategy = MarginalReparam(value) if self.local else SharedNoise(value)
                weights[name] = LazyWeight(LazyDistribution(self.distributions[name], strategy, name))
            else:
                weights[name] = value
        return weights


Masks = Mapping[str, tuple[float, torch.Size | None]]


def blocks(
    guide: Any,
    sites: Mapping[str, Tensor],
    x: Inputs,
    num_draws: int,
    max_bytes: int,
    masks: Masks = MappingProxyType({}),
    joint: bool = True,
) -> Iterator[Block]:
    """Sample functions from any guide, in blocks of at most `max_bytes`.

    Args:
        guide: a guide of `pyrodrop.guides`, or any Pyro guide that has the model's sites.
        x: argument of a guide without a method ``posterior``.
        max_bytes: most bytes of a block's sampled tensors; a block has at least one sample.
        masks: drop rate and shape of the masks that are not noise of a weight, by name (`NetworkModel.noise_shapes`).
        joint: False for one block with independent noise per point, which has the marginal distribution of each point only.

    Raises:
        TypeError: `joint` is False and the guide has no method ``posterior``.
        ValueError: the guide does not sample every weight, or a weight has another shape than in `sites`; `joint` is False
            and a posterior has no form with independent noise per example.
    """
    like = next(iter(sites.values()))
    of_masks = sum(shape.numel() for _, shape in masks.values() if shape is not None) * like.element_size()
    inside = any(shape is None for _, shape in masks.values())
    shapes = {name: tensor.shape for name, tensor in sites.items()}
    if not isinstance(guide, HasPosterior):
        if not joint:
            raise TypeError(
                "joint=False needs a guide with a method posterior(name), as most of pyrodrop.guides have; got "
                f"{getattr(guide, '__name__', type(guide).__name__)}: use joint=True"
            )
        per_draw = sum(w.numel() * w.element_size() for w in sites.values()) + of_masks
        for size in _sizes(num_draws, max_bytes // per_draw):
            weights = _draw_weights(guide, sites, x, size)
            check_shapes({name: weight.shape[1:] for name, weight in weights.items()}, shapes, "one")
            yield Block(size, weights | draw_masks(masks, size, like), {}, {}, drawn_inside=inside)
        return
    distributions = {name: guide.posterior(name) for name in (guide.sites if isinstance(guide, Guide) else sites)}
    check_shapes({name: q.event_shape for name, q in distributions.items()}, shapes, "one")
    fixed = {name: q.loc for name, q in distributions.items() if is_constant(q)}
    free = {name: q for name, q in distributions.items() if name not in fixed}
    if not joint:
        for name, q in distributions.items():
            check_local_form(name, q)
        yield Block(num_draws, {name: like.new_zeros(num_draws) for name in [*free, *masks]}, free, fixed, local=True)
        return
    scaled = {name: q for name, q in free.items() if unit_noise(q, 1) is not None}
    per_draw = sum(
        (scaled[n].noise_shape.numel() if n in scaled else sites[n].numel()) * sites[n].element_size() for n in free
    )
    for size in _sizes(num_draws, max_bytes // max(1, per_draw + of_masks)):
        noise = {}
        for name, q in free.items():
            units = unit_noise(q, size)
            noise[name] = q.expand((size,)).sample() if units is None else units
        yield Block(size, noise | draw_masks(masks, size, like), scaled, fixed, drawn_inside=inside)


def draw_masks(masks: Masks, num_draws: int, like: Tensor) -> dict[str, Tensor]:
    """One mask per draw, ``[num_draws, ...]`` by name. The network itself draws a mask without a shape while it runs; here
    it has one scalar per draw as a placeholder."""
    drawn = {}
    for name, (rate, shape) in masks.items():
        if shape is None:
            drawn[name] = like.new_zeros(num_draws)
        else:
            mask = keep_mask((num_draws, *shape), rate, device=like.device)
            drawn[name] = mask.view(torch.uint8).to(like.dtype)
    return drawn


def _sizes(total: int, most: int) -> Iterator[int]:
    most = max(1, most)
    for first in range(0, total, most):
        yield min(most, total - first)


def _draw_weights(guide: Any, sites: Mapping[str, Tensor], x: Inputs, num_samples: int) -> dict[str, Tensor]:
    """Sample weights ``[num_samples, ...]`` from any guide.

    Guides of `pyrodrop.guides` have a method ``draw``, and Pyro's automatic guides run in a plate. Other guides run once per
    sample, as they may not support the additional dimension of a plate.

    Raises:
        ValueError: the guide does not sample every weight.
    """
    if isinstance(guide, HasDraws):
        drawn = guide.draw(num_samples)
        return {name: drawn[name] for name in sites}
    with poutine.block():
        if isinstance(guide, AutoGuide):
            with pyro.plate("draws", num_samples):
                together = _sites_of(guide, sites, x)
            if all(together[name].shape == (num_samples, *like.shape) for name, like in sites.items()):
                return together
        each = [_sites_of(guide, sites, x) for _ in range(num_samples)]
    return {name: torch.stack([weights[name] for weights in each]) for name in sites}


def _sites_of(guide: Callable[..., Any], sites: Mapping[str, Tensor], x: Inputs) -> dict[str, Tensor]:
    nodes: dict[str, Any] = dict(poutine.trace(guide).get_trace(x).nodes)
    missing = [name for name in sites if name not in nodes]
    if missing:
        raise ValueError(
            f"the guide must sample every weight of the model; it has no site {', '.join(missing)}, only {', '.join(nodes)}"
        )
    return {name: nodes[name]["value"] for name in sites}
