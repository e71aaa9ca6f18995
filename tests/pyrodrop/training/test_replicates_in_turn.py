"""Replicates that cannot be one stack train in turn; checkpoints and callbacks have all of them."""

from __future__ import annotations

import functools
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
from pyrodrop.training.schedule import ScheduleFile

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin() + 0.1 * X[:, 1:2]
BROKEN = torch.cat([Y[:-1], Y.new_full((1, 1), 1e30)])
SETTINGS: dict[str, Any] = {"batch_size": 8, "lr": 1e-2, "engine": "traced", "progress": False}
IN_TURN = 5_000.0  # bytes: less than the five replicates of `five` need


def network(width: int = 8, activation: str = "relu") -> models.NetworkModel:
    return models.MLP([3, width, 1], activation, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))


def normalised() -> models.NetworkModel:
    """A network with running statistics."""
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    return models.from_module(net, priors.Gaussian(), likelihoods.Gaussian(4.0))


def five(rate: float = 0.1) -> dict[str, Any]:
    """Five replicates with rates of their own, of which the fourth fails at some step."""
    torch.manual_seed(0)
    own = [normalised() for _ in range(5)]
    posteriors = [guides.BernoulliDropout(m, rate * (1 + r)) for r, m in enumerate(own)]
    return {"models": own, "guides": posteriors, "data": [Dataset(X, BROKEN if r == 3 else Y) for r in range(5)]}


def three_widths() -> dict[str, Any]:
    torch.manual_seed(0)
    own = [network(width) for width in (4, 6, 4)]
    return {"models": own, "guides": [guides.BernoulliDropout(m, 0.2) for m in own], "data": (X, Y)}


def fit(parts: dict[str, Any], steps: int = 8, **options: Any) -> pyrodrop.Replicates:
    count = len(parts["models"])
    return pyrodrop.fit_replicates(**parts, count=count, steps=steps, **{**SETTINGS, "seed": 5, **options})


def values(one: pyrodrop.Fit) -> Tensor:
    """Parameters and buffers, in one tensor."""
    tensors = [*one.model.state_dict().values(), *one.guide.state_dict().values()]  # type: ignore[attr-defined]
    return torch.cat([value.detach().double().flatten() for value in tensors])


def assert_same_bits(one: pyrodrop.Replicates, two: pyrodrop.Replicates) -> None:
    assert one.failed == two.failed
    assert len(one) == len(two)
    for mine, other in zip(one, two, strict=True):
        assert torch.equal(values(mine), values(other))
        assert torch.equal(mine.history.nan_to_num(7.0), other.history.nan_to_num(7.0))


class Interrupt(Exception):
    pass


def interrupted(monkeypatch: pytest.MonkeyPatch, savings: int, call: Callable[[], Any]) -> None:
    """Make the call, which ends after so many savings."""
    save, count = ScheduleFile.save, 0

    def last(self: Any) -> None:
        nonlocal count
        save(self)
        count += 1
        if count == savings:
            raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(ScheduleFile, "save", last)
        with pytest.raises(Interrupt):
            call()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[pyrodrop.Replicates, Path]]:
    """Runs without interruption with their files; each is made once."""
    folder = tmp_path_factory.mktemp("whole")

    @functools.cache
    def run(parts: Any, memory: float | None) -> tuple[pyrodrop.Replicates, Path]:
        file = folder / f"{parts.__name__} {memory}"
        return fit(parts(), checkpoint=pyrodrop.Checkpoint(file, every=3), memory=memory), file

    return run


