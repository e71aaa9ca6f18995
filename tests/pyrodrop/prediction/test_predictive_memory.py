"""The distribution of a prediction in the memory of the network's outputs: the same bits as apart, or a refusal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import devices, guides, likelihoods, models, priors
from pyrodrop.prediction import predict as module
from pyrodrop.scaling import Standardize


class Shifted(likelihoods.Gaussian):
    """A user's own, whose distribution is not where its location is."""

    def forward(self, output: torch.Tensor, targets: Standardize) -> Any:
        return dist.StudentT(5.0, self.location(output, targets) + output**2, 1.0).to_event(1)


UNITS = {
    "none": Standardize(),
    "columns": Standardize(torch.tensor([3.0, -1.0]), torch.tensor([0.7, 19.0])),
    "wider": Standardize(torch.tensor([1.0, 2.0]).double(), torch.tensor([0.3, 5.0]).double()),
}


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize(
    "likelihood",
    [
        likelihoods.Gaussian(3.0),
        likelihoods.HeteroscedasticGaussian(),
        likelihoods.HeteroscedasticGaussian("softplus"),
        Shifted(2.0),
    ],
    ids=repr,
)
def test_together_they_are_what_they_are_apart(likelihood: Any, units: str) -> None:
    targets = UNITS[units]
    output = torch.randn(5, 7, likelihood.outputs(2), generator=torch.Generator().manual_seed(0))
    want, f = likelihood(output, targets), likelihood.location(output, targets)
    distribution, in_place = likelihood.predictive(output.clone(), targets)
    assert torch.equal(in_place, f)
    assert in_place.dtype == f.dtype
    y = torch.randn(5, 7, 2)
    assert torch.equal(distribution.log_prob(y), want.log_prob(y))
    assert type(distribution.base_dist) is type(want.base_dist)


def test_one_column_for_several_outputs_is_not_squeezed_into_them() -> None:
    targets = Standardize(torch.tensor([3.0, -1.0]), torch.tensor([0.7, 19.0]))
    output = torch.ones(4, 6, 1)
    distribution, f = likelihoods.Gaussian(1.0).predictive(output, targets)
    assert f.shape == distribution.mean.shape == (4, 6, 2)


def fitted(likelihood: Any, outputs: int, y: torch.Tensor) -> pyrodrop.Fit:
    model = models.MLP([1, 4, outputs], prior=priors.Gaussian(), likelihood=likelihood)
    guide = guides.BernoulliDropout(model, 0.1)
    x = torch.linspace(-1, 1, len(y))[:, None]
    return pyrodrop.fit(model, guide, (x, y), steps=1, engine="pyro", progress=False)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "copies"), [(likelihoods.Gaussian(1.0), 1, 1), (likelihoods.Categorical(), 3, 3)]
)  # fmt: skip
def test_more_than_there_is_is_refused_with_the_bytes(
    likelihood: Any, outputs: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = fitted(likelihood, outputs, torch.arange(12) % 3 if outputs == 3 else torch.randn(12, 1))
    need = copies * 400 * 12 * outputs * 4
    monkeypatch.setattr(module, "available", lambda device: need - 1)
    with pytest.raises(
        ValueError, match=r"the outputs of 400 functions at 12 points take .* GiB.* a smaller num_samples"
    ):
        fit.predict(torch.zeros(12, 1), 400)
    monkeypatch.setattr(module, "available", lambda device: need)
    assert len(fit.predict(torch.zeros(12, 1), 400).f) == 400


@pytest.mark.parametrize(
    ("limit", "used", "cached", "want"),
    [("max", "7", "0", 500 * 1024), ("300", "100", "0", 200), ("300", "290", "150", 160), ("100", "300", "0", 0),
     ("900000", "100", "0", 500 * 1024)],
)  # fmt: skip
def test_what_can_be_had_is_what_the_system_gives_back_within_the_containers_limit(
    limit: str, used: str, cached: str, want: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("max", limit), ("current", used), ("stat", f"anon 5\ninactive_file {cached}")):
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    monkeypatch.setattr(devices.psutil, "virtual_memory", lambda: SimpleNamespace(available=500 * 1024))
    monkeypatch.setattr(devices, "Path", lambda text: {"/sys/fs/cgroup": tmp_path}[text])
    assert devices.available(torch.device("cpu")) == want


def test_a_system_without_containers_has_no_limit_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS and Windows."""
    monkeypatch.setattr(devices.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**40))
    monkeypatch.setattr(devices, "Path", lambda text: tmp_path / "nothing")
    assert devices.available(torch.device("cpu")) == 2**40
    assert len(pyrodrop.fit_replicates(*parts_of_a_fit(), count=2, steps=1, engine="traced")) == 2


def parts_of_a_fit() -> tuple[Any, Any, Any]:
    model = models.MLP([1, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    return model, guides.MeanField(model), (torch.zeros(5, 1), torch.zeros(5, 1))
