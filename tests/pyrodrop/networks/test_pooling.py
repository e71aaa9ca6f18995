"""Max pooling by slices gives the values, shapes and errors of PyTorch's kernel."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.networks import pooling


def maxima(x: torch.Tensor, *options: Any) -> Any:
    try:
        return F.max_pool2d(x, *options)
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 3, 9, 7), (3, 8, 8), (2, 3, 1, 5)])
def test_values_shapes_and_errors_are_those_of_pytorch(shape: tuple[int, ...]) -> None:
    """Also of NaN, infinities and other strides of memory."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x[x.abs() < 0.2], x[..., 0, 0] = float("nan"), float("inf")
    forms = [x, x.double(), x.transpose(-1, -2), x.transpose(-3, -1).contiguous().transpose(-3, -1)]
    sizes, steps = [1, 2, 3, (2, 1), (2, 3), [2, 2], (2,)], [None, 1, 2, (2, 1)]
    for each, *options in itertools.product(forms, sizes, steps, [0, 1], [1, 2], [False, True]):
        want = maxima(each, *options)
        with torch.no_grad(), pooling.PoolsBySlices():
            got = maxima(each, *options)
        if isinstance(want, type):
            assert got is want
        else:
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_predictions_are_those_of_the_network_with_each_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2), nn.MaxPool2d(2, 1), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip
    x, y = torch.randn(6, 1, 8, 8), torch.arange(6) % 3
    model = models.from_module(net, priors.Gaussian(), likelihoods.Categorical())
    run = pyrodrop.fit(model, guides.MeanField(model), (x, y), steps=2, engine="pyro", progress=False)
    calls = []
    pooled = pooling._pooled
    monkeypatch.setattr(
        pooling, "_pooled", lambda *args, **options: calls.append(pooled(*args, **options)) or calls[-1]
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        draws = run.guide.draw(4)  # type: ignore[attr-defined]
    f = run.predict(x, 4, seed=3).f
    free = {name: run.model.free[name].detach() for name in run.model.free}  # type: ignore[attr-defined]
    for number in range(4):
        weights = {name: values[number] for name, values in draws.items()}
        torch.testing.assert_close(f[number], functional_call(net, free | weights, (x,)), rtol=1e-4, atol=1e-5)
    assert [call is not None for call in calls[:2]] == [True, False]  # the second pool has windows that overlap
