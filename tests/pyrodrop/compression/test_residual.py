"""Units are removed from blocks of a residual stream. The function stays the same."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
IMAGES = (6, 3, 8, 8)


class Block(nn.Module):
    """Two convolutions beside the identity, activated after (v1) or before (v2) each of them."""

    def __init__(self, maps: int, first: bool) -> None:
        super().__init__()
        self.first = first
        self.conv1, self.conv2 = nn.Conv2d(maps, maps, 3, padding=1), nn.Conv2d(maps, maps, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            return x + self.conv2(torch.relu(self.conv1(torch.relu(x))))
        return F.relu(x + self.conv2(F.relu(self.conv1(x))))


class ResNet(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 12, 3, padding=1), nn.Sequential(Block(12, first), Block(12, first))
        self.pool, self.down, self.last = nn.AvgPool2d(2), nn.Conv2d(12, 16, 1, stride=2), nn.Linear(16 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(self.pool(self.blocks(self.stem(x))))
        return self.last(h.flatten(1))


class Rows(nn.Module):
    """Dense layers over tokens with a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(5, 20), nn.Linear(20, 30), nn.Linear(30, 20), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.d((h + self.c(torch.relu(self.b(h)))).flatten(1).unflatten(1, (3, 20)).mean(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "v1": (lambda: ResNet(False), IMAGES),
    "v2": (lambda: ResNet(True), IMAGES),
    "rows": (Rows, (6, 3, 5)),
}


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


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.few(1)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0, 1.1])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_narrow_network_is_the_masked_one(name: str, share: float) -> None:
    build, shape = NETWORKS[name]
    fit, x = lost(build(), share), torch.randn(shape)
    small = fit.compress(x=x)
    torch.testing.assert_close(small(x), masked(fit, x), atol=1e-4, rtol=1e-4)
    whole = fit.compress(structured=False, x=x)
    assert (parameters(small) < parameters(whole)) == (share > 0)
    assert not any(m.training for m in small.modules())
    again = io.BytesIO()
    torch.save(small, again)
    again.seek(0)
    torch.testing.assert_close(torch.load(again, weights_only=False)(x), small(x))


def test_a_residual_stream_keeps_its_channels() -> None:
    """Those within a block go."""
    fit, x = lost(ResNet(True), 0.5), torch.randn(IMAGES)
    small: Any = fit.compress(x=x)
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
