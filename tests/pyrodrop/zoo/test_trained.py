"""Trained posteriors: they predict what they predicted, need no data, and nothing in a file is trusted."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import cli, guides, likelihoods, models, priors, zoo
from pyrodrop.analysis.zoo import references, write
from pyrodrop.data import Dataset, Split
from pyrodrop.data import line as line_of
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.zoo import trained
from pyrodrop.zoo.entry import Entry
from pyrodrop.zoo.exact import NAMED
from pyrodrop.zoo.sources import SOURCES

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")
SHIPPED = sorted(
    str(path.relative_to(trained.SHIPPED).with_suffix("")) for path in trained.SHIPPED.rglob("*.safetensors")
)
LINES = Split("lines", line_of(20), line_of(50, 1), "", "", "made here")
NOISY = functools.partial(guides.SparseDropout, log_variance=1.6)  # prunes most weights


def waves(rows: int = 31, seed: int = 0) -> Dataset:
    noise = torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))
    x = torch.linspace(1950, 1960, rows)[:, None].repeat(1, 3) + torch.arange(3)
    return Dataset(x, 300 + 5 * torch.sin(x[:, :2]) + noise).standardized()


def regressor(data: Dataset, width: int = 8) -> Any:
    spread = float(data.y.std())  # as the CO2 entries use it
    return models.MLP([3, width, 2], "tanh", prior=priors.Gaussian(1 / len(data) ** 0.5),
                      likelihood=likelihoods.Gaussian(spread**-2, learned=True), seed=None)  # fmt: skip


def classifier(data: Dataset) -> Any:
    return models.MLP([3, 40, 4], prior=priors.LogUniform(), likelihood=likelihoods.Categorical(), seed=None)


def entry(model: Any = regressor, guide: Any = guides.MeanField, **settings: Any) -> Entry:
    settings = {"steps": 250, "lr": 1e-2, "progress": False, "engine": "traced", "device": "cpu", **settings}
    return Entry("own/waves", "waves", "here", "line-1000", model, guide, lambda data: settings, {})


def kept(path: Path, of: Entry, sets: list[Dataset], **result: Any) -> tuple[list[Any], Any]:
    """Fits, and what a file makes of them."""
    fits = [of.fit(data, seed=3 + r) for r, data in enumerate(sets)]
    write.save(path, of, fits, sets, sets[0].x, {"scores": {"rmse": 1.0}, **result})
    return fits, trained.restore(of, path, "cpu")


def difference(loaded: Any, path: Path) -> float:
    """The largest difference of predictions at the points of a file, relative to the largest number stored."""
    points = {name: read_tensors(path)[0][f"points.{name}"] for name in ("x", "mean", "sd")}
    now = write.predicted(loaded, points.pop("x"))
    apart, largest = (
        [float(f(name).abs().max()) for name in points] for f in (lambda n: now[n] - points[n], points.get)
    )
    return max(apart) / max(largest)


# The files of the package


@pytest.mark.few(3)
@pytest.mark.unshifted
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_posterior_predicts_as_when_it_was_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRODROP_DATA", "/nowhere")
    loaded = zoo.load(name, device="cpu")
    assert difference(loaded, trained.SHIPPED / f"{name}.safetensors") <= 1e-6
    assert isinstance(loaded, pyrodrop.Sampled) == (name.startswith("exact/") and "." not in name)
    told = (loaded[0] if isinstance(loaded, pyrodrop.Replicates) else loaded).settings["zoo"]
    assert told["name"] == name
    if name in zoo.ENTRIES:
        assert told["result"]["scores"] == pytest.approx(references.scores(name), rel=1e-6)  # seven digits
        assert set(zoo.ENTRIES[name].published) <= set(told["result"]["scores"])
        count = len(loaded) if isinstance(loaded, pyrodrop.Replicates) else 1
        assert count == told["result"]["splits"]


def test_the_shipped_files_are_small_and_cover_what_is_promised() -> None:
    sizes = {name: (trained.SHIPPED / f"{name}.safetensors").stat().st_size for name in SHIPPED}
    assert sum(sizes.values()) < 26e6
    assert max(sizes.values()) < 2e6
    wanted = {name for name in zoo.ENTRIES if name.startswith(("uci/", "co2/", "toys/"))}
    assert wanted | NAMED.keys() <= set(SHIPPED)


@pytest.mark.unshifted
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["uci/yacht", "co2/mc-dropout-relu", "uci/boston"])
def test_stored_scores_are_those_of_the_data(name: str, data_folder: Path) -> None:
    """By our own arithmetic on the draws of every split, under the seeds of the run."""
    splits, loaded = SOURCES[zoo.ENTRIES[name].data].load(), zoo.load(name, device="cpu")
    fits = list(loaded) if isinstance(loaded, pyrodrop.Replicates) else [loaded]
    errors = []
    for split, fit in zip(splits, fits, strict=True):
        assert fit.fingerprint == split.train.fingerprint  # type: ignore[union-attr]
        f = fit.predict(split.test.x, zoo.ENTRIES[name].draws, seed=fit.settings["seed"]).f
        errors.append(float((f.double().mean(0) - split.test.y).square().mean().sqrt()))
    assert sum(errors) / len(errors) == pytest.approx(references.scores(name)["rmse"], rel=1e-4)


# Round trips


def test_a_fit_comes_back_without_its_data(tmp_path: Path) -> None:
    [fit], back = kept(tmp_path / "f", entry(), [waves()], date="2026-11-24")
    x = waves(9, 5).x
    assert torch.equal(back.predict(x, 7, seed=2).f, fit.predict(x, 7, seed=2).f)
    assert torch.equal(back.predict(x, 7, seed=2).sd, fit.predict(x, 7, seed=2).sd)
    assert back.elbo(5, waves()).value == fit.elbo(5).value
    assert back.settings["zoo"]["result"]["date"] == "2026-11-24"
    assert len(back.history) == 100
    assert back.history.mean(0).tolist() == pytest.approx(fit.history.mean(0).tolist(), rel=0.02)
    assert "250 steps" in str(back)


def test_pruned_weights_are_left_out(tmp_path: Path) -> None:
    """What comes back is the pruned posterior, and the file has no more than its weights."""
    data = Dataset(waves().x - 1955, torch.arange(31) % 4)
    of = entry(classifier, functools.partial(guides.SparseDropout, log_variance=-1.0), steps=400, lr=3e-2)
    [fit], back = kept(tmp_path / "f", of, [data])
    assert 0.1 < fit.guide.sparsity()["layers.0.weight"] < 0.9
    assert torch.equal(back.predict(data.x, 7).f, fit.pruned().predict(data.x, 7).f)
    assert not torch.equal(back.predict(data.x, 7).f, fit.predict(data.x, 7).f)
    assert difference(back, tmp_path / "f") == 0
    wide = entry(
        functools.partial(regressor, width=3000), functools.partial(guides.SparseDropout, log_variance=9.0), steps=2
    )
    kept(tmp_path / "all", entry(functools.partial(regressor, width=3000), steps=2), [waves()])
    kept(tmp_path / "none", wide, [waves()])
    assert (tmp_path / "none").stat().st_size < 0.4 * (tmp_path / "all").stat().st_size


def test_replicates_are_saved_and_loaded(tmp_path: Path) -> None:
    made = [entry().build(waves(seed=r), r) for r in range(2)]
    many = pyrodrop.fit_replicates(*map(list, zip(*made, strict=True)), waves(), count=2, steps=3, progress=False)
    many.failed[1] = 2
    many.save(tmp_path / "m")
    new = [entry().build(waves(), 7 + r) for r in range(2)]
    back = pyrodrop.Replicates.load(tmp_path / "m", *map(list, zip(*new, strict=True)), device="cpu")
    assert back.failed == {1: 2}
    assert all(
        torch.equal(a.predict(waves().x, 3).f, b.predict(waves().x, 3).f) for a, b in zip(many, back, strict=True)
    )
    before = new[0][1].state_dict()["loc.layers.0.weight_unconstrained"].clone()
    wrong = entry(functools.partial(regressor, width=9)).build(waves())
    for pairs, message in (
        (new[:1], "has 2 replicates, each of which needs a model and a guide; got 1"),
        ([new[0], wrong], "replicate 1,"),
    ):
        with pytest.raises(ValueError, match=message):
            pyrodrop.Replicates.load(tmp_path / "m", *map(list, zip(*pairs, strict=True)))
    assert torch.equal(new[0][1].state_dict()["loc.layers.0.weight_unconstrained"], before)
    with pytest.raises(ValueError, match=r"is no file of Fit.save: it is one of 'replicates'"):
        pyrodrop.Fit.load(tmp_path / "m", *new[0])


# Refusals


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zoo") / "small.safetensors"
    kept(path, entry(functools.partial(regressor, width=600), NOISY, steps=2), [waves()])
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, a: a.pop("zoo"), "an object as zoo"),
        (lambda t, a: a["zoo"].update(name="uci/yacht"), "is of uci/yacht; it must be of own/waves"),
        (lambda t, a: a["zoo"]["result"].update(scores={"rmse": "1"}), "a finite number as zoo.result.scores.rmse"),
        (lambda t, a: a["zoo"]["data"][0].update(rows=2**31), "with 1 to 268435456 elements in 2147483648"),
        (lambda t, a: a["zoo"]["data"][0]["x"].update(shape=[2**20]), r"x of the shape \[1048576\] and points"),
        (lambda t, a: a["zoo"].update(data=a["zoo"]["data"] * 2), "describes the data of 2 fits"),
        (lambda t, a: a.update(kind="fit"), "is no file of Replicates.save"),
        (lambda t, a: t.pop("data.0.targets.scale"), "needs loc and scale of targets"),
        (lambda t, a: t.pop("points.x"), "lacks the points x, mean and sd"),
        (lambda t, a: places(t).fill_(10**6), "as many places as values, all within"),
        (lambda t, a: t.pop(next(n for n in t if n.endswith(":values"))), "as many places as values, all within"),
        (lambda t, a: [t.pop(n) for n in [*t] if n.endswith((":places", ":values"))], "as many places as values"),
        (lambda t, a: t["data.0.targets.scale"].fill_(-1), "positive"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(change: Any, message: str, small: Path, tmp_path: Path) -> None:
    tensors, about = read_tensors(small)
    change(tensors, about)
    write_tensors(tmp_path / "f", tensors, about)
    of = entry(functools.partial(regressor, width=600), guides.SparseDropout)
    with pytest.raises(ValueError, match=message):
        trained.restore(of, tmp_path / "f")


def places(tensors: dict[str, Any]) -> Any:
    return next(value for name, value in tensors.items() if name.endswith(":places") and len(value))


def test_inputs_of_several_tensors_are_refused(tmp_path: Path) -> None:
    pair = Dataset((torch.zeros(3, 1), torch.zeros(3, 1)), torch.zeros(3, 1))
    with pytest.raises(TypeError, match="one tensor; got several"):
        write.save(tmp_path / "f", entry(), [], [pair], torch.zeros(3, 1), {"scores": {}})


# Where files are


def test_the_folder_of_the_user_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained.file("uci/yacht") == trained.SHIPPED / "uci/yacht.safetensors"
    (tmp_path / "uci").mkdir()
    own = tmp_path / "uci" / "yacht.safetensors"
    own.write_bytes((trained.SHIPPED / "uci/boston.safetensors").read_bytes())
    monkeypatch.setenv("PYRODROP_ZOO", str(tmp_path))
    assert trained.file("uci/yacht") == own
    with pytest.raises(ValueError, match="is of uci/boston; it must be of uci/yacht"):
        zoo.load("uci/yacht")


# The command line


@pytest.mark.unshifted
def test_a_run_is_saved_loaded_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SOURCES, "small", SOURCES["line-1000"].__class__("lines", lambda: [LINES]))
    of = Entry("own/line", "a line", "here", "small", line, guides.MeanField, lambda data: {"steps": 5}, {})
    monkeypatch.setitem(zoo.ENTRIES, "own/line", of)
    folder, out = tmp_path / "mine", tmp_path / "run"
    assert cli.main(["run", "own/line", "--save", str(folder), "--out", str(out), "--quiet", "--device", "cpu"]) == 0
    assert f"PYRODROP_ZOO={folder}" in "".join(capsys.readouterr().out.split())
    monkeypatch.setenv("PYRODROP_ZOO", str(folder))
    loaded: Any = zoo.load("own/line")
    fit = pyrodrop.Fit.load(out / "fit.safetensors", *of.build(LINES.train))
    x = LINES.test.x[:5]
    assert torch.equal(loaded.predict(x, 4).f, fit.predict(x, 4).f)
    scores = json.loads((out / "results.json").read_text())["models"]["own/line"]
    assert loaded.settings["zoo"]["result"]["scores"] == scores
    assert cli.main(["show", "own/line"]) == 0
    assert "zoo.load(NAME): " in capsys.readouterr().out


def line(data: Dataset) -> Any:
    return models.MLP([1, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0), seed=None)


# 16 bits


def wide(data: Dataset) -> Any:
    return models.MLP([3, 4000, 2], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0), seed=None)


def wide_entry(guide: Any) -> Entry:
    settings = {"steps": 5, "progress": False, "engine": "traced", "device": "cpu"}
    return Entry("own/wide", "wide", "here", "line-1000", wide, guide, lambda data: settings, {})


@pytest.mark.parametrize("guide", [guides.MeanField, guides.BernoulliDropout])
def test_a_rounded_fit_takes_half_the_size_and_comes_back_as_it_is(guide: Any, tmp_path: Path) -> None:
    data = Dataset(torch.randn(9, 3), torch.randn(9, 2))
    of = wide_entry(guide)
    fit = of.fit(data)
    before = {name: value.clone() for name, value in fit.guide.state_dict().items()}
    rounded = write.rounded(fit)
    sizes = {}
    for name, made in (("whole", fit), ("half", rounded)):
        path = write.save(tmp_path / name, of, [made], [data], data.x, {"scores": {}})
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
    of = wide_entry(guides.MeanField)
    fit = of.fit(Dataset(torch.randn(9, 3), torch.randn(9, 2)))
    with torch.no_grad():
        for value in fit.guide.state_dict().values():
            value[0] = 1e5
    rounded = write.rounded(fit)
    assert all(torch.equal(value, fit.guide.state_dict()[n]) for n, value in rounded.guide.state_dict().items())
