"""Prediction, against the enumeration of every mask."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.prediction.draws import Draws, masks_of
from pyrodrop.prediction.prediction import Prediction

pytestmark = pytest.mark.usefixtures("float64")
K, RATE, TAU = 8, 0.3, 4.0


def fitted(**options: object) -> pyrodrop.Fit:
    """A net of one hidden layer of 8 units, which alone are masked, after a few steps."""
    net = nn.Sequential(nn.Linear(2, K), nn.Tanh(), nn.Linear(K, 1)).double()
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(TAU)).double()
    guide = guides.BernoulliDropout(model, RATE, mask_input=False).double()
    x = torch.randn(20, 2)
    return pyrodrop.fit(model, guide, (x, x.sum(1, keepdim=True)), steps=5)


def enumerated(fit: pyrodrop.Fit, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every function of the 2^8 masks, and the masks' probabilities, in plain PyTorch."""
    loc, free = fit.guide.loc, fit.model.free  # type: ignore[attr-defined]
    hidden = torch.tanh(x @ loc["0.weight"].T + free["0.bias"])
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=K)))
    f = (masks[:, None, :] * hidden) @ loc["2.weight"].T + free["2.bias"]
    kept = masks.sum(1)
    return f.detach(), (1 - RATE) ** kept * RATE ** (K - kept)


def test_mean_and_variance_are_those_of_all_masks() -> None:
    """E and Var of design's predictive equations: exactly for the mixture of all masks, in 4 s.e. for draws."""
    fit, x = fitted(), torch.randn(6, 2)
    f, p = enumerated(fit, x)
    mean = (p[:, None, None] * f).sum(0)
    variance = 1 / TAU + (p[:, None, None] * f**2).sum(0) - mean**2
    draws = fit.predict(x, 40_000)
    se = ((p[:, None, None] * (f - mean) ** 2).sum(0) / 40_000).sqrt()
    assert float(((draws.mean - mean) / se).abs().max()) < 4
    torch.testing.assert_close(draws.variance, variance, rtol=0.03, atol=0)
    torch.testing.assert_close(draws.spread**2 + 1 / TAU, draws.variance)
    density = torch.logsumexp(
        torch.log(p)[:, None] + torch.distributions.Normal(f, TAU**-0.5).log_prob(torch.zeros(1))[..., 0], 0
    )
    torch.testing.assert_close(draws.log_density(torch.zeros(6, 1)), density, atol=0.02, rtol=0)


def test_samples_of_y_add_the_noise() -> None:
    prediction = fitted().predict(torch.randn(5, 2), 20_000)
    assert prediction.y.shape == prediction.f.shape
    torch.testing.assert_close(prediction.y.var(0), prediction.variance, rtol=0.05, atol=0)
    assert prediction.sample_y(7).shape == (7, 5, 1)


def test_one_column_of_y_may_be_a_vector() -> None:
    """Observations [N] of a prediction [N, 1] are scored one by one, and not every one at every point."""
    f, y = torch.randn(1, 4, 1), torch.randn(4)
    prediction = Prediction(f=f, distribution=dist.Normal(f, 0.5).to_event(1))
    normal = torch.distributions.Normal(f[0, :, 0], 0.5)
    torch.testing.assert_close(prediction.log_density(y), normal.log_prob(y))
    torch.testing.assert_close(prediction.cdf(y), normal.cdf(y)[:, None])
    with pytest.raises(ValueError, match=r"the shape \[4, 1\] of the predictions; got \[3\]"):
        prediction.log_density(y[:3])
    twice = torch.cat([f, f], -1)
    with pytest.raises(ValueError, match=r"the shape \[4, 2\] of the predictions; got \[4\]"):
        Prediction(f=twice, distribution=dist.Normal(twice, 0.5).to_event(1)).log_density(y)


def test_masks_of_functions_that_no_weight_carries() -> None:
    """A mask without a shape cannot be one for all points, unless the network is called with all of them at once."""
    x, known, unknown = torch.ones(1, 3), {"drop": (0.5, torch.Size([4]))}, {"drop": (0.5, None)}

    def of(masks: Any) -> Any:
        return SimpleNamespace(noise_shapes=lambda x: masks)

    assert masks_of(of(known), x, together=False) == known
    assert masks_of(of(unknown), x, together=True) == unknown
    with pytest.raises(ValueError, match="the dropout drop merges the points with their rows.*read the network with"):
        masks_of(of(unknown), x, together=False)

    def fails(x: Any) -> Any:
        raise IndexError("no such axis")

    with pytest.raises(ValueError, match=r"cannot be called on x of shape \[1, 3\]: IndexError: no such axis"):
        masks_of(SimpleNamespace(noise_shapes=fails), x, together=False)


@pytest.mark.parametrize(
    ("forward", "rows"), [(lambda f: f.sum(), r"\[\]"), (lambda f: f.T, r"\[1, 3\]"), (lambda f: f[:2], r"\[2, 1\]")]
)
def test_a_network_returns_a_row_for_every_point(forward: Any, rows: str) -> None:
    network = SimpleNamespace(
        outputs=lambda weights, x: forward(x @ weights["w"].T),
        batches_weights=True,
        weight_sites=lambda: {"w": torch.zeros(1, 2)},
    )
    block = Draws(network, 4, {"w": torch.randn(4, 1, 2)}, {}, {})
    with pytest.raises(ValueError, match=f"one row per example, \\[3, ...\\] here; got {rows}"):
        list(block.tiles(torch.randn(3, 2), torch.device("cpu")))
