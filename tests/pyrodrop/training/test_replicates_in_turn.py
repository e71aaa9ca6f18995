"""Replicates that cannot be one stack train in turn; a checkpoint or a callback is of one stack and has all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.training.checkpoint import StateFile

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin() + 0.1 * X[:, 1:2]
BROKEN = torch.cat([Y[:-1], Y.new_full((1, 1), 1e30)])
SETTINGS: dict[str, Any] = {"batch_size": 8, "lr": 1e-2, "engine": "traced", "progress": False}


def network(width: int = 8) -> models.NetworkModel:
    return models.MLP([3, width, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))


def normalised() -> models.NetworkModel:
    """A network with running statistics."""
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    return models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(4.0))


def three(rate: float = 0.1) -> dict[str, Any]:
    """Three replicates with rates of their own, of which the second fails at some step."""
    torch.manual_seed(0)
    own = [normalised() for _ in range(3)]
    posteriors = [guides.BernoulliDropout(m, rate * (1 + r)) for r, m in enumerate(own)]
    return {"models": own, "guides": posteriors, "data": [Dataset(X, BROKEN if r == 1 else Y) for r in range(3)]}


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


def assert_same(one: pyrodrop.Replicates, two: pyrodrop.Replicates) -> None:
    assert one.failed == two.failed
    assert len(one) == len(two)
    for mine, other in zip(one, two, strict=True):
        assert torch.equal(values(mine), values(other))
        assert torch.equal(mine.history.nan_to_num(7.0), other.history.nan_to_num(7.0))


def interrupted(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> None:
    """Make the call, which ends after its first saving."""
    save = StateFile.save

    def last(self: Any) -> None:
        save(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "save", last)
        with pytest.raises(KeyboardInterrupt):
            call()


@pytest.mark.parametrize("engine", ["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_an_interrupted_run_goes_on_where_it_was(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = fit(three(), engine=engine)
    assert list(want.failed) == [1]
    state = pyrodrop.Checkpoint(tmp_path / "state", every=3)
    interrupted(monkeypatch, lambda: fit(three(), checkpoint=state, engine=engine))
    assert len(read_tensors(state.path)[0]["history"]) == 3
    got = fit(three(), checkpoint=state, engine=engine)
    assert got[0].settings["engine"] == engine
    assert_same(want, got)
    assert_same(fit(three(), steps=12, engine=engine), fit(three(), steps=12, checkpoint=state, engine=engine))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "state"
    fit(three(), steps=2, checkpoint=file)
    return file


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            lambda: {**three(), "data": [(X, Y), (X, BROKEN), (X, Y + 1)]},
            "of another run: replicate 2: data is absent there",
        ),
        (lambda: {name: value[:2] for name, value in three().items()}, "replicates is 3 there and 2 here"),
    ],
    ids=["the data of one", "fewer"],
)
def test_a_file_of_other_replicates_is_refused(parts: Any, words: str, saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(ValueError, match=words):
        fit(parts(), steps=3, checkpoint=saved)
    assert saved.read_bytes() == before


def test_a_file_without_a_part_of_the_state_is_refused(saved: Path, tmp_path: Path) -> None:
    tensors, about = read_tensors(saved)
    del tensors["buffer.replicates.alive"]
    write_tensors(tmp_path / "state", tensors, {k: v for k, v in about.items() if k != "format"})
    with pytest.raises(ValueError, match=r"buffer\.replicates\.alive of this run is missing"):
        fit(three(), steps=3, checkpoint=tmp_path / "state")


def test_files_of_one_fit_and_of_replicates_are_not_mixed_up(saved: Path, tmp_path: Path) -> None:
    parts = three()
    alone = (parts["models"][0], parts["guides"][0], parts["data"][0])
    with pytest.raises(ValueError, match="of another run.*replicates is 3 there and absent here"):
        pyrodrop.fit(*alone, steps=3, checkpoint=saved, seed=5, **SETTINGS)
    file = tmp_path / "alone"
    pyrodrop.fit(*alone, steps=2, checkpoint=file, seed=5, **SETTINGS)
    with pytest.raises(ValueError, match="replicates is absent there and 1 here"):
        fit({name: value[:1] for name, value in parts.items()}, checkpoint=file)


@pytest.mark.parametrize("options", [{"checkpoint": "state"}, {"after_epoch": lambda many, epoch: None}], ids=list)
@pytest.mark.parametrize("memory", [None, 3000.0])
def test_checkpoints_and_callbacks_of_several_stacks_are_refused(
    options: dict[str, Any], memory: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = two_widths() if memory is None else three()
    with pytest.raises(
        ValueError, match=rf"{next(iter(options))} is for replicates that train together.* as [23] stacks"
    ):
        fit(parts, memory=memory, **options)
    assert not list(tmp_path.iterdir())


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


def test_after_every_epoch_all_replicates_are_those_of_that_step() -> None:
    """An epoch has four steps; the callback draws random numbers, predicts, and sees evaluation mode."""
    seen: list[tuple[int, list[Tensor], dict[int, int]]] = []

    def after_epoch(many: pyrodrop.Replicates, epoch: int) -> None:
        torch.rand(3)
        assert isinstance(many, pyrodrop.Replicates)
        assert not any(module.training for one in many for module in one.model.modules())  # type: ignore[attr-defined]
        many.predict(X[:2], 5)
        seen.append((epoch, [values(one).clone() for one in many], dict(many.failed)))

    parts, state = three(), torch.get_rng_state()
    got = fit(parts, after_epoch=after_epoch)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(got, fit(three()))
    assert [epoch for epoch, *_ in seen] == [1, 2]
    for (_, parameters, failed), then in zip(seen, (fit(three(), steps=4), got), strict=True):
        assert failed == then.failed
        assert all(torch.equal(values(one), value) for one, value in zip(then, parameters, strict=True))


@pytest.mark.parametrize("change", ["parameter", "flag"])
def test_what_after_epoch_changes_in_a_replicate_is_refused(change: str) -> None:
    def after_epoch(many: pyrodrop.Replicates, epoch: int) -> None:
        guide: Any = many[2].guide
        parameter = next(guide.parameters())
        with torch.no_grad():
            parameter.mul_(2) if change == "parameter" else parameter.requires_grad_(False)

    with pytest.raises(RuntimeError, match="after_epoch has changed .*2: guide"):
        fit(three(), after_epoch=after_epoch)


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
    options: dict[str, Any] = {"steps": 5, "starts": "new", "batch_size": None}
    many = fit(parts, **options)
    assert [one.settings["replicates"] for one in many] == [2, 1, 2, 1]
    assert [len(one.guide.mean()["layers.0.weight"]) for one in many] == [4, 6, 4, 4]  # type: ignore[attr-defined]
    for r, one in enumerate(many):
        each = [parts[name][r] for name in ("models", "guides", "data")]
        alone = pyrodrop.fit(*each, **{**SETTINGS, **options, "seed": 5 + r, "engine": "pyro"})
        torch.testing.assert_close(values(one), values(alone), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one.history, alone.history, rtol=1e-4, atol=1e-3)
        assert one.settings["seed"] == 5 + r


def test_other_activations_are_refused() -> None:
    own = [network(4), models.MLP([3, 4, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))]
    with pytest.raises(ValueError, match="replicate 1 differs from replicate 0 in more than replicates may"):
        fit({"models": own, "guides": [guides.Point(m) for m in own], "data": (X, Y)}, steps=3)
