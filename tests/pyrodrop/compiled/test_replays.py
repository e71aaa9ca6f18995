"""Products of float32, and a training on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.devices import products_of_float32


@pytest.mark.parametrize("users", ["tf32", "ieee"])
def test_products_are_of_float32_for_a_while(users: str) -> None:
    """By default PyTorch's convolutions are short. The user may have set its new names, beside which the old ones raise."""
    owners: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]
    before = [owner.fp32_precision for owner in owners]
    assert before[1:] == ["tf32", "tf32"]
    owners[1].fp32_precision = users
    try:
        with products_of_float32():
            assert {owner.fp32_precision for owner in owners} == {"ieee"}
        assert [owner.fp32_precision for owner in owners] == [before[0], users, before[2]]
    finally:
        owners[1].fp32_precision = before[1]
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_compiled_training_on_a_gpu_is_the_traced_one() -> None:
    x = torch.randn(64, 3)
    fits = []
    for engine in ("traced", "compiled"):
        torch.manual_seed(0)
        model = models.MLP([3, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
        guide = guides.BernoulliDropout(model, 0.2)
        fits.append(pyrodrop.fit(model, guide, (x, x[:, :1]), steps=100, batch_size=32, engine=engine, device="cuda"))
    assert fits[1].settings["engine"] == "compiled"
    torch.testing.assert_close(fits[0].history, fits[1].history, rtol=1e-4, atol=1e-4)
    assert len(torch.unique(fits[1].history[:, 0])) == 100
