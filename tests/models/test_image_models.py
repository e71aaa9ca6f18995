"""The published image networks: their shapes, and that priors, guides, estimators and engines take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop import likelihoods, models, priors

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")

SETTINGS: dict[str, Any] = {"prior": priors.LogUniform(), "likelihood": likelihoods.Categorical()}
DIGITS, COLOURS = (1, 28, 28), (3, 32, 32)
# Each model as it is tried, with the shape of an image.
SMALL: dict[str, tuple[Callable[..., models.NetworkModel], tuple[int, ...]]] = {
    "lenet-300-100": (models.LeNet300100, (784,)),
    "lenet-5": (models.LeNet5, DIGITS),
    "lenet-5-rectified": (lambda **settings: models.LeNet5(rectified=True, **settings), DIGITS),
}


def made(name: str, **changes: Any) -> tuple[models.NetworkModel, Tensor, Tensor]:
    build, shape = SMALL[name]
    return build(**SETTINGS | changes), torch.rand(40, *shape), torch.arange(40) % 10


def test_sizes_are_the_published_ones() -> None:
    """Molchanov et al. (2017) count 266,200 and 430,500 weights."""
    count = {n: sum(w.numel() for w in made(n)[0].weight_sites().values()) for n in ("lenet-300-100", "lenet-5")}
    assert count == {"lenet-300-100": 266_200, "lenet-5": 430_500}


@pytest.mark.parametrize("rectified", [False, True])
def test_lenet5_is_caffes_network(rectified: bool) -> None:
    """Written out with functions, from Caffe's lenet_train_test.prototxt."""
    model = models.LeNet5(rectified=rectified, **SETTINGS)
    w, b, x = model.weight_sites(), model.free, torch.rand(3, *DIGITS)
    conv_act = F.relu if rectified else (lambda h: h)
    h = F.max_pool2d(conv_act(F.conv2d(x, w["conv1.weight"], b["conv1.bias"])), 2, 2)
    h = F.max_pool2d(conv_act(F.conv2d(h, w["conv2.weight"], b["conv2.bias"])), 2, 2)
    h = F.relu(F.linear(h.reshape(3, -1), w["ip1.weight"], b["ip1.bias"]))
    torch.testing.assert_close(model.outputs(w, x), F.linear(h, w["ip2.weight"], b["ip2.bias"]))
