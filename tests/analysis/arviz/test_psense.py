"""What ArviZ's sensitivity to power-scaling needs in the tree of a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

import pyrodrop
from pyrodrop import guides, priors


def test_log_prior_is_that_of_each_site(small: Any) -> None:
    fit = small.fitted(guides.MeanField, small.regressor(bias_prior=priors.Gaussian(2.0)), steps=2)
    tree = pyrodrop.to_arviz(fit, small.waves(), num_samples=30, weights=True, log_likelihood=True)
    scales = {"layers.0.weight": 1.0, "layers.0.bias": 2.0, "layers.1.weight": 1.0, "layers.1.bias": 2.0}
    assert set(tree["log_prior"].data_vars) == set(scales)
    for name, scale in scales.items():
        values = tree["posterior"][name].values[0].reshape(30, -1)
        np.testing.assert_allclose(tree["log_prior"][name][0], stats.norm(0, scale).logpdf(values).sum(1), rtol=1e-4)
    total = tree["log_likelihood"]["y"].sum("obs_id") + sum(tree["log_prior"][name] for name in scales)
    np.testing.assert_allclose(total, tree["sample_stats"]["lp"], rtol=1e-4)
