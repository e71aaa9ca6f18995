"""A checkpoint keeps the last finite state, knows its run, and refuses every other one."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.training.record import PARTS

X = torch.linspace(-1, 1, 20)[:, None]
Y = X**2
PYRO: dict[str, Any] = {"engine": "pyro", "batch_size": 7}


def parts(activation: Any = "relu", prior: Any = None, precision: float = 10.0, **guide: Any) -> tuple[Any, Any]:
    torch.manual_seed(3)
    model = models.MLP(
        [1, 4, 1], activation, prior=prior or priors.Gaussian(), likelihood=likelihoods.Gaussian(precision)
    )
    return model, guides.BernoulliDropout(model, **{"drop_rate": 0.2, **guide})


class Root(nn.Module):
    """The square root of a linear map, which is NaN below 0."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(self.inner(x))


def root(shift: float = 1.2, slope: float = 0.1) -> tuple[Any, Any]:
    """A fit whose targets drive the argument of the root below 0 at some step."""
    torch.manual_seed(0)
    net = Root()
    with torch.no_grad():
        net.inner.bias.fill_(shift)
        net.inner.weight.fill_(slope)
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
    return model, guides.Point(model)


def first_nan(steps: int, **options: Any) -> int:
    """The first step whose loss is not finite, by fits of that many steps and no checks in between."""
    training = pyrodrop.Training(*root(), (X, X - 3), engine="pyro", **options)
    losses = []
    for _ in range(min(steps, 99)):
        losses.append(float(training.step().nll))
    return next(n for n, loss in enumerate(losses) if not torch.isfinite(torch.tensor(loss)))


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["pyro", "traced", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("every", [1, 4])
def test_the_last_finite_state_stays(engine: Any, every: int, tmp_path: Path) -> None:
    """The state of every saved step is that of a run that ends there; the error names step, site, rows and file."""
    options: dict[str, Any] = {"lr": 0.05, "batch_size": 7}
    step = first_nan(99, **options)
    assert step > 8
    file = tmp_path / "state"
    with pytest.raises(FloatingPointError) as caught:
        pyrodrop.fit(
            *root(), (X, X - 3), steps=2000, engine=engine, checkpoint=pyrodrop.Checkpoint(file, every=every), **options
        )
    said = str(caught.value)
    assert f"stopped being finite at step {step}: nll nan" in said
    assert f"What broke first, in step {step}: the term of the site y in the loss, nan" in said
    order, position = _order(step, **options)
    assert f"rows of the data: {', '.join(map(str, order[position : position + 7].tolist()[:5]))}" in said
    last = step // every * every
    assert file.exists() == (last > 0)
    if last > 0:
        assert f"The file {file} has the state after {last} steps: continue from there" in said
        tensors, _ = read_tensors(file)
        want = pyrodrop.fit(*root(), (X, X - 3), steps=last, engine=engine, **options)
        assert torch.equal(tensors["history"], want.history)
        assert all(
            torch.equal(tensors[f"parameter.loc.{name}"], value)
            for name, value in want.guide.mean().items()  # type: ignore[attr-defined]
        )


def _order(step: int, **options: Any) -> tuple[torch.Tensor, int]:
    """The order of the rows at a step, and the place in it, from the state before the step."""
    training = pyrodrop.Training(*root(), (X, X - 3), engine="pyro", **options)
    training.advance(step)
    state = training.state()
    order, position = state["batches.order"], int(state["batches.position"])
    if position < len(order):
        return order, position
    torch.set_rng_state(state["random.cpu"])
    return torch.randperm(20), 0


def test_a_gradient_that_is_not_finite_is_found_before_the_loss_shows_it(tmp_path: Path) -> None:
    """sqrt has an infinite gradient at 0, where its value is finite: 0 * inf is NaN in the last step of the fit."""
    model, guide = root(0.0, 0.0)
    with pytest.raises(FloatingPointError) as caught:
        pyrodrop.fit(model, guide, (X, Y), steps=1, engine="pyro", checkpoint=tmp_path / "state")
    said = str(caught.value)
    assert "stopped being finite at step 0." in said
    assert "What broke first, in step 0: the gradient of the parameter loc.inner.weight, in 1 of 1 entries, " in said
    assert "from the site y. Its minibatch is all 20 rows of the data." in said
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FloatingPointError, match="loc.inner.weight stopped being finite at step 0"):
        pyrodrop.Training(model, guide, (X, Y)).step()


