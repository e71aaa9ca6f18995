"""A checkpoint keeps the last finite state and knows its run: it refuses another one, and takes other settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.data import Dataset, Keywords
from pyrodrop.files import read_tensors, write_tensors

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
    """The state of every saved step is that of a run that ends there; the error names step, parameters and file."""
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
    assert "loc.inner.weight is not finite" in said
    last = step // every * every
    assert f"The file {file} has the state after {last} steps: the same call with another lr continues" in said
    tensors, _ = read_tensors(file)
    want = pyrodrop.fit(*root(), (X, X - 3), steps=last, engine=engine, **options)
    assert torch.equal(tensors["history"], want.history)
    assert all(
        torch.equal(tensors[f"parameter.loc.{name}"], value)
        for name, value in want.guide.mean().items()  # type: ignore[attr-defined]
    )


def test_a_gradient_that_is_not_finite_is_found_before_the_loss_shows_it(tmp_path: Path) -> None:
    """sqrt has an infinite gradient at 0, where its value is finite: 0 * inf is NaN in the last step of the fit."""
    model, guide = root(0.0, 0.0)
    with pytest.raises(FloatingPointError, match="loc.inner.weight stopped being finite at step 0"):
        pyrodrop.fit(model, guide, (X, Y), steps=1, engine="pyro", checkpoint=tmp_path / "state")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FloatingPointError, match="loc.inner.weight stopped being finite at step 0"):
        pyrodrop.Training(model, guide, (X, Y)).step()


def half(name: str) -> float:
    return 0.01 if name.startswith("loc") else 0.02


def falling(step: float) -> float:
    return 1 / (1 + step)


BASE: dict[str, Any] = {"lr": half, "lr_schedule": falling, "kl_weight": schedules.linear(9)}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # what changes in parts(...), in the options, and words of the message
    "activation": ({"activation": "tanh"}, {}, "model.activation is relu there and tanh here"),
    "activation by a function": ({"activation": lambda x: x.relu()}, {}, "there and activation is the function <lambda>"),
    "likelihood": ({"precision": 11.0}, {}, "model.likelihood.precision is 10.0 there and 11.0 here"),
    "drop rate": ({"drop_rate": 0.3}, {}, "guide.drop_rate is 0.2 there and 0.3 here"),
    "estimator": ({}, {"estimator": "local"}, "estimator is shared there and local here"),
    "seed": ({}, {"seed": 1}, "seed is 0 there and 1 here"),
    "data": ({}, {"data": (X, Y + 1)}, r"data is \w{32} \(20 rows\) there and \w{32} \(20 rows\) here"),
    "dtype of data": ({}, {"data": (X, Y.double())}, "data.y.dtype is float32 there and float64 here"),
    "optimizer": ({}, {"optimizer": torch.optim.SGD}, "optimizer is Adam there and SGD here"),
    "amsgrad": ({}, {"optimizer": lambda p: torch.optim.Adam(p, fused=True, amsgrad=True)}, "amsgrad is False there"),
    "standardisation": ({}, {"data": Dataset(X, Y).standardized()}, r"model.inputs.loc \(values\) is 0.0 there"),
}  # fmt: skip
TAKEN: dict[str, dict[str, Any]] = {
    "lr": {"lr": 0.01},
    "schedule": {"lr_schedule": schedules.cosine(10)},
    "kl_weight": {"kl_weight": 1.0},
    "engine": {"engine": "traced"},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run of 3 steps."""
    file = tmp_path_factory.mktemp("saved") / "state"
    run(file, steps=3)
    return file


def run(file: Path, steps: int, made: dict[str, Any] | None = None, **options: Any) -> pyrodrop.Fit:
    data = options.pop("data", (X, Y))
    return pyrodrop.fit(*parts(**(made or {})), data, steps=steps, checkpoint=file, **{**PYRO, **BASE, **options})


@pytest.mark.few(3)
@pytest.mark.parametrize("what", REFUSED)
def test_a_file_of_another_run_is_refused(what: str, saved: Path) -> None:
    made, options, words = REFUSED[what]
    before = saved.read_bytes()
    with pytest.raises(ValueError, match=f"of another run: .*{words}"):
        run(saved, 5, made, **options)
    assert saved.read_bytes() == before


@pytest.mark.few(3)
@pytest.mark.parametrize("what", TAKEN)
def test_other_settings_of_the_training_are_taken(what: str, saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(saved.read_bytes())
    more = run(file, 5, **TAKEN[what])
    assert torch.equal(more.history[:3], read_tensors(saved)[0]["history"])
    assert not torch.equal(more.guide.loc["layers.0.weight"], read_tensors(saved)[0]["parameter.loc.layers.0.weight"])  # type: ignore[attr-defined]


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "it is a folder"), (tmp_path / "none" / "state", "No such file or directory")):
        with pytest.raises(OSError, match=f"cannot write the file: {words}"):
            run(path, 1)


def test_a_checkpoint_that_was_changed_is_refused(saved: Path, tmp_path: Path) -> None:
    tensors, about = read_tensors(saved)
    about.pop("format")
    file = tmp_path / "state"

    def refused(words: str, tensors: dict[str, torch.Tensor]) -> None:
        write_tensors(file, tensors, about)
        with pytest.raises(ValueError, match=f"{file}.*{words}"):
            run(file, 4)

    for run_there in (torch.zeros(5), torch.zeros(3, dtype=torch.uint8)):
        refused("must have a description of its run", tensors | {"run": run_there})
    for damage in ({"batches.position": torch.tensor(-1)}, {"batches.order": torch.arange(len(X)) + 1}):
        refused("must have a place in an epoch of 20 rows", tensors | damage)
    refused("is damaged, .*position", {n: v for n, v in tensors.items() if n != "batches.position"})
    refused("history is missing, or has another shape", tensors | {"history": torch.zeros(3, 2)})
    refused("history is missing, or has another shape", tensors | {"history": torch.zeros(3, 3, dtype=torch.long)})
    refused("another version of PyTorch", tensors | {"random.cpu": torch.zeros(8, dtype=torch.uint8)})
    weight = "parameter.loc.layers.0.weight"
    refused("damaged: parameter.loc", tensors | {weight: tensors[weight].double()})
    save_file(tensors, file, metadata={"pyrodrop": '{"settings": {"seed": 0}, "position": 7}'})
    with pytest.raises(ValueError, match=f"{file} is damaged: its content has another checksum"):
        run(file, 4)
    for content in (b"", saved.read_bytes()[:-5], b"\0" * 100):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file} is no whole file"):
            run(file, 4)


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


def test_arguments_of_a_program_are_known_by_their_values() -> None:
    base: dict[str, Any] = {"x": X, "rows": np.arange(4), "more": {"k": 3, "f": torch.sin}, "net": nn.Linear(1, 1)}
    others: list[dict[str, Any]] = [
        {"x": X + 1}, {"rows": np.arange(4)[::-1]}, {"rows": np.arange(4.0)}, {"more": {"k": 4, "f": torch.sin}},
        {"more": {"k": 3, "f": torch.cos}}, {"net": nn.ReLU()}, {"z": 1},
    ]  # fmt: skip
    assert Keywords(base).words == Keywords({**base, "x": X.clone(), "net": nn.Linear(1, 1)}).words
    for other in others:
        assert Keywords(base).words != Keywords({**base, **other}).words
