"""Replicates of Pyro programs: several starts and several data sets at once, compared with the fits alone."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal
from torch import Tensor

import pyrodrop

G = torch.Generator().manual_seed(0)
X = torch.randn(12, generator=G)
Y = 2 * X + 0.3 * torch.randn(12, generator=G)
SCALES = (0.05, 0.1, 0.2)
OPTIONS: dict[str, Any] = {"steps": 8, "lr": 0.05, "engine": "traced"}


@pytest.fixture(autouse=True)
def _empty_store() -> None:
    gc.collect()
    pyro.clear_param_store()


def line(x: Tensor, y: Tensor, size: int | None = None) -> None:
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(x), subsample_size=size) as rows:
        pyro.sample("y", dist.Normal(slope * x[rows], noise), obs=y[rows])


def check_alone(auto: Any, sets: Sequence[dict[str, Any]], guides: Sequence[Any], **more: Any) -> pyrodrop.Replicates:
    """Every replicate is the fit alone."""
    many = pyrodrop.fit_replicates(line, guides, sets if len(sets) > 1 else sets[0], count=3, seed=5, **OPTIONS, **more)
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
    sets = [{"x": X[:n], "y": Y[:n], "size": size} for n, size in ((12, None), (6, None), (12, 5))]
    check_alone(AutoNormal, sets, [AutoNormal(line, init_scale=scale) for scale in SCALES])


def test_a_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    def run(steps: int, **more: Any) -> list[Tensor]:
        gc.collect()
        pyro.clear_param_store()
        guides = [AutoNormal(line, init_scale=scale) for scale in SCALES]
        data = {"x": X, "y": Y, "size": 5}
        many = pyrodrop.fit_replicates(line, guides, data, count=3, **{**OPTIONS, "steps": steps}, **more)
        return [fit.losses for fit in many]

    want, path = run(8), tmp_path / "state.safetensors"
    run(3, checkpoint=path)
    assert all(map(torch.equal, run(8, checkpoint=path), want))


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
