"""How many samples and points to evaluate at a time.

The network runs once on one point, and the size of every tensor is recorded. A tensor after the first noise exists once per
sample and point, a tensor before it once per point, and noise on a weight once per sample. A tile of t samples and n points
needs

    t (2 n a + max_i min(n x_i, w_i)) + 2 n b        elements

where a is the size of a point's largest tensor after the first noise, b of its largest before, and x_i and w_i are the sizes
of the input and the weight of noisy weight i.

Weights that are drawn whole are read once per tile. If they have more than n a elements, a tile gets fewer samples before it
gets fewer points. Convolutions whose kernels differ between samples are faster one after the other: on the CPU such a tile
has one sample. Neither applies where samples share layers before the noise, or where a tile draws noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyrodrop.checks import Inputs, mapped, tensors_in
from pyrodrop.prediction.blocks import Block, Outputs
from pyrodrop.reparam.lazy import LazyWeight

_CONVOLUTIONS: set[Any] = {F.conv1d, F.conv2d, F.conv3d}
_LAYERS: set[Any] = _CONVOLUTIONS | {
    F.linear, torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, F.embedding, torch.lstm, torch.gru,
    F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.multi_head_attention_forward,
    F.scaled_dot_product_attention,
}  # fmt: skip


@dataclass
class Cost:
    """Memory that one point needs, in elements.

    Attributes:
        before: size of the largest tensor before the first noise.
        behind: size of the largest tensor after the first noise.
        noisy: for every weight with unit noise, the sizes of its input and of the weight. The size of the weight is None if
            the noise can only be applied to the input.
        whole: size of all weights that are drawn whole; 0 if a layer comes before the noise, which samples share.
        apart: whether samples share no layer, and a convolution has a separate kernel for each sample.
    """

    before: int = 1
    behind: int = 1
    noisy: list[tuple[int, int | None]] = field(default_factory=list)
    whole: int = 0
    apart: bool = False

    def numbers(self, draws: int, points: int) -> int:
        """Number of elements that a tile needs."""
        noise = max((points * x if w is None else min(points * x, w) for x, w in self.noisy), default=0)
        return draws * (2 * points * self.behind + noise) + 2 * points * self.before

    def tile(self, draws: int, points: int, most: int) -> tuple[int, int]:
        """The tile, in samples and points, of at most `most` elements. Its longer side is halved until it fits, or the
        number of samples where weights are larger than the activations of the points."""
        while self.numbers(draws, points) > most and draws * points > 1:
            if draws >= points or (draws > 1 and self.whole > points * self.behind):
                draws = -(-draws // 2)
            else:
                points = -(-points // 2)
        return draws, points


def cost(block: Block, outputs: Outputs, x: Inputs, together: bool = False) -> Cost:
    """Measure the memory that one point needs.

    Args:
        x: inputs of one or more points, of which the first is used.
        together: whether the network needs all points at once; all of x then counts as one point.
    """
    weights = block.weights({name: value[0] for name, value in block.noise.items()})
    drawn = [] if block.local else [value for name, value in weights.items() if name not in block.fixed]
    watch = _Watch(drawn, block.local)
    with watch:
        outputs(weights, x if together else mapped(lambda tensor: tensor[:1], x))
    if not (watch.layers or block.local or block.drawn_inside):  # other tiles would draw other local noise
        whole = [value for value in drawn if not isinstance(value, LazyWeight)]
        watch.cost.whole, watch.cost.apart = sum(value.numel() for value in whole), watch.kernels
    return watch.cost


class _Watch(TorchFunctionMode):
    def __init__(self, drawn: list[Tensor], local: bool) -> None:
        super().__init__()
        self.cost, self.noisy = Cost(), False
        self._drawn, self._local = {id(value) for value in drawn}, local
        self.layers = False  # whether a layer comes before the noise
        self.kernels = False  # whether a convolution has a kernel that is drawn whole

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        arguments = tensors_in((args, kwargs))
        computed = isinstance(result, Tensor) and not isinstance(result, LazyWeight)
        lazy = next((leaf for leaf in arguments if isinstance(leaf, LazyWeight)), None)
        if computed and (lazy is not None or any(id(leaf) in self._drawn for leaf in arguments)):
            self.noisy = True
            self.kernels |= func in _CONVOLUTIONS and lazy is None and id(arguments[1]) in self._drawn
        self.layers |= func in _LAYERS and not self.noisy
        if computed and lazy is not None:
            sizes = [leaf.numel() for leaf in arguments if leaf is not lazy]
            on_weight = lazy.dim() == 2 and not self._local
            self.cost.noisy.append((max(sizes, default=1), lazy.numel() if on_weight else None))
        if computed and self.noisy:
            self.cost.behind = max(self.cost.behind, result.numel())
        elif computed:
            self.cost.before = max(self.cost.before, result.numel())
        return result
