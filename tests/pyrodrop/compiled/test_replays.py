"""Steps recorded once and replayed: what is fresh comes in, what is held is moved in place, recording leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.compiled.cuda import Replayed
from pyrodrop.devices import products_of_float32


def recorder(call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Like CUDA graphs: calls to warm up, then results in tensors that every replay writes over."""
    call()
    first = call()
    places = first.clone() if isinstance(first, Tensor) else [value.clone() for value in first]

    def replay() -> None:
        results = call()
        if isinstance(results, Tensor):
            results, into = [results], [places]
        else:
            into = places
        for place, value in zip(into, results, strict=True):
            place.copy_(value)

    return replay, places


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrodrop.compiled.cuda.KernelRecorder", lambda device: recorder)


@pytest.mark.usefixtures("on_a_cpu")
def test_what_a_step_carries_stays_where_the_next_one_reads_it() -> None:
    def moved(q: Tensor, p: Tensor, rate: Tensor) -> list[Tensor]:
        return [q.sum(), p - rate * q, q + rate * p]

    rate, q, p = torch.tensor(0.5), torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0])
    replayed = Replayed(moved, [torch.zeros(2), torch.zeros(2), torch.zeros(())], (2, 1))
    for start in (q, 3 * q):
        wants, gots = [(torch.zeros(()), p, start)], [(torch.zeros(()), p, start)]
        for step in range(4):
            if step == 2:
                rate.mul_(0.1)  # the same tensor with another value
            wants.append(tuple(moved(wants[-1][2], wants[-1][1], rate)))
            gots.append(tuple(replayed(gots[-1][2], gots[-1][1], rate)))
        assert torch.equal(torch.stack([got[0] for got in gots]), torch.stack([want[0] for want in wants]))
        assert torch.equal(gots[-1][1], wants[-1][1])
        assert torch.equal(gots[-1][2], wants[-1][2])
    assert q.tolist() == [1.0, 2.0]


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
