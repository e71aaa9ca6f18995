"""Which uses of a weight are linear maps with noise by example, and which realise one draw or are refused."""

from __future__ import annotations

import copy
import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from torch import Tensor, nn

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.private_apis import without_overrides
from pyrodrop.reparam import LazyWeight, LocalReparam, PerExampleReparam, reparameterize
from pyrodrop.reparam.lazy import LazyDistribution
from pyrodrop.reparam.maps import LinearMap
from tests.small import normal

pytestmark = pytest.mark.usefixtures("float64")
X = normal(6, 3, seed=0, dtype=torch.float64)


CONVOLUTIONS = [
    nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
    nn.Conv2d(4, 6, 3, dilation=2, padding="same", bias=False),
    nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="reflect"),
    nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding_mode="circular", padding=1),
    nn.Linear(4, 3, bias=False),
]


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", [LocalReparam(), PerExampleReparam()], ids=["local", "per"])
@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=lambda layer: str(layer)[:24])
def test_layers_are_unmodified(layer: nn.Module, strategy: Any) -> None:
    """Without noise the output is that of the layer, for all of its settings."""
    layer = copy.deepcopy(layer).double()
    channels = layer.weight.shape[1] * getattr(layer, "groups", 1)  # type: ignore[union-attr, operator, index]
    x = torch.randn(2, channels, *(5,) * (layer.weight.dim() - 2))  # type: ignore[operator, union-attr]
    loc = layer.weight.detach()  # type: ignore[union-attr, operator]
    want = layer(x)
    distribution = dist.Normal(loc, 1e-13).to_event(loc.dim())
    del layer._parameters["weight"]
    layer.weight = LazyWeight(LazyDistribution(distribution, strategy, "w"))
    torch.testing.assert_close(layer(x), want)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: F.linear(x, w),
        lambda x, w: F.linear(input=x, weight=w),
        lambda x, w: F.linear(x, weight=w, bias=torch.zeros(2)),
        lambda x, w: x @ w.T,
        lambda x, w: torch.matmul(x, w.t()),
        lambda x, w: torch.mm(x, w.transpose(0, 1)),
    ],
)
def test_every_way_to_write_a_linear_map_has_noise_by_example(call: Any) -> None:
    """Equal rows get different outputs, with the mean of the plain map: no term is left out."""
    m, x = torch.randn(2, 3), torch.randn(3).expand(4000, 3)
    y = call(x, LazyWeight(LazyDistribution(dist.Normal(m, 0.3).to_event(2), LocalReparam(), "w")))
    assert y.shape == (4000, 2)
    assert len(torch.unique(y[:, 0])) == 4000
    assert float(((y.mean(0) - m @ x[0]) / (y.std(0) / math.sqrt(4000))).abs().max()) < 4.5


def test_other_operations_realise_one_draw_and_keep_it() -> None:
    m = torch.randn(2, 3, 3)
    lazy = LazyWeight(LazyDistribution(dist.Normal(m, 1.0).to_event(3), LocalReparam(), "w"))
    assert "LazyWeight('w', shape=(2, 3, 3)" in repr(lazy)
    product, total = lazy * 1, lazy + 0
    assert torch.equal(product, total)
    y = F.bilinear(torch.ones(5, 3), torch.ones(5, 3), lazy)
    assert torch.equal(y[0], y[1])
    flat = LazyWeight(LazyDistribution(dist.Normal(m[0], 1.0).to_event(2), LocalReparam(), "v"))
    realised = flat.sum()
    torch.testing.assert_close((torch.ones(1, 3) @ flat.T).sum(), realised)
    torch.testing.assert_close(torch.einsum("ni,oi->no", torch.ones(1, 3), flat).sum(), realised)


def test_a_weight_used_twice_is_one_draw_in_both_uses() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(torch.tanh(self.inner(x)))[:, :1]

    model = models.from_module(Tied(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)).double()
    guide = guides.MeanField(model).double()
    wrapped = reparameterize(model, guide, LocalReparam())
    with poutine.block():
        trace = poutine.trace(wrapped[1]).get_trace(X)
        f = poutine.replay(wrapped[0], trace=trace)(X)
    (w,) = trace.nodes["inner.weight"]["value"].drawn
    torch.testing.assert_close(f, (torch.tanh(X @ w.T) @ w.T)[:, :1])


@pytest.mark.parametrize("strategy", [LocalReparam(), PerExampleReparam()])
def test_a_transposed_weight_in_a_linear_layer_is_the_transposed_weight(strategy: Any) -> None:
    """``F.linear(x, W.T)`` is x W, of one draw of W."""
    w, x = torch.randn(3, 3), torch.randn(5, 3)
    lazy = LazyWeight(LazyDistribution(dist.Normal(w, 1e-13).to_event(2), strategy, "w"))
    torch.testing.assert_close(F.linear(x, lazy.T), x @ w)


def test_an_operation_that_passes_by_the_strategy_is_refused() -> None:
    weight = LazyWeight(LazyDistribution(dist.Normal(torch.zeros(3, 2), 1.0).to_event(2), LocalReparam(), "w"))
    with pytest.raises(RuntimeError, match="add.* reached a lazy weight before it was sampled"):
        without_overrides(torch.add, (weight, 1.0), {})


def test_which_axes_of_the_input_can_count_examples() -> None:
    """For a linear layer all axes but that of the units, for a convolution the first."""
    linear = LinearMap(torch.zeros(4, 5, 3), F.linear, -1, -1)
    convolution = LinearMap(torch.zeros(4, 3, 5), F.conv1d, 1, 1)
    for at, possible in ((linear, [True, True, False]), (convolution, [True, False, False])):
        assert [at.at_examples(axis) is not None for axis in range(3)] == possible


def test_a_single_image_has_no_axis_of_examples() -> None:
    x, m = torch.randn(4, 7), torch.randn(5, 4, 3)
    y = F.conv1d(x, LazyWeight(LazyDistribution(dist.Normal(m, 1e-13).to_event(3), LocalReparam(), "w")))
    torch.testing.assert_close(y, F.conv1d(x, m))
