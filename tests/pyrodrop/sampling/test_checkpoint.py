"""A run that is stopped while it draws goes on from its file, to the draws of a run without interruption."""

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, priors
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.sampling import mclmc
from pyrodrop.sampling.chains import Chains

_G = torch.Generator().manual_seed(3)
X = torch.randn(20, 2, generator=_G)
Y = X[:, :1].sin() + 0.3 * torch.randn(20, 1, generator=_G)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mclmc, "STEPS", 3)


def model(scale: float = 1.0) -> pyrodrop.models.NetworkModel:
    torch.manual_seed(0)
    prior = priors.Gaussian(scale)
    return pyrodrop.models.MLP([2, 5, 1], prior=prior, bias_prior=prior, likelihood=likelihoods.Gaussian(8.0))


def drawn(kernel: Any = "hmc", **options: Any) -> pyrodrop.Sampled:
    settings = {"chains": 4, "draws": 20, "tune": 100, "engine": "traced", "max_steps": 2, "progress": False}
    data = options.pop("data", (X, Y))
    return pyrodrop.sample(options.pop("model", model()), data, kernel=kernel, **(settings | options))


def stopped(after: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """A run that is interrupted after so many draws."""
    keep, count = Chains._keep, 0

    def counted(self: Chains, transitions: list[dict[str, Tensor]]) -> None:
        nonlocal count
        if count == after:
            raise KeyboardInterrupt
        count += 1
        keep(self, transitions)

    with monkeypatch.context() as patch:
        patch.setattr(Chains, "_keep", counted)
        with pytest.raises(KeyboardInterrupt):
            drawn(**options)


def same(one: pyrodrop.Sampled, other: pyrodrop.Sampled) -> None:
    for name, values in one.samples.items():
        assert torch.equal(values, other.samples[name]), name
    assert one.stats.keys() == other.stats.keys()
    for name, values in one.stats.items():
        torch.testing.assert_close(values, other.stats[name], rtol=0, atol=0, equal_nan=True)
    left = {"seconds", "seconds_of", "drawing_cpu_seconds"}
    assert {k: v for k, v in one.settings.items() if k not in left} == {
        k: v for k, v in other.settings.items() if k not in left
    }


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kernel", "after", "options"),
    [
        ("hmc", 0, {}),
        pytest.param("hmc", 7, {"dtype": torch.float32, "thin": 2}, marks=pytest.mark.more),
        ("mclmc", 7, {"thin": 2}),
        pytest.param("mclmc", 0, {"dtype": torch.float64}, marks=pytest.mark.more),
    ],
)
def test_a_run_goes_on_to_the_same_draws(
    kernel: str, after: int, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = functools.partial(drawn, kernel, **options)
    whole = once()
    file = tmp_path / "chains.safetensors"
    stopped(after, monkeypatch, kernel=kernel, checkpoint=file, **options)
    assert read_tensors(file)[0]["q"].shape[1] == after - after % 2  # every tenth of 20 draws is saved
    monkeypatch.setattr(Chains, "tune", lambda self, until: pytest.fail("a run that was tuned is tuned again"))
    same(once(checkpoint=file), whole)
    same(once(checkpoint=str(file)), whole)  # of a run that has ended


@pytest.mark.more
def test_float64_that_rounding_asked_for_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[pyrodrop.sample.__module__], "MOST_ROUNDING", 0.0)
    file = tmp_path / "chains"
    stopped(5, monkeypatch, checkpoint=file)
    resumed = drawn(checkpoint=file)
    assert resumed.settings["dtype"] == "float64"
    same(resumed, drawn())


@pytest.mark.more
def test_a_rounding_that_is_not_known_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[pyrodrop.sample.__module__], "_rounding", lambda *given: float("nan"))
    first = drawn(checkpoint=tmp_path / "chains", dtype=torch.float32, draws=4)
    again = drawn(checkpoint=tmp_path / "chains", dtype=torch.float32, draws=4)
    assert torch.equal(first.samples["layers.0.weight"], again.samples["layers.0.weight"])
    assert again.settings["energy_rounding"] != again.settings["energy_rounding"]


@pytest.mark.more
def test_more_draws_may_be_asked_for_and_fewer_not(tmp_path: Path) -> None:
    file = tmp_path / "chains"
    first = drawn("mclmc", checkpoint=file, draws=10)
    same(drawn("mclmc", checkpoint=file, draws=14), drawn("mclmc", draws=14))
    with pytest.raises(ValueError, match="draws must be at least the 14 that the checkpoint .* got 10"):
        drawn("mclmc", checkpoint=file, draws=10)
    assert first.draws == 10


def other_start() -> Any:
    return pyrodrop.fit(model(), guides.Point(model()), (X, Y), steps=3, progress=False)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("data", {"data": (X, Y + 1)}),
        ("scale", {"model": model(2.0)}),
        ("seed", {"seed": 1}),
        ("tune", {"tune": 120}),
        ("thin", {"thin": 2}),
        ("max_steps", {"max_steps": 9}),
        ("kernel", {"kernel": "mclmc"}),
        ("likelihood_power", {"likelihood_power": 0.5}),
        ("dtype", {"dtype": torch.float64}),
        ("start", {"start": other_start()}),
    ],
)
def test_the_file_of_another_run_is_refused(name: str, options: dict[str, Any], ended: Path) -> None:
    with pytest.raises(ValueError, match=rf"the checkpoint .* is of another run: .*{name} is"):
        drawn(checkpoint=ended, **options)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("run") / "chains"
    drawn(checkpoint=file)
    return file


@pytest.mark.few(2)
@pytest.mark.parametrize("part", ["q", "state.q", "tuned.inverse_mass", "tuned.step_size", "generator", "stats.lp"])
@pytest.mark.parametrize("how", ["missing", "another shape"])
def test_a_damaged_file_is_refused(part: str, how: str, ended: Path, tmp_path: Path) -> None:
    tensors, about = read_tensors(ended)
    if how == "missing":
        del tensors[part]
    else:
        tensors[part] = tensors[part][:1] if tensors[part].dim() else tensors[part][None]
    file = tmp_path / "chains"
    write_tensors(file, tensors, about)
    with pytest.raises(ValueError, match="is damaged: it does not have the chains of this run"):
        drawn(checkpoint=file)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a file of tensors")
    with pytest.raises(ValueError, match="text"):
        drawn(checkpoint=tmp_path / "text")
    other_start().save(tmp_path / "fit")
    with pytest.raises(ValueError, match="checkpoint must be a file that pyrodrop.sample wrote, or a new one"):
        drawn(checkpoint=tmp_path / "fit")