def test_a_nan_in_the_last_step_is_found_without_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss before the step is finite, and no further step shows what the parameters have become."""
    made = parts()
    step = torch.optim.SGD.step

    def broken(self: Any, *args: Any) -> None:
        step(self, *args)
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 4:
            self.param_groups[0]["params"][0].data[0, 0] = float("inf")

    monkeypatch.setattr(torch.optim.SGD, "step", broken)
    with pytest.raises(FloatingPointError, match=r"loc.layers.0.weight stopped being finite at step 3\."):
        pyrodrop.fit(*made, (X, Y), steps=4, optimizer=torch.optim.SGD, **PYRO)


def test_the_first_step_is_saved_too(tmp_path: Path) -> None:
    for state in (tmp_path / "one", pyrodrop.Checkpoint(tmp_path / "two", every=1)):
        pyrodrop.fit(*parts(), (X, Y), steps=1, checkpoint=state, **PYRO)
    assert [len(read_tensors(tmp_path / name)[0]["history"]) for name in ("one", "two")] == [1, 1]


def test_a_training_does_not_hand_out_a_state_that_is_not_finite() -> None:
    training = pyrodrop.Training(*root(), (X, X - 3), engine="traced", batch_size=7, lr=0.05)
    training.advance(5)
    good = training.state()
    with pytest.raises(FloatingPointError, match="What broke first, in step"):
        training.advance(100)
    with pytest.raises(FloatingPointError, match="What broke first, in step"):
        training.state()
    training.load_state(good)
    assert training.steps_done == 5
    assert torch.equal(training.state()["history"], good["history"])


def test_finding_what_broke_leaves_the_training_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    training = pyrodrop.Training(*root(), (X, X - 3), engine="traced", batch_size=7, lr=0.05)
    training.advance(60)
    run = training._run
    before = {name: value.clone() for name, value in run.whole_state.tensors().items()}
    with training._in_context():
        words = run.loop.failure.words()  # type: ignore[union-attr]
    assert "What broke first" in words
    now = run.whole_state.tensors()
    assert all(torch.equal(value.nan_to_num(7.0), now[name].nan_to_num(7.0)) for name, value in before.items())
    monkeypatch.setattr("pyrodrop.training.failure.available", lambda device: 0.0)
    monkeypatch.setattr("pyrodrop.training.failure._SMALL", 0)
    short = pyrodrop.Training(*root(), (X, X - 3), engine="traced", batch_size=7, lr=0.05)
    with pytest.raises(FloatingPointError, match="cannot be told: a copy of the state would not have fitted"):
        short.advance(100)


def test_replicates_say_which_of_them_failed_first() -> None:
    with pytest.raises(
        FloatingPointError, match=r"All 2 replicates failed, replicate \d first, on a minibatch of 7 of 20"
    ):
        pyrodrop.fit_replicates(*root(), (X, X - 3), count=2, steps=200, lr=0.05, batch_size=7, engine="traced")


def half(name: str) -> float:
    return 0.01 if name.startswith("loc") else 0.02


def falling(step: float) -> float:
    return 1 / (1 + step)


BASE: dict[str, Any] = {"lr": half, "lr_schedule": falling, "kl_weight": lambda epoch: min(1.0, 0.1 + epoch)}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    # what changes in parts(...), in the options; the part of the run, and words of the message
    "activation": ({"activation": "tanh"}, {}, "model", "activation is torch.*relu there and torch.*tanh here"),
    "activation by a function": ({"activation": lambda x: x.relu()}, {}, "model", "activation is"),
    "prior": ({"prior": priors.Gaussian(2.0)}, {}, "model", "scale is 1.0 there and 2.0 here"),
    "likelihood": ({"precision": 11.0}, {}, "model", "model.likelihood.precision is 10.0 there and 11.0 here"),
    "theta": ({"theta": 0.1}, {}, "guide", "guide.theta is 0.0 there and 0.1 here"),
    "drop rate": ({"drop_rate": 0.3}, {}, "guide", r"guide.drop_rate is float64 \[2\] .* there and float64 \[2\] .* here"),
    "lr": ({}, {"lr": lambda name: 0.01}, "lr", "lr is absent there and 0.01 here"),
    "lr as a number": ({}, {"lr": 0.01}, "lr", "lr is absent there and 0.01 here"),
    "schedule": ({}, {"lr_schedule": lambda step: 1 / (1 + step) ** 2}, "lr_schedule", "at step 1 is 0.5 there"),
    "no schedule": ({}, {"lr_schedule": None}, "lr_schedule", "lr_schedule is absent there and None here"),
    "own schedule": ({}, {"lr_schedule": schedules.cosine(10)}, "lr_schedule", r"cosine\(steps=10\) here"),
    "kl_weight": ({}, {"kl_weight": lambda epoch: min(1.0, 0.2 + epoch)}, "kl_weight", "at epoch 0 is 0.1 there and 0.2"),
    "optimizer": ({}, {"optimizer": torch.optim.SGD}, "optimizer", r"optimizer is .*Adam there and .*SGD here"),
    "its defaults": (
        {}, {"optimizer": functools.partial(torch.optim.Adam, fused=True, eps=1e-6)}, "optimizer",
        "optimizer.eps is 1e-08 there and 1e-06 here",
    ),
    "estimator": ({}, {"estimator": "local"}, "estimator", "estimator is 'shared' there and 'local' here"),
    "likelihood_power": ({}, {"likelihood_power": 0.5}, "likelihood_power", "likelihood_power is 1.0 there and 0.5 here"),
    "batch_size": ({}, {"batch_size": 5}, "batch_size", "batch_size is 7 there and 5 here"),
    "engine": ({}, {"engine": "auto"}, "engine", "engine is 'pyro' there and 'auto' here"),
    "precision": ({}, {"precision": "bfloat16"}, "precision", "precision is None there and 'bfloat16' here"),
    "seed": ({}, {"seed": 1}, "seed", "seed is 0 there and 1 here"),
    "starts": ({}, {"starts": "new"}, "starts", "starts is 'model' there and 'new' here"),
    "data": ({}, {"data": (X, Y + 1)}, "data", r"data is \w{32} \(20 rows\) there and \w{32} \(20 rows\) here"),
    "dtype of data": ({}, {"data": (X, Y.double())}, "data", "data.y.dtype is float32 there and float64 here"),
    "standardisation": ({}, {"data": Dataset(X, Y).standardized()}, "data", "data.inputs.loc is 0.0 there"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run of 3 steps."""
    file = tmp_path_factory.mktemp("saved") / "state"
    run(file, steps=3)
    return file


