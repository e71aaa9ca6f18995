"""Replicates of Pyro programs: from the same random numbers each is the fit alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from torch import Tensor

import pyrodrop
from pyrodrop.analysis.lab.networks.alone import drawn_as_alone
from tests.small import line

G = torch.Generator().manual_seed(0)
X = torch.randn(12, generator=G)
Y = 2 * X + 0.3 * torch.randn(12, generator=G)
SCALES = (0.05, 0.1, 0.2)
OPTIONS: dict[str, Any] = {"steps": 8, "lr": 0.05, "engine": "traced"}


def check_alone(auto: Any, sets: Sequence[dict[str, Any]], guides: Sequence[Any], **more: Any) -> pyrodrop.Replicates:
    """Every replicate is the fit alone."""
    data = sets if len(sets) > 1 else sets[0]
    with drawn_as_alone(5, 6, 7):
        many = pyrodrop.fit_replicates(line, guides, data, count=3, seed=5, **OPTIONS, **more)
    for r, one in enumerate(many):
        own = auto(line, init_scale=SCALES[r]) if auto is not AutoDelta else auto(line)
        alone = pyrodrop.fit(line, own, sets[r % len(sets)], seed=5 + r, **OPTIONS, **more)
        torch.testing.assert_close(one.losses, alone.losses, rtol=1e-6, atol=1e-6, check_dtype=False)
        for name, value in own.state_dict().items():
            torch.testing.assert_close(one.guide.state_dict()[name], value, rtol=1e-6, atol=1e-6)  # type: ignore[attr-defined]
        assert one.fingerprint == alone.fingerprint
    assert not torch.allclose(many[0].losses, many[1].losses)
    return many


@pytest.mark.few(1)
@pytest.mark.parametrize("auto", [AutoNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal])
def test_several_starts_are_the_fits_alone(auto: Any) -> None:
    many = check_alone(auto, [{"x": X, "y": Y, "size": 5}], [auto(line, init_scale=scale) for scale in SCALES])
    assert "size" in str(many)
    assert many.predict({"x": X, "y": Y, "size": None}, 6)["y"].shape == (6, 12)


def test_several_data_sets_are_the_fits_alone() -> None:
    sets = [{"x": X + r, "y": Y} for r in range(3)]
    check_alone(AutoDelta, sets, [AutoDelta(line) for _ in range(3)])


@pytest.mark.parametrize("loss", [pytest.param(RenyiELBO, marks=pytest.mark.more), Trace_ELBO])
def test_losses_of_pyro_are_those_of_the_fits_alone(loss: Any) -> None:
    """Also where the loss object draws random numbers before the first step, to count nested plates."""
    guides = [AutoNormal(line, init_scale=scale) for scale in SCALES]
    objective = loss(num_particles=2, vectorize_particles=loss is Trace_ELBO)
    check_alone(AutoNormal, [{"x": X, "y": Y}], guides, objective=objective)


def test_arguments_of_other_shapes_train_after_each_other() -> None:
    """Each is alone in its stack, which draws the numbers of the fit alone, as there are no masks."""
    sets = [{"x": X[:n], "y": Y[:n], "size": size} for n, size in ((12, None), (6, None), (12, 5))]
    guides = [AutoNormal(line, init_scale=scale) for scale in SCALES]
    many = pyrodrop.fit_replicates(line, guides, sets, count=3, seed=5, **OPTIONS)
    assert [fit.settings["replicates"] for fit in many] == [1, 1, 1]
    for r, one in enumerate(many):
        alone = pyrodrop.fit(line, AutoNormal(line, init_scale=SCALES[r]), sets[r], seed=5 + r, **OPTIONS)
        torch.testing.assert_close(one.losses, alone.losses, rtol=1e-6, atol=1e-6, check_dtype=False)


def test_plates_of_replicates_draw_rows_of_their_own() -> None:
    """Of 12 rows in random order the chance that two replicates take the same five at eight steps is 792^-8."""
    guides = [AutoDelta(line) for _ in range(3)]
    many = pyrodrop.fit_replicates(line, guides, {"x": X, "y": Y, "size": 5}, count=3, **{**OPTIONS, "lr": 1e-6})
    assert len({tuple(fit.losses.tolist()) for fit in many}) == 3


def test_parameters_that_replicates_would_share_are_refused() -> None:
    def guide(x: Tensor, y: Tensor) -> None:
        pyro.sample("slope", dist.Normal(pyro.param("loc", torch.tensor(0.0)), 0.1))
        pyro.sample("noise", dist.LogNormal(0.0, 1.0))

    with pytest.raises(ValueError, match="loc is in Pyro's global store, one for all"):
        pyrodrop.fit_replicates(line, guide, {"x": X, "y": Y}, count=2, **OPTIONS)
    auto = AutoNormal(line)
    with pytest.raises(TypeError, match="got the same one for several in guides"):
        pyrodrop.fit_replicates(line, [auto, auto], {"x": X, "y": Y}, count=2, **OPTIONS)


def test_autoguides_stay_in_their_process() -> None:
    guides = [AutoNormal(line) for _ in range(2)]
    with pytest.raises(ValueError, match="jobs must be None for autoguides.*got jobs=2 and an AutoNormal"):
        pyrodrop.fit_replicates(line, guides, {"x": X, "y": Y}, count=2, jobs=2, **OPTIONS)
