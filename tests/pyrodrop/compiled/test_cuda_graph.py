"""Steps recorded once and replayed: what is fresh comes in, what is held is moved in place, recording leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.compiled.cuda_graph import Captured, Replayed
from pyrodrop.devices import tf32_products


def step(weight: Tensor, x: Tensor, rate: Tensor) -> list[Tensor]:
    """Moves its weight; gives its old value times x."""
    result = weight * x
    weight.copy_(weight - rate * x)
    return [result]


def recorder(call: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """Like a CUDA graph: some calls to warm up, then results in tensors that every replay writes over."""
    call()
    places = [value.clone() for value in call()]

    def replay() -> None:
        for place, value in zip(places, call(), strict=True):
            place.copy_(value)

    return replay, places


def test_replays_are_the_calls() -> None:
    weight, rate = torch.tensor([1.0, 2.0]), torch.tensor(0.5)
    captured = Captured(step, [weight, torch.ones(2), rate], [1], recorder)
    assert weight.tolist() == [1.0, 2.0]  # recording made steps, and took them back
    alone = weight.clone()
    for x in (torch.tensor([1.0, 1.0]), torch.tensor([2.0, -1.0])):
        (want,) = step(alone, x, rate)
        assert torch.equal(captured(weight, x, rate)[0], want)
        assert torch.equal(weight, alone)
    rate.fill_(0.0)  # what is held is read where it is
    captured(weight, torch.ones(2), rate)
    assert torch.equal(weight, alone)


def test_what_a_step_carries_stays_where_the_next_one_reads_it() -> None:
    def moved(q: Tensor, p: Tensor, rate: Tensor) -> list[Tensor]:
        return [q.sum(), p - rate * q, q + rate * p]

    rate, q, p = torch.tensor(0.5), torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0])
    replayed = Replayed(moved, [torch.zeros(2), torch.zeros(2), torch.zeros(())], (2, 1), recorder)
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


def test_tf32_is_for_gpus() -> None:
    model = models.MLP([1, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    with pytest.raises(ValueError, match="precision='tf32' needs an NVIDIA GPU; the device is cpu"):
        pyrodrop.fit(model, guides.MeanField(model), (torch.ones(4, 1),) * 2, steps=1, precision="tf32", device="cpu")


def test_tf32_is_allowed_for_a_while() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with tf32_products(True, torch.device("cuda")):
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_training_is_the_traced_one() -> None:
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
