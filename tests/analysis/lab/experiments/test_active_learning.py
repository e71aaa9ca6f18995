"""Active learning: which rows are asked for, what is computed of the scores, and the job at the size of a test."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import entropy, sem
from torch import Tensor

from pyrodrop.analysis.lab.experiments.active_learning import digits, experiment, naval
from pyrodrop.analysis.lab.experiments.active_learning.loop import RANDOM, Task, learn
from pyrodrop.data import Dataset, Split

CPU = torch.device("cpu")
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
    random, asked = rows = experiment.rows_of(f"mnist, {digits.TRAINED}", CURVE)
    assert (random["labels"], random["reached"], asked["labels"], asked["reached"]) == (40, 1, 30, 2)
    assert (asked["accuracy"], asked["accuracy se"]) == pytest.approx((92, sem([89, 95])))
    over = 100 * (np.mean(CURVE["scores"]["BALD"], 0) - np.mean(CURVE["scores"][RANDOM], 0))  # type: ignore[index]
    assert (asked["over random"], asked["over random se"]) == pytest.approx((over.mean(), sem(over)))
    assert (asked["ink"], asked["ink se"]) == pytest.approx((3.5 / 3, sem([1.2, 3.4 / 3])))
    table = experiment.table_of(rows, "filters")
    assert table[1][:3] == [digits.TRAINED, RANDOM, "≥ 40 (1 of 2 reach it)"]
    assert table[1][4] == "-"
    assert table[2][2:4] == ["30 ± 0", f"92.00 ± {sem([89, 95]):.2f}"]


def test_a_row_of_naval_is_that_of_scipy() -> None:
    scores = {RANDOM: [[9, 9, 9], [1.0, 2.0, 4.0]], "variance": [[9, 9, 9], [1.5, 2.0, 6.0]]}
    rows = experiment.rows_of("naval, mean field", {"labels": [5, 6], "scores": scores})
    for row, values in zip(rows, ([1, 2, 4], [1.5, 2, 6], [0.5, 0, 2]), strict=True):
        assert (row["rmse"], row["rmse se"]) == pytest.approx((np.mean(values), sem(values)))
    assert experiment.table_of(rows, "naval")[1][3] == f"+0.833 ± {sem([0.5, 0, 2]):.3f}"
