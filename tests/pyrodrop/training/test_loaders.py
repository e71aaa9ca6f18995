"""Training on data that are read a minibatch at a time, against tensors in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler
from torch.utils.data import Dataset as TorchDataset

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.checks import EngineName

ROWS, SIZE, STEPS = 70, 16, 23
GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(ROWS, 3, generator=GENERATOR)
Y = X.sin().sum(1, keepdim=True) + 0.1 * torch.randn(ROWS, 1, generator=GENERATOR)


class Items(TorchDataset[Any]):
    """Rows by their numbers, which may be read with noise."""

    def __init__(self, noise: float = 0.0, named: bool = False) -> None:
        self.noise, self.named = noise, named

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        x = X[row] + self.noise * torch.rand(()) if self.noise else X[row]
        return {"inputs": x, "labels": Y[row]} if self.named else (x, Y[row])


def pair(kind: Callable[..., Any] = guides.MeanField, **settings: Any) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = models.MLP([3, 5, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    return model, kind(model, **settings)


def fit(data: Any, *, kind: Callable[..., Any] = guides.MeanField, **settings: Any) -> Any:
    return pyrodrop.fit(*pair(kind), data, **{"steps": STEPS, "lr": 0.01, "engine": "traced", **settings})


def loader(data: Any = None, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Items() if data is None else data, SIZE, **{"shuffle": True, **settings})


def whole(minibatches: Any) -> DataLoader[Any]:
    """A loader of items that are minibatches."""
    return DataLoader(minibatches, batch_size=None)


def test_the_likelihood_of_a_minibatch_counts_for_all_rows() -> None:
    """Against the density by SciPy's formula: N / B sum of (1/2) tau (y - f)^2 + (1/2) ln(2 pi / tau)."""
    model, guide = pair(guides.Point)
    weights = guide.mean()
    f = torch.func.functional_call(model.network, dict(weights), (X[:SIZE],))
    nll = (2.0 * (Y[:SIZE] - f) ** 2 + 0.5 * np.log(2 * np.pi / 4.0)).sum() * 1000 / SIZE
    run = pyrodrop.fit(model, guide, whole([(X[:SIZE], Y[:SIZE])]), num_data=1000, steps=1, engine="pyro")
    torch.testing.assert_close(run.history[0, 0], nll.detach(), rtol=1e-5, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_repeats_and_changes_no_state(workers: int) -> None:
    """Noise of torch in the data set; the caller's state is unchanged."""
    model, guide = pair()
    before = torch.get_rng_state()
    data = [loader(Items(noise=0.3), num_workers=workers) for _ in range(2)]
    runs = [pyrodrop.fit(model, guide, one, steps=STEPS, engine="traced") for one in data]
    assert torch.equal(runs[0].history, runs[1].history)
    assert torch.equal(torch.get_rng_state(), before)
    first = fit(loader(Items(noise=0.3)), steps=1).history[0]
    assert not torch.equal(first, fit(loader(Items(noise=0.3)), steps=1, seed=1).history[0])


def test_epochs_visit_every_row_once_in_new_orders() -> None:
    seen: list[list[float]] = []

    class Watched(Items):
        def __getitem__(self, row: int) -> Any:
            seen[-1].append(row)
            return super().__getitem__(row)

    def after(_: Any, epochs: int) -> None:
        seen.append([])

    seen.append([])
    fit(loader(Watched()), steps=15, after_epoch=after, engine="pyro")
    epochs = [rows[-ROWS:] for rows in seen[:3]]  # before the first, minibatches are looked at
    assert all(sorted(rows) == list(range(ROWS)) for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


class Listed(IterableDataset[Any]):
    """Minibatches in order, which are counted."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, rows in enumerate(torch.arange(ROWS).split(SIZE)):
            self.seen.append(number)
            yield X[rows], Y[rows]


@pytest.mark.parametrize("steps", [8, 10])
def test_a_run_on_a_loader_begins_its_epoch_again(steps: int, tmp_path: Path) -> None:
    settings = {"num_data": ROWS, "kind": guides.Point, "checkpoint": tmp_path / "state"}
    first, data = fit(whole(Listed()), steps=steps, **settings), Listed()
    run = fit(whole(data), steps=steps + 5, **settings)
    assert data.seen[-5:] == [0, 1, 2, 3, 4]
    assert torch.equal(run.history[:steps], first.history)
    if steps == 10:  # at the end of an epoch
        assert torch.equal(run.history, fit(whole(Listed()), num_data=ROWS, kind=guides.Point, steps=15).history)
    with pytest.raises(ValueError, match=r"data is 5 minibatches \(70 rows\) there and 3 minibatches \(70 rows\) here"):
        fit(whole([(X[rows], Y[rows]) for rows in torch.arange(ROWS).split(30)]), **settings)


def test_predictions_and_estimates_are_those_of_tensors() -> None:
    run = fit((X, Y), batch_size=SIZE)
    pieces = torch.cat([run.predict(x, 7, seed=3).f for x, _ in loader(shuffle=False)], 1)
    torch.testing.assert_close(pieces, run.predict(X, 7, seed=3).f, rtol=1e-5, atol=1e-6)
    for source in (loader(shuffle=False), TensorDataset(X, Y)):
        with pytest.raises(TypeError, match="x must be"):
            run.predict(source, 7)  # type: ignore[arg-type]
    trained = fit(loader())
    assert trained.elbo(7, (X, Y)).value < 0
    for estimate in (trained.elbo, lambda: run.elbo(7, loader(shuffle=False))):
        with pytest.raises(ValueError, match="elbo needs data in memory"):
            estimate()
    assert trained.fingerprint is None


@pytest.mark.parametrize("engine", ["pyro", "traced"])
def test_named_inputs_may_come_in_any_order(engine: EngineName) -> None:
    """A recorded step takes tensors by their places."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(a - 5 * b)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = models.from_module(Both(), priors.Gaussian(), likelihoods.Gaussian(4.0))
    guide = guides.MeanField(model)
    named = [({"a": X, "b": X.cos()}, Y), ({"a": X, "b": X.cos()}, Y)]
    turned = [named[0], ({"b": X.cos(), "a": X}, Y)]
    one, other = (
        pyrodrop.fit(model, guide, whole(data), num_data=2 * ROWS, steps=6, engine=engine) for data in (named, turned)
    )
    assert torch.equal(one.history, other.history)


def test_sequences_of_varying_length_are_trained_by_pyro() -> None:
    """Padded by minibatch: each length would be traced anew; the traced engine gives the same numbers."""
    net = nn.Sequential(nn.Embedding(9, 4), _Mean(), nn.Linear(4, 2))
    model = models.from_module(net, priors.Gaussian(), likelihoods.Categorical())
    guide = guides.MeanField(model)
    batches = [(torch.randint(9, (6, length)), torch.arange(6) % 2) for length in (3, 5, 4)]
    runs = [pyrodrop.fit(model, guide, whole(batches), num_data=18, steps=7, engine=e) for e in ("auto", "traced")]  # type: ignore[arg-type]
    assert [run.settings["engine"] for run in runs] == ["pyro", "traced"]
    torch.testing.assert_close(runs[0].history, runs[1].history, rtol=1e-5, atol=1e-5)


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


class _Short(Listed):
    def __len__(self) -> int:
        return 9


def _named(*names: str) -> list[Any]:
    """A minibatch with inputs of each of these names."""
    return [(dict.fromkeys(each, X), Y) for each in names]


def refused(minibatches: Any, num_data: int = ROWS) -> Any:
    return fit(whole(minibatches), num_data=num_data)


BAD_Y = Y.clone().masked_fill(torch.arange(ROWS)[:, None] == 40, float("inf"))
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an iterator": (lambda: fit(iter([(X, Y)]), num_data=ROWS), "must be left out .*a list_iterator"),
    "no length": (lambda: fit(DataLoader(_Stream(), SIZE), num_data=ROWS), "must have a length.*no __len__"),
    "no num_data": (lambda: fit([(X, Y)] * 3), "got a list of 3: .*pyrodrop.fit a DataLoader"),
    "a data set": (lambda: fit(Items(), batch_size=4), "got a Items: .*pyrodrop.fit a DataLoader"),
    "num_data of tensors": (lambda: fit((X, Y), num_data=ROWS), "num_data .* must be left out .*got 70 and a tuple"),
    "a sampler": (lambda: fit(loader(sampler=WeightedRandomSampler([1.0] * ROWS, 9), shuffle=False)), "num_data, .* given"),
    "batch_size of a loader": (lambda: fit(loader(), batch_size=4), "batch_size must be None .*got 4"),
    "more rows in an epoch": (lambda: refused([(X, Y)] * 2), r"got 70 for DataLoader\(list\), which has 140 rows up to"),
    "a part of a data set": (lambda: fit(loader(), num_data=35), "data set, 70 for this DataLoader; got 35: leave it out"),
    "two dtypes": (lambda: refused([(X, Y), (X.double(), Y)], 2 * ROWS), "minibatch 1 .*read first, {'x'.*32.*got .*64"),
    "other names": (lambda: refused(_named("a", "b"), 2 * ROWS), "minibatch 1 .*read first, {'x_a'.*got {'x_b'"),
    "no pairs": (lambda: refused([X, X]), r"minibatch 0 of DataLoader\(list\): a minibatch must be a pair"),
    "no y": (lambda: refused([{"a": X, "b": Y}]), "y under one of the names y, label, .* got the names a, b"),
    "an infinite y": (lambda: fit(loader(TensorDataset(X, BAD_Y), shuffle=False)), r"minibatch 2 of .*\): y"),
    "too short": (lambda: refused(_Short()), r"Short\) must yield .* its length, 9, .*got 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(name: str) -> None:
    call, said = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=said):
        call()
