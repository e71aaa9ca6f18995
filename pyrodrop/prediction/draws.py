"""Draws of functions from any posterior, in blocks of draws that are evaluated in tiles of draws and points.

    f_t(x_n) = network(x_n; W_t),   W_t ~ q        [T, N, ...]

Blocks have a size that depends on the weights alone, so that a seed gives the same functions at any x. The network runs once
on one point to record the size of every tensor. One after the first noise, or times it, exists once per draw and point, and
one before it once per point, so that a tile of t draws and n points needs

    3 t n a + 2 n b        elements

where a is the size of a point's largest tensor after the first noise, inputs of noisy weights among them, and b of its
largest before. Layers before the first noise are computed once per tile.
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
from torch.distributions import Normal
from torch.overrides import TorchFunctionMode

from pyrodrop.checks import HasDraws, HasPosterior, Inputs, mapped, num_rows, tensors_in
from pyrodrop.distributions.coins import keep_mask
from pyrodrop.distributions.weight import is_constant
from pyrodrop.guides.guide import Guide, check_shapes
from pyrodrop.models.network import mixes_examples
from pyrodrop.networks.call import for_each
from pyrodrop.networks.checks import cannot_run
from pyrodrop.reparam.lazy import LazyDistribution, LazyWeight
from pyrodrop.reparam.shared_noise import SharedNoise, unit_noise

BLOCK_BYTES = 256 * 2**20  # of sampled weights at a time
# of activations at a time: fits the CPU's cache, or occupies a GPU
_TILE_BYTES = {"cpu": 16 * 2**20, "cuda": 512 * 2**20}


@dataclass(frozen=True)
class Draws:
    """T functions of a model, each with its weights in the form that needs the least memory.

    Attributes:
        model: a model of `pyrodrop.models`.
        num_draws: T.
        noise: the tensors that differ between draws, ``[T, ...]`` by site: the weight itself, or unit noise for the sites in
            `distributions`; and masks that no weight carries, by name.
        distributions: posterior distributions of the weights that are represented by unit noise.
        fixed: weights that are the same in every draw.
        drawn_inside: whether the network itself draws masks while it runs; these are not stored.
        mapped: whether `torch.vmap` may run the network over draws. Networks that it cannot run, such as those with
            recurrent layers, run in a loop.
    """

    model: Any
    num_draws: int
    noise: dict[str, Tensor]
    distributions: Mapping[str, Any]
    fixed: Mapping[str, Tensor]
    drawn_inside: bool = False
    mapped: bool = True

    def __call__(self, x: Inputs, draws: slice = slice(None)) -> Tensor:
        """The outputs of the network at x for some of the draws, ``[draws, N, ...]``, in standardised units."""
        noise, model = {name: value[draws] for name, value in self.noise.items()}, self.model
        if not noise:
            y = model.outputs(self.fixed, x)
            return y.expand(len(range(self.num_draws)[draws]), *y.shape)
        randomness: Literal["different", "error"] = "different" if self.drawn_inside else "error"
        several = self.mapped and model.batches_weights and len(next(iter(noise.values()))) > 1
        return for_each(lambda draw: model.outputs(self.weights(draw), x), noise, mapped=several, randomness=randomness)

    def weights(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of one draw, as tensors or lazy weights, from its noise."""
        q = self.distributions
        lazy = {n: LazyWeight(LazyDistribution(q[n], SharedNoise(value), n)) for n, value in noise.items() if n in q}
        return {**self.fixed, **noise, **lazy}

    def whole(self) -> dict[str, Tensor]:
        """The weights and masks that differ between draws, ``[T, ...]`` by site or name."""
        q = self.distributions
        return {
            name: torch.stack([SharedNoise(of_draw).whole(q[name]) for of_draw in noise]) if name in q else noise
            for name, noise in self.noise.items()
        }

    def tiles(self, x: Inputs, device: torch.device) -> Iterator[tuple[int, int, Tensor]]:
        """Outputs of all draws at all points in tiles: index of the first draw and point, and outputs ``[t, n, ...]``.

        Args:
            x: the points, ``[N, ...]``.
            device: the device that the model is on.

        Raises:
            ValueError: the network cannot be called on x, or does not return one row per point.
        """
        together = mixes_examples(self.model, x)
        size = 1 if together else num_rows(x)  # number of points that can be computed separately
        example = example_of(self.model, x, device)
        most = _elements(self.model, device)
        try:
            cost = self.cost(example)
        except (RuntimeError, IndexError) as error:
            raise ValueError(cannot_run(example, error, together=together)) from error
        draws, points = cost.tile(self.num_draws, size, most)
        for first in range(0, size, points):
            rows = example if together else _rows(x, slice(first, first + points), device)
            for start in range(0, self.num_draws, draws):
                output = self(rows, slice(start, start + draws))
                if output.dim() < 2 or output.shape[1] != num_rows(rows):
                    raise ValueError(
                        f"the network must return one row per example, [{num_rows(rows)}, ...] here; got "
                        f"{list(output.shape[1:])}: does it squeeze the axis of the examples if there is only one example?"
                    )
                yield start, first, output

    def cost(self, x: Inputs) -> Cost:
        """The memory that a point needs; x is one point, or all of them if the network needs them together."""
        weights = self.weights({name: value[0] for name, value in self.noise.items()})
        cost = Cost([value for name, value in weights.items() if name not in self.fixed])
        with cost:
            self.model.outputs(weights, x)
        return cost


