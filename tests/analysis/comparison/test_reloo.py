"""Refits of leave-one-out cross-validation against its closed form."""

from __future__ import annotations

from typing import Any

import arviz_stats
import numpy as np
import pytest
import torch

import pyrodrop
from pyrodrop import guides, schedules
from pyrodrop.analysis import loo, reloo

TRAINING: dict[str, Any] = {
    "steps": 250,
    "lr": 0.1,
    "lr_schedule": schedules.cosine(250),
    "engine": "traced",
    "estimator": "local",
    "progress": False,
}


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_refits_replace_what_is_unreliable(small: Any) -> None:
    """With a q that is too narrow, k-hat is above 0.7 somewhere; refits give the density under the exact posterior there.

    What training leaves of the noise of its gradients changes a log density z^2 / 2 in proportion to z, so the error is
    relative; it is of a size that importance sampling from q only reaches by chance, and that is not compared.
    """
    fit, exact = small.conjugate(0.3)
    before = loo(fit, num_samples=2000, force=True)
    bad = before.pointwise[1] > 0.7
    assert 0 < int(bad.sum()) < 60
    found = reloo(fit, fit.model, guides.MeanField(fit.model), num_samples=2000, **TRAINING)
    assert torch.equal(found.pointwise[0][~bad], before.pointwise[0][~bad])
    assert torch.equal(found.pointwise[1] == 0, bad)
    torch.testing.assert_close(found.pointwise[0][bad], exact[bad], rtol=0.1, atol=0)
    assert found.elpd == pytest.approx(float(found.pointwise[0].sum()))
    assert found.se == pytest.approx(np.sqrt(60 * np.var(found.pointwise[0].numpy(), ddof=1)))
    assert found.p + found.elpd == pytest.approx(before.p + before.elpd)
    assert set(arviz_stats.compare({"a": found.elpd_data, "b": before.elpd_data}).index) == {"a", "b"}


def test_without_an_unreliable_observation_it_is_loo(small: Any) -> None:
    fit, _ = small.conjugate(1.0)
    found = reloo(fit, fit.model, guides.MeanField(fit.model), num_samples=2000)
    assert torch.equal(found.pointwise[0], loo(fit, num_samples=2000).pointwise[0])


def test_without_importance_ratios_it_is_refused(small: Any) -> None:
    fit = small.fitted(small.dropout, steps=2)
    with pytest.raises(ValueError, match=r"here there are none: log p - log q does not exist .*k = N"):
        reloo(fit, fit.model, pyrodrop.guides.MeanField(fit.model), num_samples=25)
