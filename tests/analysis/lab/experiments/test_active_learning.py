"""Active learning: which rows are asked for, what is computed of the scores, and the job at the size of a test."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import entropy, sem
from torch import Tensor

from pyrodrop import cli
from pyrodrop.analysis.lab.experiments.active_learning import digits, experiment, naval
from pyrodrop.analysis.lab.experiments.active_learning.loop import RANDOM, Task, learn
from pyrodrop.data import Dataset, Split

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[4]
ROWS = 40


class Largest(Task):
    """What is "trained" is the labelled rows, and the best rows are those of largest x."""

    acquisitions = (RANDOM, "largest")
    size, candidates = 4, ROWS
    trained: list[list[list[float]]]
    breaks_at = math.inf

    def data(self, seed: int) -> tuple[Dataset, Dataset]:
        x = torch.arange(ROWS)[torch.randperm(ROWS, generator=torch.Generator().manual_seed(50 + seed))].float()[
            :, None
        ]
        return Dataset(x, x), Dataset(x[:2], x[:2])

    def start(self, seed: int) -> Tensor:
        return torch.tensor([seed, seed + 10, seed + 20])

    def train(self, parts: Sequence[Dataset], seeds: Sequence[int]) -> Sequence[Any]:
        if len(type(self).trained) == self.breaks_at:
            raise KeyboardInterrupt
        type(self).trained.append([part.x[:, 0].tolist() for part in parts])
        return parts

    def score(self, run: Dataset, test: Dataset, seed: int) -> float:
        return float(run.x.sum())

    def best(self, run: Dataset, acquisition: str, x: Tensor, seed: int) -> Tensor:
        return x[:, 0].topk(self.size).indices


def learned(folder: Path, breaks_at: float = math.inf) -> tuple[list[list[list[float]]], dict[str, Any]]:
    """The values of the labelled rows by round and replicate, and what `learn` returns."""
    Largest.trained, Largest.breaks_at = [], breaks_at
    folder.mkdir(exist_ok=True)
    found = learn(Largest("largest", 1, CPU), "largest", labels=21, seeds=[3, 4], folder=folder)
    return Largest.trained, found


def test_every_row_is_asked_once_and_the_best_first(tmp_path: Path) -> None:
    """Against a search by hand: the largest values without a label; random ones are new, and differ between seeds."""
    rounds, found = learned(tmp_path / "whole")
    assert found["labels"] == [3, 7, 11, 15, 19]
    for replicate, (name, seed) in enumerate([(RANDOM, 3), (RANDOM, 4), ("largest", 3), ("largest", 4)]):
        values = Largest("largest", 1, CPU).data(seed)[0].x[:, 0]
        known = values[[seed, seed + 10, seed + 20]].tolist()
        for number, each in enumerate(rounds):
            labelled = each[replicate]
            assert len(set(labelled)) == len(labelled) == 3 + 4 * number
            assert labelled[: len(known)] == known
            if name == "largest" and number:
                left = sorted(set(range(ROWS)) - set(known), reverse=True)
                assert labelled[len(known) :] == left[:4]
            if number:
                assert values[found["asked"][name][number - 1][seed - 3]].tolist() == labelled[len(known) :]
            known = labelled
            assert found["scores"][name][number][seed - 3] == sum(labelled)
    asked = torch.tensor(json.loads((tmp_path / "whole" / "rounds" / "largest-3.json").read_text())["asked"])
    first, second = (set(rows.tolist()) for rows in asked.reshape(4, 4)[:2])
    assert len(first & second) < 3


def test_a_run_that_was_broken_off_ends_as_one_that_was_not(tmp_path: Path) -> None:
    rounds, whole = learned(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        learned(tmp_path / "parts", breaks_at=2)
    rest, found = learned(tmp_path / "parts")
    assert (rest, found) == (rounds[2:], whole)
    assert learned(tmp_path / "parts") == ([], whole)


def test_only_some_unlabelled_rows_are_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many candidates as are asked for, all ways to choose ask for the same rows. Every round has other ones."""
    monkeypatch.setattr(Largest, "candidates", 4)
    rounds, _ = learned(tmp_path / "four")
    assert all(set(each[0]) == set(each[2]) and set(each[1]) == set(each[3]) for each in rounds)
    seen: list[set[float]] = []

    def best(self: Task, run: Dataset, acquisition: str, x: Tensor, seed: int) -> Tensor:
        if seed == 3:
            seen.append(set(x[:, 0].tolist()))
        return x[:, 0].topk(self.size).indices

    monkeypatch.setattr(Largest, "best", best)
    monkeypatch.setattr(Largest, "candidates", 10)
    learned(tmp_path / "ten")
    assert [len(each) for each in seen] == [10] * 5
    new = [len(after - before) for before, after in itertools.pairwise(seen)]
    assert sum(new) > 4 * len(new) + 2  # 4 in the place of the labelled ones, if the others stayed


