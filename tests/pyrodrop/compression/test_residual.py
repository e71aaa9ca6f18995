"""Units are removed from blocks of a residual stream. The function stays the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
IMAGES = (6, 3, 8, 8)


class Block(nn.Module):
    """Two convolutions beside the identity, activated before each of them."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(maps, maps, 3, padding=1), nn.Conv2d(maps, maps, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(torch.relu(self.conv1(torch.relu(x))))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 12, 3, padding=1), nn.Sequential(Block(12), Block(12))
        self.pool, self.down, self.last = nn.AvgPool2d(2), nn.Conv2d(12, 16, 1, stride=2), nn.Linear(16 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(self.pool(self.blocks(self.stem(x))))
        return self.last(h.flatten(1))


def lost(net: nn.Module, share: float, seed: int = 0) -> pyrodrop.Fit:
    """A fit whose input units are noise with probability `share`."""
    torch.manual_seed(seed)
    model = models.from_module(net, prior=priors.LogUniform(), likelihood=likelihoods.Categorical())
    guide = guides.LogNormalDropout(model, -3.0)
    with torch.no_grad():
        for name in guide.sites:
            noise = guide.noise_log_scale[name]
            gone = torch.rand_like(noise) < share
            gone[0] &= share > 1
            noise.copy_(torch.where(gone, 5.0, noise))
    return pyrodrop.Fit(model, guide, None, torch.tensor([[1.0, 1.0, 1.0]]), {})


def masked(fit: pyrodrop.Fit, x: Tensor) -> Tensor:
    """f of the whole network with the means of the weights that are kept."""
    guide: Any = fit.guide
    model: Any = fit.model
    mask = guide.keep_mask()
    model.network.eval()
    with torch.no_grad():
        return model.outputs({n: mean * mask[n] for n, mean in guide.mean().items()}, x)  # type: ignore[no-any-return]


def test_a_residual_stream_keeps_its_channels() -> None:
    """Those within a block go."""
    fit, x = lost(ResNet(), 0.5), torch.randn(IMAGES)
    small: Any = fit.compress(x=x)
    torch.testing.assert_close(small(x), masked(fit, x), atol=1e-4, rtol=1e-4)
    assert small.get_submodule("stem").out_channels == 12
    assert small.get_submodule("blocks.1.conv2").out_channels == 12
    for block in ("blocks.0", "blocks.1"):
        read = fit.guide.keep_mask()[f"{block}.conv2.weight"].any(0).flatten(1).any(1)  # type: ignore[attr-defined]
        assert small.get_submodule(f"{block}.conv1").out_channels == int(read.sum()) < 12


def test_a_unit_that_only_a_lost_unit_reads_is_lost_too() -> None:
    """Unit 2 of the first layer is read by unit 7 of the second only, which no layer reads."""
    net = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Identity(), nn.Linear(20, 10), nn.GELU(), nn.Linear(10, 4))
    fit, x = lost(net, 0.0), torch.randn(6, 5)
    guide: Any = fit.guide
    with torch.no_grad():
        guide.loc["3.weight"][:, 2] *= torch.arange(10) == 7
        guide.noise_log_scale["5.weight"][7] = 5.0
    small: Any = fit.compress(x=x)
    assert [small.get_submodule(name).out_features for name in "035"] == [19, 9, 4]
    torch.testing.assert_close(small(x), masked(fit, x), atol=1e-5, rtol=1e-5)


def test_what_is_not_followed_is_kept_or_refused() -> None:
    class Gate(nn.Module):
        """The units of the product are kept; those of the layer before it can be removed."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(5, 20), nn.Linear(20, 10), nn.Linear(10, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.b(torch.relu(self.a(x)))
            return self.c(h * h.sigmoid())

    x = torch.randn(6, 5)
    fit = lost(Gate(), 0.6)
    small: Any = fit.compress(x=x)
    torch.testing.assert_close(small(x), masked(fit, x), atol=1e-5, rtol=1e-5)
    assert small.get_submodule("a").out_features < 20
    assert small.get_submodule("b").out_features == 10