@pytest.mark.parametrize(
    ("parts", "memory", "savings"),
    [
        (five, IN_TURN, 5),
        pytest.param(five, None, 1, marks=pytest.mark.slow),
        pytest.param(five, IN_TURN, 1, marks=pytest.mark.slow),
        pytest.param(three_widths, None, 4, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_continues_to_the_same_bits(
    parts: Any, memory: float | None, savings: int, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a saving in the middle of any turn; the last files have the same bits too, generators and optimiser included."""
    want, end = whole(parts, memory)
    file = tmp_path / "interrupted"
    options = {"checkpoint": pyrodrop.Checkpoint(file, every=3)}
    interrupted(monkeypatch, savings, lambda: fit(parts(), memory=memory, **options))
    turns = read_tensors(file)[1]["turns"]
    steps = [len(value) for name, value in read_tensors(file)[0].items() if name.endswith("history")]
    assert (len(turns) > 1) == (memory is not None or parts is three_widths)
    assert 0 < sum(steps) < 8 * len(turns)
    got = fit(parts(), **options)
    assert_same_bits(want, got)
    (tensors, about), (mine, other) = read_tensors(end), read_tensors(file)
    assert about == other
    assert tensors.keys() == mine.keys()
    assert all(torch.equal(value.nan_to_num(7.0), mine[name].nan_to_num(7.0)) for name, value in tensors.items())


def test_a_checkpoint_does_not_change_the_result(whole: Any) -> None:
    want, _ = whole(five, IN_TURN)
    assert list(want.failed) == [3]
    assert want[0].settings["replicates"] < 5
    assert_same_bits(want, fit(five(), memory=IN_TURN))


@pytest.mark.slow
def test_more_steps_continue_a_run_that_ended(whole: Any, tmp_path: Path) -> None:
    file = tmp_path / "state"
    fit(five(), steps=5, checkpoint=file, memory=IN_TURN)
    assert_same_bits(whole(five, IN_TURN)[0], fit(five(), checkpoint=file))
    with pytest.raises(ValueError, match="has done 8 steps already; steps must be at least that, got 5"):
        fit(five(), steps=5, checkpoint=file)


@pytest.mark.slow
def test_compiled_steps_continue_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, state = (pyrodrop.Checkpoint(tmp_path / name, every=4) for name in ("whole", "state"))
    want = fit(five(), checkpoint=whole, engine="compiled")
    interrupted(monkeypatch, 1, lambda: fit(five(), checkpoint=state, engine="compiled"))
    got = fit(five(), checkpoint=state, engine="compiled")
    assert got[0].settings["engine"] == "compiled"
    assert_same_bits(want, got)


def test_a_turn_in_which_all_fail_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its losses are NaN from that step on, also where it was saved after it had failed."""
    parts = three_widths()
    parts["data"] = [(X, Y), (X, Y * 1e30), (X, Y)]
    want = fit(parts)
    assert want.failed == {1: 0}
    assert bool(want[1].history.isnan().all())
    assert bool(want[0].history.isfinite().all())
    parts = {name: [value[r] for r in (1, 0)] for name, value in parts.items()}  # the one that fails is the first
    file = tmp_path / "state"
    interrupted(monkeypatch, 1, lambda: fit(parts, checkpoint=pyrodrop.Checkpoint(file, every=2)))
    assert [turn["failed"] is None for turn in read_tensors(file)[1]["turns"]] == [False, True]
    got = fit(parts, checkpoint=file)
    assert got.failed == {0: 0}
    assert bool(got[0].history.isnan().all())
    alone = fit({name: value[1:] for name, value in parts.items()}, seed=6)
    assert torch.equal(values(got[1]), values(alone[0]))
    parts["data"] = [(X, Y * 1e30)] * 2
    with pytest.raises(FloatingPointError, match="All 1 replicates failed"):
        fit(parts)


CHANGES: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any], str]] = {
    "the rate of all": (lambda: five(0.11), {}, "guide.drop_rate is .* there and .* here.*replicate 1: guide.drop_rate"),
    "the data of one": (
        lambda: {**five(), "data": [(X, Y), (X, Y), (X, Y + 1), (X, BROKEN), (X, Y)]}, {},
        r"of another run: replicate 2: data is absent there and \w{32} \(32 rows\) here",
    ),
    "the seed": (five, {"seed": 6}, "seed is 5 there and 6 here"),
    "fewer": (lambda: {name: value[:4] for name, value in five().items()}, {}, "replicates is 5 there and 4 here"),
    "fewer, allowed": (
        lambda: {name: value[:4] for name, value in five().items()},
        {"allow": ("seed", "guide", "model", "data")}, "as many replicates as this run, 4; got 5",
    ),
    "lr": (five, {"lr": 0.1}, "lr is 0.01 there and 0.1 here"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "state"
    fit(five(), steps=2, checkpoint=file)
    return file


@pytest.mark.few(2)
@pytest.mark.parametrize("what", CHANGES)
def test_a_file_of_other_replicates_is_refused(what: str, saved: Path) -> None:
    parts, options, words = CHANGES[what]
    before = saved.read_bytes()
    others = {name: value for name, value in options.items() if name != "allow"}
    checkpoint = pyrodrop.Checkpoint(saved, allow=options.get("allow", ()))
    with pytest.raises(ValueError, match=words):
        fit(parts(), steps=3, checkpoint=checkpoint, **others)
    assert saved.read_bytes() == before


def test_files_of_one_fit_and_of_replicates_are_not_mixed_up(saved: Path, tmp_path: Path) -> None:
    parts = five()
    alone = (parts["models"][0], parts["guides"][0], parts["data"][0])
    with pytest.raises(ValueError, match="of another run.*replicates is 5 there and absent here"):
        pyrodrop.fit(*alone, steps=3, checkpoint=saved, seed=5, **SETTINGS)
    file = tmp_path / "alone"
    pyrodrop.fit(*alone, steps=2, checkpoint=file, seed=5, **SETTINGS)
    own = {name: value[:1] for name, value in parts.items()}
    with pytest.raises(ValueError, match="replicates is absent there and 1 here"):
        fit(own, checkpoint=file)
    with pytest.raises(ValueError, match="not one of replicates"):
        fit(own, checkpoint=pyrodrop.Checkpoint(file, allow=("model",)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda about: about.pop("turns"), "not one of replicates"),
        (lambda about: about["turns"][0].pop("failed"), "not one of replicates"),
        (lambda about: about["turns"][0].update(replicates=[0, 1, 2, 3, 3]), "as many replicates"),
        (lambda about: about["turns"][0].update(position=3), "a place in the epoch from 0 to 32 in steps of 8; got 3"),
    ],
)
def test_a_damaged_file_is_refused(change: Any, words: str, saved: Path, tmp_path: Path) -> None:
    tensors, about = read_tensors(saved)
    change(about)
    write_tensors(tmp_path / "state", tensors, {k: v for k, v in about.items() if k != "format"})
    with pytest.raises(ValueError, match=words):
        fit(five(), steps=3, checkpoint=tmp_path / "state")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("turn 0.random.generators"), "lacks random.generators"),
        (
            lambda t: t.update({"turn 0.random.generators": t["turn 0.random.generators"][:4]}),
            "no random states .* 5 repl",
        ),
        (lambda t: t.pop("turn 0.buffer.replicates.alive"), "buffer.replicates.alive of this run is missing"),
        (lambda t: t["turn 0.batches.order"][1, :2].fill_(3), "must be a permutation of 32"),
    ],
)
def test_a_file_without_a_part_of_the_state_is_refused(change: Any, words: str, saved: Path, tmp_path: Path) -> None:
    tensors, about = read_tensors(saved)
    change(tensors)
    write_tensors(tmp_path / "state", tensors, {k: v for k, v in about.items() if k != "format"})
    with pytest.raises(ValueError, match=words):
        fit(five(), steps=3, checkpoint=tmp_path / "state")


