"""Outputs of known rows as functions of one level, against sums over the rows in NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from pyrodrop import Prediction, guides, likelihoods, models, priors
from pyrodrop.prediction.predict import draw_functions

ROWS, LEVELS = 9, 20_000
RANDOM = torch.Generator().manual_seed(0)
KNOWN, X = torch.randn(ROWS, 2, generator=RANDOM), torch.randn(4, 2, generator=RANDOM)
INDEX = models.WideAndDeep([2, 6, 2], prior=priors.Gaussian(), likelihood=likelihoods.HeteroscedasticGaussian())
OF_INDEX = INDEX.network.state_dict() | {name: INDEX.free[name] for name in INDEX.free} | INDEX.weight_sites()


def neighbours(likelihood: likelihoods.Likelihood, m: Tensor, f: Tensor) -> tuple[models.Neighbours, np.ndarray]:
    """A model, and the weights of its rows at X."""
    model = models.Neighbours([2, 6, 2], ROWS, likelihood=likelihood)
    model.set_rows(OF_INDEX, x=KNOWN, m=m, f=f, near=torch.tensor([0.5, 1.5]))
    there = INDEX.outputs(INDEX.weight_sites(), X).detach()
    index = (there.softmax(-1) if isinstance(likelihood, likelihoods.Categorical) else there[:, :1]).double().numpy()
    off = (
        np.square(index[:, None] - m.numpy()).sum(-1) / 0.5**2
        + np.square((X[:, None] - KNOWN).numpy()).sum(-1) / 1.5**2
    )
    weights = np.exp(-off / 2)
    return model, weights / weights.sum(1, keepdims=True)


def outputs(model: models.Neighbours) -> Tensor:
    """At equally probable levels, ``[LEVELS, 4, 2]``."""
    levels = torch.from_numpy(norm.ppf((np.arange(LEVELS) + 0.5) / LEVELS)).float()
    return model.outputs({"level": levels[:, None, None]}, X)


def test_y_is_distributed_as_at_known_rows_near_x() -> None:
    """Two values repeat; the noise is .3."""
    y = torch.tensor([-1.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 5.0])
    model, weights = neighbours(likelihoods.HeteroscedasticGaussian(), torch.randn(ROWS, 1), torch.stack([y, 0 * y], 1))
    f = outputs(model)
    for row, value in enumerate(y):  # a share of levels is off by one of them at both ends
        if row < 1 or value != y[row - 1]:
            share = (f[..., 0] == value).double().mean(0).numpy()
            np.testing.assert_allclose(share, weights[:, (y == value).numpy()].sum(1), atol=3 / LEVELS)
    model.likelihood.factor = torch.tensor(0.3**2)  # type: ignore[assignment]
    predicted = Prediction(f[..., :1], model.likelihood(f, model.targets))
    for at in (-0.2, 0.5, 3.0):
        here = torch.full((4, 1), at)
        density = (weights * norm.pdf(at, y, 0.3)).sum(1)
        np.testing.assert_allclose(predicted.log_density(here).exp(), density, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(predicted.cdf(here)[:, 0], (weights * norm.cdf(at, y, 0.3)).sum(1), atol=1e-3)


def test_labels_are_distributed_as_at_known_rows_near_x() -> None:
    labels = torch.arange(ROWS) % 2
    f = (0.1 / 2 + 0.9 * torch.nn.functional.one_hot(labels, 2)).log()
    model, weights = neighbours(likelihoods.Categorical(), torch.rand(ROWS, 2), f)
    probabilities = outputs(model).softmax(-1).mean(0).numpy()
    np.testing.assert_allclose(probabilities, weights @ f.exp().numpy(), atol=1e-3)


def test_a_gradient_of_steps_is_refused() -> None:
    model = models.Neighbours([2, 1], 3, likelihood=likelihoods.Gaussian(1.0))
    with pytest.raises(RuntimeError, match=r"steps without a gradient in x: take recipe.fit\(neighbours=False\)"):
        model.outputs({"level": torch.zeros(1, 1)}, X.clone().requires_grad_())


def test_columns_over_powers_of_ten_are_taken_by_logarithm() -> None:
    """Against the formula, beyond the box too, where the line goes on, and below o."""
    model = models.WideAndDeep([2, 5, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(), logs=(1,))
    slopes, low, high = torch.tensor([[2.0], [3.0]]), torch.tensor([-1.0, -0.4]), torch.tensor([1.0, 2.0])
    model.set_line(slopes, torch.zeros(1), torch.ones(1))
    model.set_range(low, high, of_logs=torch.tensor([[-0.5], [0.25], [2.0]]))
    inside = X.clamp(low, high)
    log = ((inside[:, 1:] + 0.5).log() - 0.25) / 2
    weights = model.weight_sites()
    biases = [model.free[f"deep.layers.{layer}.bias"] for layer in (0, 1)]
    seen = torch.cat([inside[:, :1], log], 1)
    deep = (seen @ weights["deep.layers.0.weight"].T + biases[0]).relu() @ weights["deep.layers.1.weight"].T + biases[1]
    line = 2 * X[:, :1] + 3 * ((X[:, 1:] + 0.5).clamp(min=1e-5).log() - 0.25) / 2
    assert float(X[:, 1].min()) < -0.5
    torch.testing.assert_close(model.outputs(weights, X), line + deep)


def test_means_over_draws_of_the_level_have_small_errors() -> None:
    """Each of 40 levels is drawn from another fortieth: independent ones would have errors of a sixth of the sd of f."""
    model, weights = neighbours(likelihoods.Gaussian(1.0), torch.randn(ROWS, 1), torch.arange(2.0 * ROWS).view(2, -1).T)
    f = np.arange(ROWS)
    mean = weights @ f
    sd = np.sqrt(weights @ f**2 - mean**2)
    guide, cpu = guides.MeanField(model, 1.0), torch.device("cpu")
    drawn = [draw_functions(model, guide, X, 40, seed=seed, device=cpu).f[..., 0].double() for seed in (0, 1, 0)]
    for each in drawn:
        assert np.all(np.abs(each.mean(0).numpy() - mean) < 0.06 * sd)
        assert len(each.unique(dim=0)) > 3
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