def run(file: Path, steps: int, made: dict[str, Any] | None = None, allow: Any = (), **options: Any) -> pyrodrop.Fit:
    data, file = options.pop("data", (X, Y)), pyrodrop.Checkpoint(file, allow=allow)
    return pyrodrop.fit(*parts(**(made or {})), data, steps=steps, checkpoint=file, **{**PYRO, **BASE, **options})


@pytest.mark.few(2)
@pytest.mark.parametrize("what", CHANGES)
def test_a_difference_is_named_and_can_be_allowed(what: str, saved: Path, tmp_path: Path) -> None:
    made, options, part, words = CHANGES[what]
    options = {"steps": 3, **options}
    with pytest.raises(ValueError, match=f"of another run: .*{words}"):
        run(saved, made=made, **options)
    with pytest.raises(ValueError, match="of another run"):
        run(saved, made=made, **options, allow=[name for name in PARTS if name != part])
    (tmp_path / "state").write_bytes(saved.read_bytes())
    run(tmp_path / "state", made=made, **{**options, "steps": 4}, allow=(part,))


def test_equal_functions_of_another_form_are_the_same_run(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(saved.read_bytes())
    same: dict[str, Callable[[Any], float]] = {
        "lr": lambda name: {"l": 0.01}.get(name[0], 0.02) if "loc" in name else 0.02,
        "lr_schedule": lambda step: (1 + step) ** -1,
        "kl_weight": BASE["kl_weight"],
    }
    assert len(run(file, 6, **same).history) == 6, "also with more steps"


def test_with_other_data_an_epoch_begins_and_the_parameters_stay(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(saved.read_bytes())
    kept = read_tensors(saved)[0]["parameter.loc.layers.0.weight"]
    more = run(file, 3, data=(X[:12], Y[:12]), allow=("data",))
    assert torch.equal(more.guide.loc["layers.0.weight"], kept)  # type: ignore[attr-defined]
    run(file, 6, data=(X[:12], Y[:12]), allow=("data",))
    assert len(run(file, 9, data=(X[:12], Y[:12])).history) == 9


def test_a_smaller_rate_goes_on_from_the_last_finite_state(tmp_path: Path) -> None:
    """What the message of a failure proposes."""
    file = tmp_path / "state"
    every = pyrodrop.Checkpoint(file, every=4)
    with pytest.raises(FloatingPointError, match=r"checkpoint=pyrodrop.Checkpoint\(..., allow=\('lr',\)\)"):
        pyrodrop.fit(*root(), (X, X - 3), steps=200, lr=0.05, engine="pyro", checkpoint=every)
    done, other = len(read_tensors(file)[0]["history"]), pyrodrop.Checkpoint(file, allow=("lr",))
    fit = pyrodrop.fit(*root(), (X, X - 3), steps=done + 4, lr=1e-5, engine="pyro", checkpoint=other)
    assert len(fit.history) == done + 4


def test_the_names_that_are_allowed_are_checked(tmp_path: Path) -> None:
    for allow, error, words in (
        (("learning_rate",), ValueError, "no part of a run, in allow, is called 'learning_rate'"),
        ("lr", TypeError, "allow must be a tuple of names"),
        ((1,), TypeError, "allow must be a tuple of names"),
    ):
        with pytest.raises(error, match=words):
            pyrodrop.Checkpoint(tmp_path / "state", allow=allow)


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "it is a folder"), (tmp_path / "none" / "state", "No such file or directory")):
        with pytest.raises(OSError, match=f"cannot write the file: {words}"):
            run(path, 1)