def test_a_file_that_trains_other_ones_together_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state"
    fit(three_widths(), steps=2, checkpoint=file)
    parts = three_widths()
    own = [network(width) for width in (4, 4, 6)]
    parts |= {"models": own, "guides": [guides.BernoulliDropout(m, 0.2) for m in own]}
    with pytest.raises(ValueError, match="trains some together whose shapes differ here"):
        fit(parts, checkpoint=pyrodrop.Checkpoint(file, allow=("model", "guide", "lr")))


@pytest.mark.parametrize("memory", [pytest.param(None, marks=pytest.mark.slow), IN_TURN])
def test_after_every_epoch_all_replicates_are_those_of_that_step(memory: float | None, whole: Any) -> None:
    """An epoch has four steps; the callback draws random numbers, predicts, and sees evaluation mode."""
    seen: list[tuple[int, list[Tensor], list[Tensor], dict[int, int]]] = []

    def after_epoch(many: pyrodrop.Replicates, epoch: int) -> None:
        torch.rand(3)
        assert isinstance(many, pyrodrop.Replicates)
        assert not any(module.training for one in many for module in one.model.modules())  # type: ignore[attr-defined]
        many.predict(X[:2], 5)
        seen.append((epoch, [values(one).clone() for one in many], [one.history for one in many], dict(many.failed)))

    parts, state = five(), torch.get_rng_state()
    got = fit(parts, memory=memory, after_epoch=after_epoch)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_bits(got, whole(five, memory)[0])
    assert [epoch for epoch, *_ in seen] == [1, 2]
    for (_, parameters, histories, failed), then in zip(seen, (fit(five(), steps=4, memory=memory), got), strict=True):
        assert failed == then.failed
        for one, value, history in zip(then, parameters, histories, strict=True):
            assert torch.equal(values(one), value)
            assert torch.equal(one.history.nan_to_num(7.0), history.nan_to_num(7.0))


