"""What is loaded is compared with what was written, and large tensors are kept in 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pyrodrop import guides, likelihoods, models, priors, zoo
from pyrodrop.data import Dataset
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.zoo import trained
from pyrodrop.zoo.entry import Check, Entry

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda points: points, ""),
        (lambda points: {**points, "points.mean": points["points.mean"] * (1 + 2e-6)}, "up to 2e-06 of the largest"),
        (lambda points: {**points, "points.sd": points["points.sd"] * 1.01}, "the largest value apart, with torch"),
        (lambda points: {**points, "points.sd": points["points.sd"].log()}, "up to "),
        (lambda points: {**points, "points.sd": points["points.sd"] * float("nan")}, "up to nan of the largest"),
    ],
)
def test_predictions_that_are_not_those_of_the_file_are_warned_of(
    change: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = "co2/mc-dropout-tanh-0.1"
    tensors, about = read_tensors(trained.SHIPPED / f"{name}.safetensors")
    (tmp_path / "co2").mkdir()
    write_tensors(tmp_path / f"{name}.safetensors", change(tensors), about)
    monkeypatch.setenv("PYRODROP_ZOO", str(tmp_path))
    zoo.load(name)
    assert bool(caplog.messages) == bool(said)
    assert all(said in message and message.startswith(f"{name} predicts") for message in caplog.messages)


def test_points_of_another_shape_are_refused(tmp_path: Path) -> None:
    """A mean of one number would be compared with all of them."""
    path = trained.SHIPPED / "co2/mc-dropout-tanh-0.1.safetensors"
    tensors, about = read_tensors(path)
    write_tensors(tmp_path / "f", {**tensors, "points.mean": tensors["points.mean"][:1]}, about)
    with pytest.raises(ValueError, match=r"its mean at the points must have the shape \[10, 1\]"):
        trained.difference(zoo.load("co2/mc-dropout-tanh-0.1", device="cpu"), tmp_path / "f")


# 16 bits


def wide(data: Dataset) -> Any:
    return models.MLP([3, 4000, 2], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0), seed=None)


def entry(guide: Any) -> Entry:
    settings = {"steps": 5, "progress": False, "engine": "traced", "device": "cpu"}
    return Entry("own/wide", "wide", "here", "line-1000", wide, guide, lambda data: settings, {}, Check(steps=2))


@pytest.mark.parametrize("guide", [guides.MeanField, guides.BernoulliDropout])
def test_a_rounded_fit_takes_half_the_size_and_comes_back_as_it_is(guide: Any, tmp_path: Path) -> None:
    data = Dataset(torch.randn(9, 3), torch.randn(9, 2))
    of = entry(guide)
    fit = of.fit(data)
    before = {name: value.clone() for name, value in fit.guide.state_dict().items()}
    rounded = trained.rounded(fit)
    sizes = {}
    for name, made in (("whole", fit), ("half", rounded)):
        path = trained.save(tmp_path / name, of, [made], [data], data.x, {"scores": {}})
        back: Any = trained.restore(of, path, "cpu")
        assert torch.equal(back.predict(data.x, 7).f, made.predict(data.x, 7).f)
        sizes[name] = sum(v.nbytes for n, v in read_tensors(path)[0].items() if n.startswith("0.guide"))
    large = sum(value.nbytes for value in before.values() if value.numel() >= 10_000)
    assert sizes["whole"] - sizes["half"] == large / 2 > 0
    for name, value in rounded.guide.state_dict().items():
        assert torch.equal(fit.guide.state_dict()[name], before[name])
        torch.testing.assert_close(value, before[name], rtol=2**-11, atol=1e-7)
        assert torch.equal(value, before[name]) == (value.numel() < 10_000)


def test_what_16_bits_do_not_hold_is_not_rounded() -> None:
    of = entry(guides.MeanField)
    fit = of.fit(Dataset(torch.randn(9, 3), torch.randn(9, 2)))
    with torch.no_grad():
        for value in fit.guide.state_dict().values():
            value[0] = 1e5
    rounded = trained.rounded(fit)
    assert all(torch.equal(value, fit.guide.state_dict()[n]) for n, value in rounded.guide.state_dict().items())
