"""The memory of a prediction: what there is, and a refusal where it is not enough."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import devices, guides, likelihoods, models, priors
from pyrodrop.prediction import predict as module


def fitted(likelihood: Any, outputs: int, y: torch.Tensor) -> pyrodrop.Fit:
    model = models.MLP([1, 4, outputs], prior=priors.Gaussian(), likelihood=likelihood)
    guide = guides.BernoulliDropout(model, 0.1)
    x = torch.linspace(-1, 1, len(y))[:, None]
    return pyrodrop.fit(model, guide, (x, y), steps=1, engine="pyro", progress=False)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "copies"), [(likelihoods.Gaussian(1.0), 1, 4), (likelihoods.Categorical(), 3, 3)]
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
