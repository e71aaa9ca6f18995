"""DDP and Lightning Fabric on two processes, against one process, a loss written by hand, and the ways that are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pyro.infer import Trace_ELBO
from torch import Tensor
from torch.distributions import Normal

from .two_ranks import (
    GUIDES,
    LR,
    MINIBATCHES,
    PAGE,
    RANKS,
    N,
    X,
    Y,
    blocks,
    descend,
    elbo,
    first_gradient,
    gradients,
    parameters,
)

pytest.importorskip("lightning_fabric")
pytestmark = pytest.mark.unshifted
close: Callable[..., None] = torch.testing.assert_close


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes got."""
    folder = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("two_ranks.py")), str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def one_process(name: str, way: Callable[[Any], None]) -> Tensor:
    loss = elbo(name)
    way(loss)
    return parameters(loss)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["page, DDP", "page, Fabric"])
def test_the_code_of_the_page_trains_the_same_on_both_ranks(ranks: list[dict[str, Any]], case: str) -> None:
    assert bool(ranks[0][case].isfinite().all())
    assert torch.equal(ranks[0][case], ranks[1][case])


@pytest.mark.parametrize("case", [*(f"DDP, {name}" for name in GUIDES), "Fabric, variational"])
def test_two_ranks_descend_as_one_process_on_all_rows(ranks: list[dict[str, Any]], case: str) -> None:
    want = one_process(case.partition(", ")[2], lambda loss: descend(loss, loss, Tensor.backward, lambda rows: rows))
    close(ranks[0][case], want, rtol=1e-9, atol=1e-12)
    assert torch.equal(ranks[0][case], ranks[1][case])


def test_the_point_estimate_descends_as_a_loss_written_by_hand(ranks: list[dict[str, Any]]) -> None:
    """-log likelihood of N rows - log prior, in plain PyTorch."""
    loss = elbo("point")
    values = {n: p.detach().clone().requires_grad_() for n, p in loss.named_parameters()}
    w, b = ([values[n] for n in values if what in n] for what in ("weight", "bias"))
    (tau,) = (values[n] for n in values if "precision" in n)
    for rows in MINIBATCHES:
        f = F.linear(torch.tanh(F.linear(X[rows], w[0], b[0])), w[1], b[1])
        nll = -N / len(f) * Normal(f, (-tau / 2).exp()).log_prob(Y[rows]).sum()
        total = nll - sum(Normal(0.0, 0.8).log_prob(matrix).sum() for matrix in w)
        for value, slope in zip(values.values(), torch.autograd.grad(total, list(values.values())), strict=True):
            value.data -= LR * slope
    close(ranks[0]["DDP, point"], torch.cat([v.detach().flatten() for v in values.values()]), rtol=1e-9, atol=1e-12)


def test_noise_per_example_gives_the_mean_of_the_ranks_own_gradients(ranks: list[dict[str, Any]]) -> None:
    space: dict[str, Any] = {"nn": torch.nn, "Trace_ELBO": Trace_ELBO}
    exec(blocks(PAGE.read_text(encoding="utf-8"))[1], space)
    by_rank = []
    for rank in range(RANKS):
        loss = elbo("variational")
        local = space["LocalLoss"](loss.model, loss.guide)
        by_rank.append(first_gradient(local, local, rank, 10 + rank, N))
    close(ranks[0]["local"], (by_rank[0] + by_rank[1]) / 2)
    assert torch.equal(ranks[0]["local"], ranks[1]["local"])
    assert not torch.allclose(by_rank[0], by_rank[1])


def joined(num_data: int) -> Tensor:
    """The gradient of one process on the rows of both ranks, for this size of the data set."""
    loss = elbo("variational")
    torch.manual_seed(0)
    loss(X[MINIBATCHES[0]], Y[MINIBATCHES[0]], num_data=num_data).backward()
    return gradients(loss)


def test_what_the_wrong_ways_minimise(ranks: list[dict[str, Any]]) -> None:
    right = joined(N)
    close(ranks[0]["summed"], RANKS * right)
    for way in ("num_data of the shard", "num_data of the none"):
        rows = 8 if way.endswith("shard") else 4
        close(ranks[0][way], joined(rows))  # the divergence counts N / rows times
        assert not torch.allclose(N / rows * ranks[0][way], right, rtol=0.05)
