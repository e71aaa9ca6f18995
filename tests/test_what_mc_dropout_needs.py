"""The page docs/what-mc-dropout-needs.md: its formulas, against plain PyTorch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, Poisson

import pyrodrop
from pyrodrop import likelihoods, priors
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.divergences import divergence

PAGE = Path(__file__).parents[1] / "docs" / "what-mc-dropout-needs.md"
N, D, HIDDEN, OUT, KEEP, DECAY, TAU = 6, 3, 4, 3, 0.7, 1e-2, 2.3


@pytest.mark.usefixtures("float64")
def test_masks_that_a_weight_carries() -> None:
    x, w, b = torch.randn(5, 4), torch.randn(3, 4), torch.randn(3)
    z, rows = torch.tensor([1.0, 0, 1, 1]), torch.tensor([0.0, 1, 1])
    torch.testing.assert_close(F.linear(x * z / KEEP, w, b), F.linear(x, w / KEEP * z, b))
    torch.testing.assert_close(F.linear(x, w, b) * rows / KEEP, F.linear(x, w / KEEP * rows[:, None], b / KEEP * rows))

    image, kernel, last = torch.randn(2, 4, 6, 6), torch.randn(5, 4, 3, 3), torch.randn(3, 4 * 9)
    dropped = image * z[:, None, None] / KEEP
    torch.testing.assert_close(F.conv2d(dropped, kernel), F.conv2d(image, kernel / KEEP * z[:, None, None]))
    pooled = [F.max_pool2d(F.relu(i), 2).flatten(1) for i in (dropped, image)]
    torch.testing.assert_close(F.linear(pooled[0], last), F.linear(pooled[1], last / KEEP * z.repeat_interleave(9)))
    pooled = [F.avg_pool2d(i, 2).flatten(1) for i in (dropped, image)]
    torch.testing.assert_close(F.linear(pooled[0], last), F.linear(pooled[1], last / KEEP * z.repeat_interleave(9)))


def variance_on_page(loss: str, keep: float) -> float:
    """The prior variance in the row of this loss in the page's table, for N, D, B, H and W as below."""
    (row,) = re.findall(rf"^\| {re.escape(loss)}[^|]*\| ([^|]*) \|", PAGE.read_text(), flags=re.MULTILINE)
    sizes = {"N": N, "D": OUT, "B": 2, "H": 2, "W": 2, "wd": DECAY, "tau": TAU, "keep": keep}
    return float(eval(re.sub(r"(?<=\w) (?=\w)", " * ", row), sizes))


LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], float]] = {
    # row of the page: the loss of the training, the negative log likelihood of all data, -ELBO over the loss
    "`nn.CrossEntropyLoss`, logits [N, C] ": (
        lambda f, y: F.cross_entropy(f, y.argmax(-1)),
        lambda f, y: F.cross_entropy(f, y.argmax(-1), reduction="sum"),
        N,
    ),
    "`nn.CrossEntropyLoss`, logits [N, C, H, W]": (
        lambda f, y: F.cross_entropy(
            f.view(N, 3, 1, 1).expand(-1, -1, 2, 2), y.argmax(-1).view(N, 1, 1).expand(-1, 2, 2)
        ),
        lambda f, y: 4 * F.cross_entropy(f, y.argmax(-1), reduction="sum"),
        N * 4,
    ),
    "`nn.BCEWithLogitsLoss`": (
        lambda f, y: F.binary_cross_entropy_with_logits(f, (y > 0).to(f)),
        lambda f, y: F.binary_cross_entropy_with_logits(f, (y > 0).to(f), reduction="sum"),
        N * OUT,
    ),
    "`nn.PoissonNLLLoss`": (
        lambda f, y: F.poisson_nll_loss(f, y.abs().round(), log_input=True),
        lambda f, y: -Poisson(f.exp()).log_prob(y.abs().round()).sum(),
        N * OUT,
    ),
    "`nn.GaussianNLLLoss`": (
        lambda f, y: F.gaussian_nll_loss(f, y, 0.1 + f[:, :1].expand(-1, OUT) ** 2),
        lambda f, y: -Normal(f, (0.1 + f[:, :1] ** 2).sqrt()).log_prob(y).sum(),
        N * OUT,
    ),
    "`nn.MSELoss`": (F.mse_loss, lambda f, y: -Normal(f, TAU**-0.5).log_prob(y).sum(), N * OUT * TAU / 2),
    "half of `nn.MSELoss`": (
        lambda f, y: F.mse_loss(f, y) / 2,
        lambda f, y: -Normal(f, TAU**-0.5).log_prob(y).sum(),
        N * OUT * TAU,
    ),
    "sum over minibatches": (
        lambda f, y: (
            sum(F.cross_entropy(f[i : i + 2], y[i : i + 2].argmax(-1), reduction="sum") for i in (0, 2, 4)) / 3
        ),
        lambda f, y: F.cross_entropy(f, y.argmax(-1), reduction="sum"),
        N / 2,
    ),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", LOSSES)
def test_prior_of_weight_decay(name: str) -> None:
    """d(-ELBO)/dM = keep * factor * d(loss)/dW with all masks enumerated, for a dropped weight and for two others."""
    loss, nll, factor = LOSSES[name]
    x, y = torch.randn(N, D), torch.randn(N, OUT)
    first, second, bias = torch.randn(HIDDEN, D), torch.randn(OUT, HIDDEN), torch.randn(OUT)
    masks = [torch.tensor(z) for z in itertools.product([0.0, 1.0], repeat=HIDDEN)]
    chances = [float(KEEP ** z.sum() * (1 - KEEP) ** (HIDDEN - z.sum())) for z in masks]

    stored = [w.clone().requires_grad_() for w in (first, second, bias)]
    trained = sum((DECAY / 2 * w.square().sum() for w in stored), torch.tensor(0.0))
    for z, chance in zip(masks, chances, strict=True):  # dropout as torch does it: units kept are divided by keep
        h = F.relu(F.linear(x, stored[0])) * z / KEEP
        trained = trained + chance * loss(F.linear(h, stored[1], stored[2]), y)

    means = [w.clone().requires_grad_() for w in (first, second / KEEP, bias)]
    prior = priors.Gaussian(variance_on_page(name, KEEP) ** 0.5).expand(OUT, HIDDEN, like=means[1])
    posterior = BernoulliMixture(means[1], 1 - KEEP)
    elbo = -divergence(posterior, prior, posterior.rsample())
    for w in (means[0], means[2]):
        elbo = elbo + Normal(0.0, variance_on_page(name, 1.0) ** 0.5).log_prob(w).sum()
    for z, chance in zip(masks, chances, strict=True):
        f = F.linear(F.relu(F.linear(x, means[0])), means[1] * z, means[2])
        elbo = elbo - chance * nll(f, y)

    theirs = torch.autograd.grad(trained, stored)
    ours = torch.autograd.grad(-elbo, means)
    for got, want, keep in zip(ours, theirs, (1.0, KEEP, 1.0), strict=True):
        torch.testing.assert_close(got, keep * factor * want, rtol=1e-10, atol=1e-10)


READ: dict[str, tuple[Any, dict[str, Any], int, tuple[int, ...]]] = {
    # row of the page: the likelihood, further arguments of `read`, the network's outputs, and their shape after [N]
    "`nn.CrossEntropyLoss`, logits [N, C] ": (likelihoods.Categorical(), {}, 3, (3,)),
    "`nn.CrossEntropyLoss`, logits [N, C, H, W]": (likelihoods.Categorical(), {}, 12, (2, 2, 3)),
    "`nn.GaussianNLLLoss`": (likelihoods.HeteroscedasticGaussian(), {}, 2 * OUT, (2 * OUT,)),
    "`nn.BCEWithLogitsLoss`": (likelihoods.Bernoulli(), {}, OUT, (OUT,)),
    "`nn.PoissonNLLLoss`": (likelihoods.Poisson(), {}, OUT, (OUT,)),
    "`nn.MSELoss`": (likelihoods.Gaussian(TAU), {}, OUT, (OUT,)),
    "half of `nn.MSELoss`": (likelihoods.Gaussian(TAU), {"weight_decay": 2 * DECAY}, OUT, (OUT,)),
    "sum over minibatches": (
        likelihoods.Categorical(), {"loss": "sum_nll", "weight_decay": DECAY * N / 2}, OUT, (OUT,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_read_takes_every_row(name: str) -> None:
    """With the arguments of the last column its priors are those of the second one."""
    likelihood, arguments, outputs, shape = READ[name]
    last = [nn.Linear(HIDDEN, outputs), nn.Unflatten(1, shape)]
    net = nn.Sequential(nn.Linear(D, HIDDEN), nn.ReLU(), nn.Dropout(1 - KEEP), *last)
    model: Any = pyrodrop.read(
        net, torch.randn(4, D), likelihood=likelihood, num_data=N, **{"weight_decay": DECAY, **arguments}
    ).model
    for site, keep in (("0.weight", 1.0), ("3.weight", KEEP)):
        assert model.priors[site].scale ** 2 == pytest.approx(variance_on_page(name, keep), rel=1e-6)
    assert set(READ) == set(LOSSES)
