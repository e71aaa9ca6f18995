"""Replicates that cannot be one stack train in turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin() + 0.1 * X[:, 1:2]
SETTINGS: dict[str, Any] = {"batch_size": 8, "lr": 1e-2, "engine": "traced", "progress": False}


def network(width: int = 8) -> models.NetworkModel:
    return models.MLP([3, width, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))


def two_widths() -> dict[str, Any]:
    torch.manual_seed(0)
    own = [network(width) for width in (4, 6, 4)]
    return {"models": own, "guides": [guides.BernoulliDropout(m, 0.2) for m in own], "data": [(X, Y)] * 3}


def fit(parts: dict[str, Any], steps: int = 8, **options: Any) -> pyrodrop.Replicates:
    count = len(parts["models"])
    return pyrodrop.fit_replicates(**parts, count=count, steps=steps, **{**SETTINGS, "seed": 5, **options})


def values(one: pyrodrop.Fit) -> Tensor:
    """Parameters and buffers, in one tensor."""
    tensors = [*one.model.state_dict().values(), *one.guide.state_dict().values()]  # type: ignore[attr-defined]
    return torch.cat([value.detach().double().flatten() for value in tensors])


def test_a_stack_in_which_all_fail_leaves_the_others() -> None:
    """Its losses are NaN from that step on."""
    parts = two_widths()
    parts["data"] = [(X, Y), (X, Y * 1e30), (X, Y)]
    many = fit(parts)
    assert many.failed == {1: 0}
    assert bool(many[1].history.isnan().all())
    assert bool(many[0].history.isfinite().all())
    with pytest.raises(FloatingPointError, match="All 2 replicates failed"):
        fit({**parts, "data": [(X, Y * 1e30)] * 3})


def test_networks_of_different_widths_priors_and_data_are_the_fits_alone() -> None:
    """A grid is one call; results are in the order of the arguments, from starts of their own. Without noise."""
    torch.manual_seed(0)
    own = [network(4), network(6), network(4), network(4)]
    own[3] = models.MLP([3, 4, 1], prior=priors.Laplace(), likelihood=likelihoods.Gaussian(4.0))
    parts = {
        "models": own,
        "guides": [guides.Point(m) for m in own],
        "data": [(X, Y), (X[:20], Y[:20]), (X, Y), (X, Y)],
    }
    options: dict[str, Any] = {"steps": 5, "batch_size": None}
    many = fit(parts, starts="new", **options)
    assert [one.settings["replicates"] for one in many] == [2, 1, 2, 1]
    assert [len(one.guide.mean()["layers.0.weight"]) for one in many] == [4, 6, 4, 4]  # type: ignore[attr-defined]
    for r, one in enumerate(many):
        each = [parts[name][r] for name in ("models", "guides", "data")]
        started = pyrodrop.restart(*each[:2], 5 + r)
        alone = pyrodrop.fit(*started, each[2], **{**SETTINGS, **options, "seed": 5 + r, "engine": "pyro"})
        torch.testing.assert_close(values(one), values(alone), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one.history, alone.history, rtol=1e-4, atol=1e-3)
        assert one.settings["seed"] == 5 + r


def test_other_activations_are_refused() -> None:
    own = [network(4), models.MLP([3, 4, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))]
    with pytest.raises(ValueError, match="replicate 1 differs from replicate 0 in more than replicates may"):
        fit({"models": own, "guides": [guides.Point(m) for m in own], "data": (X, Y)}, steps=3)