def test_a_checkpoint_that_was_changed_or_is_of_an_older_version_is_refused(saved: Path, tmp_path: Path) -> None:
    tensors, about = read_tensors(saved)
    about.pop("format")
    file = tmp_path / "state"

    def refused(words: str, tensors: dict[str, torch.Tensor] = tensors, **change: Any) -> None:
        write_tensors(file, tensors, {**about, **change})
        with pytest.raises(ValueError, match=f"{file}.*{words}"):
            run(file, 4)

    refused("does not say what its run is made of", run=None)
    refused("does not say what its run is made of", run={"model": 3})
    refused("lacks the place in the epoch", position="7")
    refused("in steps of 7; got 3", position=3)
    refused("three numbers for every step", tensors | {"history": torch.zeros(3, 2)})
    refused("three numbers for every step", tensors | {"history": torch.zeros(3, 3, dtype=torch.long)})
    refused("no random state", tensors | {"random.cpu": torch.zeros(8, dtype=torch.uint8)})
    refused("of another optimizer", {n: v for n, v in tensors.items() if not n.endswith("exp_avg")})
    refused("of another optimizer", tensors | {"optimizer.99.step": torch.tensor(3.0)})
    refused("of another optimizer", tensors | {"optimizer.0.exp_avg": tensors["optimizer.0.exp_avg"].double()})
    weight = "parameter.loc.layers.0.weight"
    refused("another model or guide: parameter.loc", tensors | {weight: tensors[weight].double()})
    refused("a permutation of 20", tensors | {"batches.order": tensors["batches.order"].float()})
    save_file(tensors, file, metadata={"pyrodrop": '{"settings": {"seed": 0}, "position": 7}'})
    with pytest.raises(ValueError, match="does not say what its run is made of, as it was written by another version"):
        run(file, 4)
    for content in (b"", saved.read_bytes()[:-5], b"\0" * 100):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file} is no whole file"):
            run(file, 4)


