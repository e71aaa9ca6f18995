"""Passes in training mode by hand, and how far their moments are from those of a reading."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyrodrop.checks import Inputs, arguments

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def _passes(net: nn.Module, x: Inputs, passes: int = 2000) -> Tensor:
    """Outputs ``[passes, N, ...]`` of `net` in its own modes, with BatchNorm in evaluation mode."""
    net = copy.deepcopy(net)
    for module in net.modules():
        if isinstance(module, _NORMS):
            module.eval()
    args, kwargs = arguments(x)
    with torch.no_grad(), torch.random.fork_rng([]):
        torch.manual_seed(5)
        return torch.stack([net(*args, **kwargs) for _ in range(passes)])


def _apart(first: Tensor, second: Tensor) -> float:
    """How far mean and variance of two sets of draws ``[S, ...]`` are from each other, in standard errors; the largest.

    The standard error of a variance is sqrt((m4 - v^2) / S) with m4 the fourth central moment.
    """

    def moments(draws: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        draws = draws.double()
        mean, variance = draws.mean(0), draws.var(0)
        fourth = (draws - mean).pow(4).mean(0)
        return mean, variance, variance / len(draws), (fourth - variance**2) / len(draws)

    mean, variance, of_mean, of_variance = moments(first)
    mean2, variance2, of_mean2, of_variance2 = moments(second)
    far = torch.stack(
        [
            (mean - mean2).abs() / (of_mean + of_mean2).sqrt(),
            (variance - variance2).abs() / (of_variance + of_variance2).sqrt(),
        ]
    )
    assert bool(torch.isfinite(far).all()), "an output has no variance, so it says nothing"
    relative = variance2.sqrt() / mean2.abs().clamp_min(1e-6 * float(mean2.abs().max()))
    assert float(relative.median()) > 1e-2, "the effect of the masks is not far above rounding"
    return float(far.max())


@pytest.fixture
def passes() -> Callable[..., Tensor]:
    return _passes


@pytest.fixture
def apart() -> Callable[..., Any]:
    return _apart