# The two tasks


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> Iterator[Split]:
    """Random images in the place of MNIST."""
    generator = torch.Generator().manual_seed(0)
    parts = [Dataset(torch.rand(n, 1, 28, 28, generator=generator), torch.arange(n) // 3 % 10) for n in (120, 40)]
    split = Split("random", *parts, "", "", "")
    monkeypatch.setattr(digits, "mnist", lambda **_: split)
    cached = (digits._data, digits._images, digits._filtered)
    for function in cached:
        function.cache_clear()
    yield split
    for function in cached:
        function.cache_clear()


@pytest.fixture
def ships(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Split]]:
    """Two random splits with a constant column in the place of naval's."""
    generator = torch.Generator().manual_seed(1)
    splits = []
    for _ in range(2):
        x = torch.randn(60, 4, generator=generator) * torch.tensor([1.0, 5.0, 0.0, 0.1])
        y = 3 + 0.2 * x[:, :1]
        splits.append(Split("naval", Dataset(x[:50], y[:50]), Dataset(x[50:], y[50:]), "", "", ""))
    monkeypatch.setattr(naval, "uci", lambda _: splits)
    naval._data.cache_clear()
    yield splits
    naval._data.cache_clear()


def test_the_features_are_largest_values_of_filtered_squares(images: Split) -> None:
    """One image by loops; filters are centred and have norm 1."""
    filters = np.asarray(torch.randn(16, 1, 5, 5, generator=torch.Generator().manual_seed(0)))[:, 0]
    filters = np.stack([(f - f.mean()) / np.linalg.norm(f - f.mean()) for f in filters])
    image = np.pad(images.train.x[0, 0].numpy(), 2)
    wanted = np.zeros((16, 4, 4))
    for k, row, column in np.ndindex(16, 28, 28):
        value = (filters[k] * image[row : row + 5, column : column + 5]).sum()
        wanted[k, row // 7, column // 7] = max(wanted[k, row // 7, column // 7], value)
    np.testing.assert_allclose(digits.features(images.train.x[:2])[0], wanted.ravel(), rtol=1e-4, atol=1e-5)


def test_frozen_filters_are_those_that_are_trained_later(images: Split) -> None:
    """h of one image by sums over its squares, at the scale 1; the dense layers are those of the whole network."""
    image, layers = digits._images()[0].x[0], digits._layers(0)
    h = image.numpy()
    for convolution in (layers[0], layers[3]):
        squares = np.lib.stride_tricks.sliding_window_view(h, (5, 5), axis=(1, 2))
        weight, bias = (np.asarray(part.detach()) for part in (convolution.weight, convolution.bias))
        h = np.maximum(np.einsum("chwij,kcij->khw", squares, weight) + bias[:, None, None], 0)
        h = h.reshape(len(h), h.shape[1] // 2, 2, -1, 2).max((2, 4))
    frozen = digits.Frozen(digits.FROZEN, 1, CPU)
    x = frozen.data(0)[0].x
    assert float(x.square().mean()) == pytest.approx(1)
    np.testing.assert_allclose(x[0] / x[0].norm(), h.ravel() / np.linalg.norm(h), atol=1e-5)
    for equal, of_frozen in zip(digits.Equal(digits.EQUAL, 1, CPU).data(0), frozen.data(0), strict=True):
        assert torch.allclose(equal.x.square().mean(1), torch.ones(len(equal)))
        assert torch.allclose(F.cosine_similarity(equal.x, of_frozen.x), torch.ones(len(equal)))
    dense = frozen.network(0)
    sites = dense.weight_sites()
    assert list(sites) == ["7.weight", "9.weight"]
    torch.testing.assert_close(dense.outputs(sites, torch.tensor(h.reshape(1, -1))), layers(image[None]))
    for task in (frozen, digits.Trained(digits.TRAINED, 1, CPU)):
        network: Any = task.network(0)
        assert task.guide(network).rates() == {"7.weight": 0.25, "9.weight": 0.5}
        assert {float(prior.scale) for prior in network.priors.values()} == {10}
        assert torch.equal(task.data(0)[1].y, images.test.y[::3])


def test_ink_is_the_mean_pixel(images: Split) -> None:
    pixels = images.train.x.numpy().reshape(120, -1)
    assert digits.ink([[[3, 5]], [[7, 7]]]) == [
        [pytest.approx(pixels[[3, 5]].mean() / pixels.mean(), rel=1e-5)],
        [pytest.approx(pixels[7].mean() / pixels.mean(), rel=1e-5)],
    ]


def test_two_rows_of_every_digit_are_labelled_first(images: Split) -> None:
    starts = [digits.Digits("ensemble", 1, CPU).start(seed) for seed in (0, 0, 1)]
    assert images.train.y[starts[0]].bincount().tolist() == [2] * 10
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "posterior"),
    [(digits.Digits, "MC dropout"), (digits.Digits, "ensemble"), (digits.Trained, digits.TRAINED)],
)
def test_digits_are_asked_by_entropy_and_bald(kind: type[digits.Digits], posterior: str, images: Split) -> None:
    """Against SciPy's entropies; an ensemble's draws are its members, each of other initial weights."""
    task = kind(posterior, 2, CPU)
    train, test = task.data(0)
    run = task.train([train.rows(task.start(seed)) for seed in (0, 1)], [0, 1])[1]
    rows = train.x[:30]
    f = run.predict(rows, 5 if posterior == "ensemble" else digits.DRAWS, seed=1).f
    p = f.double().softmax(-1).numpy()
    assert len({tuple(draw.flatten().tolist()) for draw in f}) == len(f)
    total = entropy(p.mean(0), axis=-1)
    scores = {"entropy": total, "BALD": total - entropy(p, axis=-1).mean(0)}
    both = np.einsum("snc,smd->nmcd", p, p) / len(p)
    scores["EPIG"] = (total[:, None] + total - entropy(both.reshape(30, 30, -1), axis=-1)).mean(1)  # all are targets
    for name, values in scores.items():
        assert set(task.best(run, name, rows, 1).tolist()) == set(np.argsort(values)[-10:].tolist())
    assert len(set(task.best(run, "BatchBALD", rows, 1).tolist())) == 10
    draws = 5 if posterior == "ensemble" else digits.TEST_DRAWS
    right = run.predict(test.x, draws, seed=1).f.softmax(-1).mean(0).argmax(-1) == test.y
    assert task.score(run, test, 1) == pytest.approx(float(right.double().mean()))


@pytest.mark.few(1)
@pytest.mark.parametrize("posterior", naval.POSTERIORS)
def test_naval_is_asked_by_variance(posterior: str, ships: list[Split]) -> None:
    """The largest variance, of the draws or of the Gaussian process far out; the RMSE is over the sd of y."""
    task = naval.Naval(posterior, 3, CPU)
    data = [task.data(seed) for seed in (2, 3)]
    for (train, test), split in zip(data, ships, strict=True):
        assert torch.equal(train.x, split.train.x[:, [0, 1, 3]])
        assert torch.equal(test.y, split.test.y)
    run = task.train([train.rows(task.start(seed)) for seed, (train, _) in zip((2, 3), data, strict=True)], [2, 3])[1]
    train, test = data[1]
    sd = train.y.double().std(correction=0)
    x = torch.cat([train.x[:9], 100 * train.x[9:10]])
    if posterior == naval.PROCESS:
        assert task.best(run, "variance", x, 3).tolist() == [9]
        mean = run.predict(test.x, 1, joint=False).mean
    else:
        f = run.predict(x, naval.DRAWS, seed=3).f[..., 0]
        assert task.best(run, "variance", x, 3).tolist() == [int(f.var(0).argmax())]
        mean = run.predict(test.x, naval.DRAWS, seed=3).f.mean(0)
    rmse = (mean - test.y).double().square().mean().sqrt()
    assert task.score(run, test, 3) == pytest.approx(float(rmse / sd), rel=1e-5)


def test_the_network_of_naval_has_the_papers_prior(ships: list[Split]) -> None:
    train = naval._data(0)[0]
    net = naval.network(train, 0)
    scales = {name: float(prior.scale) for name, prior in net.priors.items()}  # type: ignore[attr-defined]
    assert scales == pytest.approx(
        {"layers.0.weight": (2 / 3) ** 0.5, "layers.0.bias": 1, "layers.1.weight": (2 / 50) ** 0.5, "layers.1.bias": 1}
    )
    noise = float(net.likelihood.precision) ** -0.5  # type: ignore[attr-defined]
    assert noise == pytest.approx(0.01 * float(train.y.double().std(correction=0)), rel=1e-4)


# The numbers of the tables

CURVE = {
    "labels": [20, 30, 40],
    "scores": {
        RANDOM: [[0.5, 0.6], [0.7, 0.7], [0.9, 0.8]],
        "BALD": [[0.5, 0.6], [0.9, 0.91], [0.89, 0.95]],
    },
    "ink": {RANDOM: [[1.0, 1.0], [1.0, 1.1], [1.0, 0.9]], "BALD": [[1.2, 1.3], [1.1, 1.1], [1.3, 1.0]]},
}


def test_rows_of_mnist_are_those_of_scipy() -> None:
    """Labels are those of the first crossing; the difference is of means over rounds, paired by seed."""
    rows = experiment.digit_rows(CURVE)
    assert (rows[RANDOM]["labels"], rows[RANDOM]["labels_se"], rows[RANDOM]["reached"]) == (40, None, 1)
    assert (rows["BALD"]["labels"], rows["BALD"]["labels_se"], rows["BALD"]["reached"]) == (30, 0, 2)
    assert experiment.labels_shown(rows[RANDOM]) == "≥ 40 (1 of 2 reach it)"
    assert experiment.labels_shown(rows["BALD"]) == "30 ± 0"
    assert (rows["BALD"]["accuracy"], rows["BALD"]["accuracy_se"]) == pytest.approx((0.92, sem([0.89, 0.95])))
    over = np.mean(CURVE["scores"]["BALD"], 0) - np.mean(CURVE["scores"][RANDOM], 0)  # type: ignore[index]
    assert (rows["BALD"]["over random"], rows["BALD"]["over random_se"]) == pytest.approx((over.mean(), sem(over)))
    assert rows[RANDOM]["over BALD"] == pytest.approx(-over.mean())
    assert (rows["BALD"]["ink"], rows["BALD"]["ink_se"]) == pytest.approx((3.5 / 3, sem([1.2, 3.4 / 3])))


def test_a_row_of_naval_is_that_of_scipy() -> None:
    curve = {"scores": {RANDOM: [[9, 9, 9], [1.0, 2.0, 4.0]], "variance": [[9, 9, 9], [1.5, 2.0, 6.0]]}}
    row = experiment.naval_row(curve)
    assert (row[RANDOM], row["random_se"]) == pytest.approx((7 / 3, sem([1, 2, 4])))
    assert (row["variance"], row["variance_se"]) == pytest.approx((9.5 / 3, sem([1.5, 2, 6])))
    assert (row["difference"], row["difference_se"]) == pytest.approx((2.5 / 3, sem([0.5, 0, 2])))


@pytest.mark.parametrize(
    ("difference", "held"), [(0.3, [True, True, False]), (-0.3, [False, False, True]), (0.1, [False] * 3)]
)
def test_statements_are_asked_of_the_numbers(difference: float, held: list[bool]) -> None:
    ships = {name: {"difference": difference, "difference_se": 0.1} for name in naval.POSTERIORS}
    gains = {"over random": 0.3, "over random_se": 0.1, "over BALD": 0.1, "over BALD_se": 0.1}
    dropout = dict.fromkeys(("entropy", "BALD", "BatchBALD", "EPIG"), gains)
    found = experiment.statements(dict.fromkeys(("MC dropout", *experiment.FILTERS), dropout), ships)
    assert list(found.values()) == [True, True, False, *[True] * 6, False, False, *held]


def test_the_page_has_the_stored_numbers() -> None:
    """Every row of its tables, in order, and nothing else."""
    content = json.loads((ROOT / "analysis" / "lab" / "results" / "active-learning.json").read_text(encoding="utf-8"))
    for name, curve in content["curves"].items():
        assert content["mnist"][name.removeprefix("mnist, ")] == experiment.digit_rows(curve)
    frozen, equal, trained = (content["mnist"][name] for name in experiment.FILTERS)
    for score in ("BALD", "BatchBALD"):  # two thirds
        assert trained[score]["labels"] / trained[RANDOM]["labels"] == pytest.approx(2 / 3, abs=0.03)
    for score in ("BALD", "entropy"):  # half of the loss
        assert equal[score]["over random"] / frozen[score]["over random"] == pytest.approx(0.5, abs=0.05)
    scores = content["curves"][f"mnist, {digits.TRAINED}"]["scores"]
    means = {name: np.mean(rows, 1)[6:15] for name, rows in scores.items()}  # 80 to 160 labels
    assert all((values > means[RANDOM]).all() for name, values in means.items() if name != RANDOM)
    page = (ROOT / "docs" / "ask-for-a-label.md").read_text(encoding="utf-8").partition("## Measured")[2]
    shown = [line for line in page.splitlines() if re.match(r"\| (?!posterior|---)", line)]
    tables = experiment.tables_of(content, content["settings"])
    assert shown == [
        f"| {' | '.join(map(str, cells))} |"
        for table in tables
        for cells in zip(*(column.cells for column in table.columns), strict=True)
    ]


# The job


def words(folder: Path, **options: int) -> list[str]:
    sizes = {"labels": 30, "seeds": 2, "steps": 2, "naval-labels": 6, "naval-seeds": 2, "naval-steps": 2, "jobs": 1}
    sizes |= {"trained-labels": 20, "trained-seeds": 2, "trained-steps": 2}
    numbers = [word for name, value in (sizes | options).items() for word in (f"--{name}", str(value))]
    return ["run", "active-learning", *numbers, "--device", "cpu", "--out", str(folder), "--quiet"]


@pytest.mark.usefixtures("images")
def test_the_job_of_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every task gets its settings."""
    asked = {}

    def learned(task: Task, name: str, **settings: Any) -> dict[str, Any]:
        asked[name] = (type(task), task.posterior, task.steps, settings["labels"], list(settings["seeds"]))
        scores = {each: [[0.1 * len(each), 0.3], [0.2, 0.95]] for each in task.acquisitions}
        asked_rows = {each: [[list(range(10))] * 2] * 2 for each in task.acquisitions}
        return {"labels": [20, 30], "scores": scores, "asked": asked_rows}

    monkeypatch.setattr(experiment, "learn", learned)
    call = words(tmp_path, **{"naval-seeds": 3, "naval-steps": 7, "trained-steps": 5, "seed": 4})
    assert cli.main(call) == 0
    wanted = {f"mnist-{name}": (digits.Digits, name, 2, 30, [4, 5]) for name in digits.POSTERIORS}
    wanted |= {f"naval-{name}": (naval.Naval, name, 7, 6, [4, 5, 6]) for name in naval.POSTERIORS}
    wanted |= {f"mnist-{name}": (kind, name, 5, 20, [4, 5]) for name, kind in experiment.FILTERS.items()}
    assert asked == {name.replace(", ", "-").replace(" ", "-"): about for name, about in wanted.items()}
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["mnist"]["ensemble"]["BALD"]["reached"] == 1
    assert all((tmp_path / f"{name}.png").stat().st_size > 1000 for name in ("figure", "filters"))
    assert "≥ 30 (1 of 2 reach it)" in capsys.readouterr().out


@pytest.mark.more
def test_a_seed_repeats_the_job(tmp_path: Path, images: Split, ships: list[Split]) -> None:
    """Bit for bit, also from the file of an earlier round; another seed gives other curves."""
    assert cli.main(words(tmp_path / "job")) == 0
    curves = json.loads((tmp_path / "job" / "results.json").read_text())["curves"]
    options = {"labels": 30, "seeds": 2, "steps": 2, "naval_labels": 6, "naval_seeds": 2, "naval_steps": 2}
    options |= {"trained_labels": 20, "trained_seeds": 2, "trained_steps": 2}
    for name, last in (
        ("mnist, ensemble", "mnist-ensemble-30"),
        (f"mnist, {digits.FROZEN}", "mnist-MC-dropout-frozen-filters-20"),
        ("naval, mean field", "naval-mean-field-6"),
    ):

        def again(folder: Path, seed: int, name: str = name) -> dict[str, Any]:
            folder.mkdir(exist_ok=True)
            (folder / "run.json").touch()  # a folder of this machine
            about = {**options, "seed": seed}
            return experiment._curves(name, options=about, folder=folder, device=CPU, progress=False)

        assert again(tmp_path / "a", 0) == {
            key: curves[name][key] for key in ("labels", "scores", "ink") if key in curves[name]
        }
        (tmp_path / "a" / "rounds" / f"{last}.json").unlink()
        assert again(tmp_path / "a", 0) == again(tmp_path / "job", 0)
        assert again(tmp_path / "b", 5) != again(tmp_path / "job", 0)


def test_a_loss_that_is_not_finite_ends_the_job(images: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pyrodrop.analysis.lab.experiments.active_learning.loop.fit_replicates",
        lambda *_, **__: SimpleNamespace(failed={1: 3}),
    )
    task = digits.Digits("mean field", 1, CPU)
    with pytest.raises(FloatingPointError, match=r"mean field stopped being finite in \[1\]"):
        task.train([task.data(0)[0].first(20)], [0])
