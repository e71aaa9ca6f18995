"""MC dropout is standard dropout: for the same masks, the same loss and the same gradients.

The other side is plain PyTorch: `nn.Linear` and `nn.Dropout`, whose masks are recorded and handed to the guide.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.training.elbo import elbo_terms

N, RATE, TAU = 11, 0.3, 7.0
pytestmark = pytest.mark.usefixtures("float64")


class Plain(nn.Module):
    """Standard dropout on input and hidden layer, one mask a pass as in Psaros' eq. 2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)
        self.dropout = nn.Dropout(RATE)
        self.masks: list[Tensor] = []

    def drop(self, h: Tensor) -> Tensor:
        scaled = self.dropout(torch.ones(h.shape[1]))  # 0 or 1 / keep
        self.masks.append((scaled > 0).to(h.dtype))
        return h * scaled

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(torch.relu(self.first(self.drop(x)))))


def test_loss_and_gradients_are_those_of_nn_dropout_with_weight_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    """-ELBO = N tau L + const, L = mean |y - f|^2 / 2 + sum_i lambda_i |M_i|^2 + lambda_b |b|^2, rtol 1e-10."""
    x, y = torch.randn(N, 3), torch.randn(N, 2)
    keep, l_weight, l_bias = 1 - RATE, 0.8, 1.7
    plain = Plain()
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    model = models.from_module(
        net,
        prior=priors.Gaussian(length_scale=l_weight),
        bias_prior=priors.Gaussian(length_scale=l_bias),
        likelihood=likelihoods.Gaussian(precision=TAU),
    ).double()
    guide = guides.BernoulliDropout(model, RATE, mask_input=True).double()
    with torch.no_grad():  # nn.Dropout divides by keep, so the plain weight is keep * M
        for ours, theirs in (("0", plain.first), ("2", plain.second)):
            guide.loc[f"{ours}.weight"].copy_(theirs.weight / keep)
            guide.loc[f"{ours}.bias"].copy_(theirs.bias)

    f = plain(x)
    decay = keep * l_weight**2 / (2 * N * TAU)
    decay_bias = l_bias**2 / (2 * N * TAU)
    penalty = sum(
        decay * (layer.weight / keep).square().sum() + decay_bias * layer.bias.square().sum()
        for layer in (plain.first, plain.second)
    )
    loss = (y - f).square().sum() / (2 * N) + penalty
    loss.backward()

    recorded = iter(plain.masks)
    monkeypatch.setattr("pyrodrop.distributions.bernoulli_mixture.coins", lambda keep, shape: next(recorded))
    terms = elbo_terms(model, guide, x, y)
    (terms.nll + terms.kl).backward()

    entropy = -(keep * math.log(keep) + RATE * math.log(RATE)) * (3 + 8)
    prior = sum(  # ln p of all weights at 0
        w.numel() * math.log(inverse / math.sqrt(2 * math.pi))
        for layer in (plain.first, plain.second)
        for w, inverse in ((layer.weight, l_weight), (layer.bias, l_bias))
    )
    constant = N * 2 / 2 * math.log(2 * math.pi / TAU) - entropy - prior
    torch.testing.assert_close(terms.nll + terms.kl - constant, N * TAU * loss, rtol=1e-10, atol=0)
    for ours, theirs in (("0", plain.first), ("2", plain.second)):
        gradient = {n: p.grad for n, p in guide.named_parameters()}
        weight, bias = (gradient[f"loc.{ours}.{parameter}_unconstrained"] for parameter in ("weight", "bias"))
        torch.testing.assert_close(weight, N * TAU * theirs.weight.grad * keep, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(bias, N * TAU * theirs.bias.grad, rtol=1e-10, atol=1e-12)


def test_the_rest_of_psaros_constant() -> None:
    """His eq. 5 holds after adding (beta N / 2) log(2 pi sigma^2), which the note leaves out: here sigma^2 = 1 / tau."""
    x, y = torch.randn(N, 3), torch.randn(N, 1)
    model = models.MLP([3, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(precision=TAU)).double()
    guide = guides.Point(model).double()
    terms = elbo_terms(model, guide, x, y)
    squares = TAU / 2 * (y - model.outputs(guide.mean(), x)).square().sum()
    torch.testing.assert_close(terms.nll, squares + N / 2 * torch.log(torch.tensor(2 * math.pi / TAU)))
