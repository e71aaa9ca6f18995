"""Compression of posteriors whose noise is by unit: the small network is that of the means of the units that are kept."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.distributions import InputUnits

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


def test_whole_maps_of_lenet_go(float64: None) -> None:
    """The 16 columns of a flattened map have one scale, and the narrow network is that of plain PyTorch without the map."""
    torch.manual_seed(0)
    axes = {"ip1.weight": InputUnits(1, size=16)}
    model = models.LeNet5(
        rectified=True, input_axes=axes, prior=priors.LogUniform(), likelihood=likelihoods.Categorical()
    ).double()
    guide = guides.LogNormalDropout(model, -1.0).double()
    gone = torch.arange(50) % 3 == 0
    with torch.no_grad():
        guide.noise_log_scale["ip1.weight"][gone] = 5.0
        scales = (guide.posterior("ip1.weight").sample() / guide.loc["ip1.weight"])[0].unflatten(0, (50, 16))
    torch.testing.assert_close(scales, scales[:, :1].expand(50, 16))
    assert scales[:, 0].unique().numel() == 50
    small = pyrodrop.Fit(model, guide, None, torch.ones(1, 3), {}).compress()
    assert next(w for n, w in small.named_parameters() if n == "conv2.weight").shape[0] == int((~gone).sum())
    x = torch.rand(3, 28, 28, 1).permute(0, 3, 1, 2)  # strides of channels-last
    w, b = guide.mean(), {n.removesuffix("_unconstrained"): value for n, value in model.free.named_parameters()}
    with torch.no_grad():
        f = F.max_pool2d(F.conv2d(x, w["conv1.weight"], b["conv1.bias"]).relu(), 2)
        f = F.max_pool2d(F.conv2d(f, w["conv2.weight"], b["conv2.bias"]).relu(), 2) * ~gone[:, None, None]
        f = F.linear(f.flatten(1), w["ip1.weight"], b["ip1.bias"]).relu()
        f = F.linear(f, w["ip2.weight"], b["ip2.bias"])
    torch.testing.assert_close(small(x), f)
