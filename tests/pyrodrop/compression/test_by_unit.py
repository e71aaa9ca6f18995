"""Compression of posteriors whose noise is by unit: the small network is that of the means of the units that are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.distributions import InputUnits

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.Identity(), nn.Softplus(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32, 12), nn.Tanh(), nn.Linear(12, 3),
    )  # fmt: skip


def fit() -> tuple[pyrodrop.Fit, dict[str, Tensor]]:
    """A fit that has lost 70 % of its units, and of which; x itself loses none."""
    torch.manual_seed(0)
    model = models.from_module(chain(), prior=priors.LogUniform(), likelihood=likelihoods.Categorical())
    posterior = guides.LogNormalDropout(model)
    noise = posterior.noise_log_scale
    gone = {name: torch.rand(noise[name].shape) < 0.7 * (name != "0.weight") for name in posterior.sites}
    with torch.no_grad():
        for name, lost in gone.items():
            noise[name].copy_(torch.where(lost, 5.0, -4.0))
    run = pyrodrop.Fit(model, posterior, None, torch.tensor([[1.0, 1.0, 1.0]]), {})
    return run, {n: lost if lost.dim() > 1 else lost.reshape(1, -1, *(1,) * (model.weight_sites()[n].dim() - 2))
                 for n, lost in gone.items()}  # fmt: skip


def test_the_small_network_is_that_of_the_kept_means() -> None:
    """Through convolutions and pooling; input units are removed with the outputs before them."""
    run, gone = fit()
    model: Any = run.model
    model.network.eval()
    x = torch.randn(5, 1, 8, 8)
    means = {name: mean * ~gone[name] for name, mean in run.guide.mean().items()}  # type: ignore[attr-defined]
    with torch.no_grad():
        want = model.outputs(means, x)
    small = run.compress(x=x)
    torch.testing.assert_close(small(x), want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run.compress(structured=False, x=x)(x), want, atol=1e-5, rtol=1e-5)
    convolutions = [m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)]
    assert convolutions[0] == int((~gone["4.weight"]).sum())
    dense = [(m.in_features, m.out_features) for m in small.modules() if isinstance(m, nn.Linear)]
    assert dense[-1] == (int((~gone["9.weight"]).sum()), 3)


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