def test_a_state_of_a_training_knows_its_run(tmp_path: Path) -> None:
    training = pyrodrop.Training(*parts(), (X, Y), **PYRO)
    training.advance(3)
    state = training.state()
    other = pyrodrop.Training(*parts(), (X, Y), lr=0.1, **PYRO)
    with pytest.raises(
        ValueError, match=r"the state is of another run: lr is 0.001 there and 0.1 here.*allow=\('lr',\)"
    ):
        other.load_state(state)
    other.load_state(state, allow=("lr",))
    assert other.steps_done == 3
    for run in (torch.zeros(5), torch.zeros(3, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="does not say what its run is made of"):
            other.load_state({**state, "run": run})
    with pytest.raises(ValueError, match="lacks run"):
        other.load_state({name: value for name, value in state.items() if name != "run"})


def test_members_that_no_step_has_drawn_yet_go_on(tmp_path: Path) -> None:
    """Their parameters have no state of Adam; all of them are drawn later."""
    torch.manual_seed(0)
    model = models.MLP([2, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    guide = guides.Ensemble(model, guides.Point, members=6)
    x = torch.randn(30, 2)

    def run(steps: int, **options: Any) -> dict[str, torch.Tensor]:
        made = pyrodrop.fit(model, guide, (x, x.sum(1, keepdim=True)), steps=steps, seed=0, progress=False, **options)
        return {name: value.clone() for name, value in made.guide.state_dict().items()}

    first = run(2, checkpoint=tmp_path / "c")
    again = run(2, checkpoint=tmp_path / "c")
    assert all(torch.equal(first[name], again[name]) for name in first)
    whole, parts = run(60), run(60, checkpoint=tmp_path / "c")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_engine_of_an_interrupted_run_is_that_of_the_whole_run(tmp_path: Path) -> None:
    """auto chooses by the number of all steps: 400 are worth a trace, the last 50 of them are too."""
    state = pyrodrop.Checkpoint(tmp_path / "state", every=50)
    options: dict[str, Any] = {"checkpoint": state, "engine": "auto", "batch_size": 7}

    def stop(fit: pyrodrop.Fit, epoch: int) -> None:
        if len(fit.history) >= 350:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pyrodrop.fit(*parts(), (X, Y), steps=400, after_epoch=stop, **options)
    rest = pyrodrop.fit(*parts(), (X, Y), steps=400, **options)
    assert rest.settings["engine"] == "traced"


@pytest.mark.parametrize("name", ["fit", "replicates"])
def test_files_of_earlier_versions_are_resumed(name: str, tmp_path: Path) -> None:
    """Their states are those after 7 steps: of one fit, and of two whose networks have other widths."""

    def parts(width: int) -> tuple[Any, Any]:
        gaussian = likelihoods.Gaussian(4.0)
        model = models.MLP([1, width, 1], prior=priors.Gaussian(), likelihood=gaussian, seed=width)
        return model, guides.BernoulliDropout(model, 0.3)

    def train(**options: Any) -> list[pyrodrop.Fit]:
        given = {"steps": 12, "batch_size": 5, "lr": 1e-2, "engine": "traced", "seed": 3, "device": "cpu", **options}
        if name == "fit":
            return [pyrodrop.fit(*parts(3), (x, x**2), **given)]
        each = [list(some) for some in zip(parts(3), parts(2), strict=True)]
        return list(pyrodrop.fit_replicates(*each, (x, x**2), count=2, **given))

    x = torch.arange(-6.0, 6.0)[:, None] / 4
    file = Path(shutil.copy(Path(__file__).parent / "checkpoints" / f"{name}.safetensors", tmp_path))
    stored = read_tensors(file)[0]
    histories = [stored["history"]] if name == "fit" else [stored[f"turn {r}.history"][:, 0] for r in range(2)]
    for resumed, whole, history in zip(train(checkpoint=file), train(), histories, strict=True):
        assert len(history) == 7
        assert torch.equal(resumed.history[:7], history)
        torch.testing.assert_close(resumed.history, whole.history, rtol=1e-4, atol=1e-4)