def test_after_epoch_and_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that continues is called at the end of the epoch where it was interrupted, and at the later ones."""
    file, epochs = tmp_path / "state", list[int]()

    def call(**options: Any) -> pyrodrop.Replicates:
        def after_epoch(_: pyrodrop.Replicates, epoch: int) -> None:
            epochs.append(epoch)

        saving = pyrodrop.Checkpoint(file, every=4)
        return fit(three_widths(), steps=12, checkpoint=saving, after_epoch=after_epoch, **options)

    interrupted(monkeypatch, 3, call)  # the first turn has made 8 steps, the second 4
    assert epochs == [1]
    got = call()
    assert epochs == [1, 2, 3]
    assert_same_bits(got, fit(three_widths(), steps=12))
    call()
    assert epochs == [1, 2, 3, 3]


@pytest.mark.slow
def test_after_epoch_needs_the_same_steps_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state"
    interrupted(monkeypatch, 3, lambda: fit(three_widths(), steps=12, checkpoint=pyrodrop.Checkpoint(file, every=4)))
    with pytest.raises(ValueError, match="those in the checkpoint have made from 0 to 12 steps"):
        fit(three_widths(), steps=12, checkpoint=file, after_epoch=lambda many, epoch: None)
    parts = {**three_widths(), "data": [(X, Y), (X[:20], Y[:20]), (X, Y)]}
    with pytest.raises(ValueError, match="must have equally many steps; got data with 3, 4 minibatches"):
        fit(parts, after_epoch=lambda many, epoch: None)


@pytest.mark.parametrize("starts", ["new", pytest.param("model", marks=pytest.mark.slow)])
def test_networks_of_different_widths_and_data_are_the_fits_alone(starts: Any) -> None:
    """A grid over widths is one call; results are in the order of the arguments."""
    parts = three_widths()
    parts["data"] = [(X, Y), (X[:20], Y[:20]), (X, Y)]
    many = fit(parts, starts=starts)
    assert [len(one.guide.mean()["layers.0.weight"]) for one in many] == [4, 6, 4]  # type: ignore[attr-defined]
    for r, one in enumerate(many):
        own = (parts["models"][r], parts["guides"][r], parts["data"][r])
        alone = pyrodrop.fit(*own, steps=8, starts=starts, **{**SETTINGS, "seed": 5 + r, "engine": "pyro"})
        torch.testing.assert_close(values(one), values(alone), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one.history, alone.history, rtol=1e-4, atol=1e-3)
        assert one.settings["seed"] == 5 + r


@pytest.mark.slow
def test_priors_of_other_kinds_are_other_groups() -> None:
    own = [
        models.MLP([3, 4, 1], prior=p, likelihood=likelihoods.Gaussian(4.0))
        for p in (priors.Laplace(), priors.Gaussian())
    ]
    many = fit({"models": own, "guides": [guides.MeanField(m) for m in own], "data": (X, Y)}, steps=3)
    for r, one in enumerate(many):
        alone = pyrodrop.fit(
            own[r], guides.MeanField(own[r]), (X, Y), steps=3, **{**SETTINGS, "seed": 5 + r, "engine": "pyro"}
        )
        torch.testing.assert_close(one.history, alone.history)


def test_other_activations_are_refused() -> None:
    own = [network(4), network(4, "tanh")]
    with pytest.raises(ValueError, match="replicate 1 differs from replicate 0 in more than replicates may"):
        fit({"models": own, "guides": [guides.Point(m) for m in own], "data": (X, Y)}, steps=3)
