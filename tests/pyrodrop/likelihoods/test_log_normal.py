"""A log-normal distribution whose noise the network predicts, by SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from pyrodrop import likelihoods
from pyrodrop.scaling import Standardize


@pytest.mark.parametrize("link", ["exp", "softplus"])
def test_a_log_normal_whose_noise_the_network_predicts_is_that_of_scipy(link: Any) -> None:
    """ln y has the mean and the standard deviation of the training data where the outputs are 0 and the variance is 1."""
    y = torch.tensor([[1.0], [2.0], [7.0], [0.5]]).double()
    likelihood = likelihoods.HeteroscedasticLogNormal(link).double()
    likelihood.start(y)
    likelihood.factor = torch.tensor([1.7], dtype=torch.float64)
    output = torch.tensor([[0.3, -0.2], [-1.0, 0.8], [0.0, 0.0], [2.0, -3.0]], dtype=torch.float64)
    log = np.log(y.numpy())
    r = output[:, 1].numpy()
    variance = 1.7 * (np.exp(-r) if link == "exp" else np.logaddexp(r, 0) + 1e-6)
    median = np.exp(log.mean() + log.std() * output[:, 0].numpy())
    want = stats.lognorm(log.std() * np.sqrt(variance), scale=median)
    got = likelihood(output, Standardize(5.0, 3.0))  # the standardisation of y is not that of its logarithm
    np.testing.assert_allclose(got.log_prob(y).numpy(), want.logpdf(y[:, 0].numpy()), rtol=1e-9)
    np.testing.assert_allclose(got.mean[:, 0].numpy(), want.mean(), rtol=1e-9)
    np.testing.assert_allclose(likelihood.location(output, Standardize())[:, 0].numpy(), median, rtol=1e-9)