class Cost(TorchFunctionMode):
    """The sizes of a point's tensors, in elements, as a network computes them within the block.

    Args:
        drawn: the weights with noise.

    Attributes:
        before: size of the largest tensor before the first noise.
        after: size of the largest tensor after the first noise, or times it.
    """

    def __init__(self, drawn: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before = self.after = 1
        self._noisy = False
        self._drawn = {id(value) for value in drawn}

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not isinstance(result, LazyWeight):
            arguments = tensors_in((args, kwargs))
            if any(isinstance(leaf, LazyWeight) for leaf in arguments):
                others = (leaf.numel() for leaf in arguments if not isinstance(leaf, LazyWeight))
                self._noisy, self.after = True, max(self.after, *others, 1)
            self._noisy |= any(id(leaf) in self._drawn for leaf in arguments)
            if self._noisy:
                self.after = max(self.after, result.numel())
            else:
                self.before = max(self.before, result.numel())
        return result

    def elements(self, draws: int, points: int) -> int:
        """The number of elements that a tile needs."""
        return 3 * draws * points * self.after + 2 * points * self.before

    def tile(self, draws: int, points: int, most: int) -> tuple[int, int]:
        """The tile, in draws and points, of at most `most` elements. Its longer side is halved until it fits."""
        while self.elements(draws, points) > most and draws * points > 1:
            if draws >= points:
                draws = -(-draws // 2)
            else:
                points = -(-points // 2)
        return draws, points


def rows_at_once(model: Any, x: Inputs, device: torch.device) -> int:
    """The number of rows to evaluate at a time with one set of weights, for a network that computes them separately."""
    one = Draws(model, 1, {name: weight[None] for name, weight in model.weight_sites().items()}, {}, {})
    cost = one.cost(mapped(lambda tensor: tensor[:1], x))
    return cost.tile(1, num_rows(x), _elements(model, device))[1]


def drawn(model: Any, guide: Any, x: Inputs | None, num_draws: int, device: torch.device) -> Iterator[Draws]:
    """Draw functions from any guide, in blocks of at most `BLOCK_BYTES` of sampled tensors and at least one draw.

    Args:
        guide: a guide of `pyrodrop.guides`, or any Pyro guide that has the model's sites.
        x: points: the argument of a guide without a method ``posterior``, and of a network with masks that no weight
            carries. None if there are neither.
        device: the device that the model is on.

    Raises:
        ValueError: the guide does not sample every weight, or a weight has another shape than in the model; as `masks_of`.
    """
    example: Any = None if x is None else example_of(model, x, device)
    masks: Masks = {} if x is None else masks_of(model, example, mixes_examples(model, x))
    sites = model.weight_sites()
    like = next(iter(sites.values()))
    inside = any(shape is None for _, shape in masks.values())
    shapes = {name: tensor.shape for name, tensor in sites.items()}
    posteriors: dict[str, Any] = {}
    if isinstance(guide, HasPosterior):
        posteriors = {name: guide.posterior(name) for name in (guide.sites if isinstance(guide, Guide) else sites)}
        check_shapes({name: q.event_shape for name, q in posteriors.items()}, shapes, "one")
    fixed: dict[str, Tensor] = {name: q.loc for name, q in posteriors.items() if is_constant(q)}
    free = {name: q for name, q in posteriors.items() if name not in fixed}
    scaled = {name: q for name, q in free.items() if unit_noise(q, 1) is not None}
    sizes = {
        name: (scaled[name].noise_shape.numel() if name in scaled else site.numel()) * site.element_size()
        for name, site in sites.items()
        if name not in fixed
    }
    of_masks = sum(shape.numel() for _, shape in masks.values() if shape is not None) * like.element_size()
    most = max(1, BLOCK_BYTES // max(1, sum(sizes.values()) + of_masks))
    for first in range(0, num_draws, most):
        size = min(most, num_draws - first)
        if posteriors:
            noise: Any = {
                n: unit_noise(q, size) if n in scaled else _drawn(q, size, alone=len(free) == 1)
                for n, q in free.items()
            }
        else:
            noise = _draw_weights(guide, sites, example, size)
            check_shapes({name: weight.shape[1:] for name, weight in noise.items()}, shapes, "one")
        yield Draws(model, size, noise | draw_masks(masks, size, like), scaled, fixed, inside)


def _drawn(q: Any, num_draws: int, *, alone: bool) -> Tensor:
    """Draws of a weight, ``[num_draws, ...]``. One normal number that is `alone` is drawn from as many intervals of equal
    probability, once from each and in random order, so that means over draws have smaller errors."""
    normal = getattr(q, "base_dist", q)
    if not alone or q.event_shape.numel() > 1 or not isinstance(normal, Normal):
        return q.expand((num_draws,)).sample()  # type: ignore[no-any-return]
    level = (torch.randperm(num_draws) + torch.rand(num_draws, dtype=torch.float64)) / num_draws
    z = torch.special.ndtri(level).to(normal.loc).reshape(num_draws, *[1] * normal.loc.dim())
    return normal.loc + normal.scale * z


Masks = Mapping[str, tuple[float, torch.Size | None]]


def masks_of(model: Any, x: Inputs, together: bool) -> Masks:
    """Drop rate and shape of the masks that are not noise of a weight, by name; empty for most models.

    Args:
        x: one point, or all of them if the network needs them `together`.

    Raises:
        ValueError: the network cannot be called on x, or one mask for all points does not exist.
    """
    try:
        masks: Masks = model.noise_shapes(x)
    except (RuntimeError, IndexError) as error:
        raise ValueError(cannot_run(x, error, together=together)) from error
    wrong = [name for name, (_, shape) in masks.items() if shape is None]
    if wrong and not together:
        raise ValueError(
            f"the dropout {', '.join(wrong)} merges the points with their rows in an order that is unknown, so that a "
            "function, with one mask for all points, cannot be drawn: read the network with several examples that differ"
        )
    return masks


def draw_masks(masks: Masks, num_draws: int, like: Tensor) -> dict[str, Tensor]:
    """One mask per draw, ``[num_draws, ...]`` by name. The network itself draws a mask without a shape while it runs; here
    it has one scalar per draw as a placeholder."""

    def mask(rate: float, shape: torch.Size) -> Tensor:
        return keep_mask((num_draws, *shape), rate, device=like.device).view(torch.uint8).to(like.dtype)

    return {n: like.new_zeros(num_draws) if shape is None else mask(rate, shape) for n, (rate, shape) in masks.items()}


def example_of(model: Any, x: Inputs, device: torch.device) -> Any:
    """The first point on this device, or all of them if the network needs them together."""
    return _rows(x, slice(None) if mixes_examples(model, x) else slice(1), device)


def _rows(x: Inputs, rows: slice, device: torch.device) -> Any:
    return mapped(lambda tensor: tensor[rows].to(device), x)


def _elements(model: Any, device: torch.device) -> int:
    """The maximum number of activations in a tile."""
    return _TILE_BYTES.get(device.type, _TILE_BYTES["cpu"]) // next(iter(model.weight_sites().values())).element_size()


def _draw_weights(guide: Any, sites: Mapping[str, Tensor], x: Any, num_draws: int) -> dict[str, Tensor]:
    """Sample weights ``[num_draws, ...]`` from any guide.

    Guides of `pyrodrop.guides` have a method ``draw``, and Pyro's automatic guides run in a plate. Other guides run once per
    draw, as they may not support the additional dimension of a plate.

    Raises:
        ValueError: the guide does not sample every weight.
    """
    if isinstance(guide, HasDraws):
        drawn = guide.draw(num_draws)
        return {name: drawn[name] for name in sites}
    with poutine.block():
        if isinstance(guide, AutoGuide):
            with pyro.plate("draws", num_draws):
                together = _sites_of(guide, sites, x)
            if all(together[name].shape == (num_draws, *like.shape) for name, like in sites.items()):
                return together
        each = [_sites_of(guide, sites, x) for _ in range(num_draws)]
    return {name: torch.stack([weights[name] for weights in each]) for name in sites}


def _sites_of(guide: Callable[..., Any], sites: Mapping[str, Tensor], x: Any) -> dict[str, Tensor]:
    nodes: dict[str, Any] = dict(poutine.trace(guide).get_trace(x).nodes)
    missing = [name for name in sites if name not in nodes]
    if missing:
        raise ValueError(
            f"the guide must sample every weight of the model; it has no site {', '.join(missing)}, only {', '.join(nodes)}"
        )
    return {name: nodes[name]["value"] for name in sites}
