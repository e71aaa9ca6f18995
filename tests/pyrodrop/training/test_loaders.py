"""Training on data that are read a minibatch at a time, against tensors in memory."""

from __future__ import annotations

import random
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
from pyrodrop.analysis.benchmarks.loaders import of_file
from pyrodrop.constraints import EngineName

ROWS, SIZE, STEPS = 70, 16, 23
GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(ROWS, 3, generator=GENERATOR)
Y = X.sin().sum(1, keepdim=True) + 0.1 * torch.randn(ROWS, 1, generator=GENERATOR)


class Items(TorchDataset[Any]):
    """Rows by their numbers, one at a time, which may be read with noise of Python and NumPy."""

    def __init__(self, noise: float = 0.0, named: bool = False) -> None:
        self.noise, self.named = noise, named

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        x = X[row] + self.noise * (random.random() + np.random.rand() + torch.rand(())) if self.noise else X[row]
        return {"inputs": x, "labels": Y[row]} if self.named else (x, Y[row])


class Shuffled:
    """Minibatches in an order from a generator of its own, or by the epoch that it is told."""

    seed = 0

    def __init__(self, told: bool) -> None:
        self.generator = np.random.default_rng(self.seed)
        if told:
            self.set_epoch = self._set_epoch

    def _set_epoch(self, epoch: int) -> None:
        self.generator = np.random.default_rng(epoch)

    def __len__(self) -> int:
        return -(-ROWS // SIZE)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.as_tensor(self.generator.permutation(ROWS)).split(SIZE):
            yield X[rows], Y[rows]


def pair(kind: Callable[..., Any] = guides.MeanField, **settings: Any) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = models.MLP([3, 5, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    return model, kind(model, **settings)


def fit(data: Any, *, kind: Callable[..., Any] = guides.MeanField, **settings: Any) -> Any:
    return pyrodrop.fit(*pair(kind), data, **{"steps": STEPS, "lr": 0.01, "engine": "traced", **settings})


def loader(data: Any = None, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Items() if data is None else data, SIZE, **{"shuffle": True, **settings})


def mapped(folder: Path) -> Any:
    file: Any = np.memmap(folder / "x", dtype=np.float32, mode="w+", shape=(ROWS, 3))
    file[:] = X.numpy()
    return file


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("engine", "estimator"),
    [("pyro", "local"), ("traced", "shared"), pytest.param("compiled", "shared", marks=pytest.mark.more)],
)
def test_rows_that_are_read_give_the_bits_of_tensors(tmp_path: Path, engine: EngineName, estimator: Any) -> None:
    settings: dict[str, Any] = {"batch_size": SIZE, "engine": engine, "estimator": estimator}
    whole = fit((X, Y), **settings)
    others: Any = (Items(named=True), TensorDataset(X, Y), (mapped(tmp_path), Y), (mapped(tmp_path)[:, :], Y))
    for source in (Items(), *others)[: 1 if engine == "compiled" else None]:
        read = fit(source, **settings)
        assert torch.equal(read.history, whole.history), source
        assert torch.equal(read.predict(X, 5).f, whole.predict(X, 5).f)
        assert read.settings["engine"] == whole.settings["engine"] == engine


def test_a_likelihood_that_starts_from_y_starts_from_a_sample() -> None:
    """Of 256 rows, evenly spread, where there are more; everything else is as for tensors."""
    x = torch.linspace(-1, 1, 600)[:, None].expand(-1, 3).contiguous()
    rows = torch.linspace(0, 599, 256).long()

    class Many(Items):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, row: int) -> Any:
            return x[row], x[row, :1] ** 3

    def run(data: Any, precision: float | None) -> Any:
        torch.manual_seed(1)
        model = models.MLP([3, 5, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(precision))
        return pyrodrop.fit(model, guides.Point(model), data, steps=1, lr=1e-4, batch_size=SIZE, engine="pyro")

    precision = float(run(Many(), None).model.likelihood.precision)
    assert precision == pytest.approx(float(1 / (x[rows, :1] ** 3).var(correction=0)), rel=1e-3)
    whole = (x, x[:, :1] ** 3)
    assert torch.equal(run(Many(), 3.0).history, run(whole, 3.0).history)
    assert float(run(whole, None).model.likelihood.precision) != precision


def test_files_of_other_dtypes_and_orders_are_as_tensors(tmp_path: Path) -> None:
    """Bytes in the other order, whole numbers, every second column, y of a list."""
    for dtype in (">f4", "f8", "i2", "u1"):
        file: Any = np.memmap(tmp_path / f"x{dtype[-2:]}", dtype=dtype, mode="w+", shape=(ROWS, 6))
        file[:] = np.arange(6 * ROWS).reshape(ROWS, 6) % 7
        x = torch.as_tensor(np.ascontiguousarray(file[:, ::2]).astype(np.dtype(dtype).newbyteorder("=")))
        settings: dict[str, Any] = {"batch_size": SIZE, "steps": 4, "engine": "pyro"}
        read, whole = fit((file[:, ::2], Y.tolist()), **settings), fit((x, Y), **settings)
        assert torch.equal(read.history, whole.history), dtype


def test_minibatches_of_a_loader_give_the_bits_of_tensors() -> None:
    """All rows at once with noise; and without noise any minibatches, in the order of the tensors' rows."""
    whole = fit((X, Y))
    assert torch.equal(fit([(X, Y)], num_data=ROWS).history, whole.history)
    of_tensors = fit((X, Y), kind=guides.Point, batch_size=SIZE, steps=5)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        order = torch.randperm(ROWS)
    batches = [{"inputs": X[rows], "target": Y[rows]} for rows in order.split(SIZE)]
    assert torch.equal(fit(batches, num_data=ROWS, kind=guides.Point, steps=5).history, of_tensors.history)


def test_the_likelihood_of_a_minibatch_counts_for_all_rows() -> None:
    """Against the density by SciPy's formula: N / B sum of (1/2) tau (y - f)^2 + (1/2) ln(2 pi / tau)."""
    model, guide = pair(guides.Point)
    weights = guide.mean()
    f = torch.func.functional_call(model.network, dict(weights), (X[:SIZE],))
    nll = (2.0 * (Y[:SIZE] - f) ** 2 + 0.5 * np.log(2 * np.pi / 4.0)).sum() * 1000 / SIZE
    run = pyrodrop.fit(model, guide, [(X[:SIZE], Y[:SIZE])], num_data=1000, steps=1, engine="pyro")
    torch.testing.assert_close(run.history[0, 0], nll.detach(), rtol=1e-5, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_repeats_and_changes_no_state(workers: int) -> None:
    """Noise of torch, Python and NumPy in the data set, by epoch; the caller's states are unchanged."""
    model, guide = pair()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    data = [loader(Items(noise=0.3), num_workers=workers) for _ in range(2)]
    runs = [pyrodrop.fit(model, guide, one, steps=STEPS, engine="traced") for one in data]
    assert torch.equal(runs[0].history, runs[1].history)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])
    first = fit(loader(Items(noise=0.3)), steps=1).history[0]
    assert not torch.equal(first, fit(loader(Items(noise=0.3)), steps=1, seed=1).history[0])
    assert str(runs[0].elbo(3)) == str(runs[0].elbo(3))


@pytest.mark.more
def test_estimates_between_steps_do_not_move_the_epoch() -> None:
    """Persistent workers, of which a DataLoader has one iterator for all iterations, are as others."""
    histories = []
    for looks, persistent in ((False, False), (False, True), (True, True)):
        data = loader(Items(noise=0.3), num_workers=1, persistent_workers=persistent)
        training = pyrodrop.Training(*pair(), data, lr=0.01, engine="pyro")
        for _ in range(8):
            training.step()
            _ = training.fit.elbo(1) if looks else None
        histories.append(training.fit.history)
        assert data.persistent_workers == persistent
    assert torch.equal(histories[0], histories[1])
    assert torch.equal(histories[0], histories[2])


def test_a_generator_of_the_loader_chooses_its_order_and_is_left_as_it_is() -> None:
    generator = torch.Generator().manual_seed(7)
    before = generator.get_state()
    runs = [fit(loader(generator=generator)) for _ in range(2)]
    assert torch.equal(runs[0].history, runs[1].history)
    assert torch.equal(generator.get_state(), before)
    assert not torch.equal(runs[0].history, fit(loader(generator=torch.Generator().manual_seed(8))).history)


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


def test_a_run_on_rows_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = fit(Items(noise=0.3), batch_size=SIZE)
    for steps in (8, 10, STEPS):  # within an epoch of 5 minibatches, and at the end of one
        run = fit(Items(noise=0.3), batch_size=SIZE, checkpoint=tmp_path / "state", steps=steps)
    assert torch.equal(run.history, whole.history)


def test_a_loader_that_has_another_order_at_every_reading_may_continue(tmp_path: Path) -> None:
    for steps in (8, 12):
        run = fit(Shuffled(told=False), num_data=ROWS, checkpoint=tmp_path / "state", steps=steps)
        Shuffled.seed += 1
    assert len(run.history) == 12
    with pytest.raises(ValueError, match=r"data is 5 minibatches \(70 rows\) there and 3 minibatches \(70 rows\) here"):
        fit([(X[rows], Y[rows]) for rows in torch.arange(ROWS).split(30)], num_data=ROWS, checkpoint=tmp_path / "state")


class Listed:
    """Minibatches in order, which are counted."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, rows in enumerate(torch.arange(ROWS).split(SIZE)):
            self.seen.append(number)
            yield X[rows], Y[rows]


class Stateful(Listed):
    """One that knows its place, as torchdata's StatefulDataLoader."""

    start = place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": torch.tensor(self.place)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = int(state["place"])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start, self.start = self.start, 0
        for number, rows in enumerate(torch.arange(ROWS).split(SIZE)):
            if number >= start:
                self.place = number + 1
                self.seen.append(number)
                yield X[rows], Y[rows]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "steps", "seen"),
    [
        (Listed, 8, [0, 1, 2, 3, 4]),  # the epoch of 3 minibatches begins again
        (Listed, 10, [0, 1, 2, 3, 4]),
        (Stateful, 8, [3, 4, 0, 1, 2]),
    ],
)
def test_a_run_on_a_loader_begins_its_epoch_again_unless_the_loader_knows_its_place(
    kind: Any, steps: int, seen: list[int], tmp_path: Path
) -> None:
    settings = {"num_data": ROWS, "kind": guides.Point, "checkpoint": tmp_path / "state"}
    first = fit(kind(), steps=steps, **settings)
    data = kind()
    run = fit(data, steps=steps + 5, **settings)
    assert data.seen[-5:] == seen
    assert torch.equal(run.history[:steps], first.history)
    if kind is Stateful or steps == 10:
        assert torch.equal(run.history, fit(kind(), num_data=ROWS, kind=guides.Point, steps=steps + 5).history)


def test_the_place_of_a_loader_is_that_of_the_training(tmp_path: Path) -> None:
    """Estimates after an epoch iterate the same loader."""

    def look(run: pyrodrop.Fit, epoch: int) -> None:
        run.elbo(1)

    settings: dict[str, Any] = {"num_data": ROWS, "kind": guides.Point, "after_epoch": look}
    every = pyrodrop.Checkpoint(tmp_path / "state", every=1)
    fit(Stateful(), steps=8, checkpoint=every, **settings)
    run = fit(Stateful(), steps=13, checkpoint=every, **settings)
    assert torch.equal(run.history, fit(Stateful(), steps=13, **settings).history)


def test_predictions_and_estimates_are_those_of_tensors() -> None:
    run = fit((X, Y), batch_size=SIZE)
    pieces = torch.cat([run.predict(x, 7, seed=3).f for x, _ in loader(shuffle=False)], 1)
    torch.testing.assert_close(pieces, run.predict(X, 7, seed=3).f, rtol=1e-5, atol=1e-6)
    for source in (Items(), loader(shuffle=False), TensorDataset(X, Y)):
        with pytest.raises(TypeError, match="x must be"):
            run.predict(source, 7)  # type: ignore[arg-type]
        assert run.elbo(7, source).value == pytest.approx(run.elbo(7).value, rel=1e-6)
    for read in (fit(loader()), fit(Items(), batch_size=SIZE)):
        assert read.elbo(7).value == pytest.approx(read.elbo(7, (X, Y)).value, rel=1e-6)
        assert read.objective(7).value == pytest.approx(read.objective(7, (X, Y)).value, rel=1e-6)
        assert read.fingerprint is None


class _Counted(nn.Module):
    """A linear map that counts its calls."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        _Counted.calls += 1
        return self.layer(x)  # type: ignore[no-any-return]


class _Reads(Items):
    """Rows that count how often one is read."""

    reads = 0

    def __getitem__(self, row: int) -> Any:
        self.reads += 1
        return super().__getitem__(row)


def test_an_estimate_of_many_draws_reads_a_loader_once_and_calls_the_network_once_per_draw() -> None:
    """Minibatches of one row, which are joined: one call for each draw and a few checks, in place of 70 for each draw."""
    model = models.from_module(_Counted(), priors.Gaussian(), likelihoods.Gaussian(4.0))
    guide = guides.MeanField(model)
    run = pyrodrop.fit(model, guide, (X, Y), steps=3)
    rows = _Reads()
    source = DataLoader(rows, 1)
    found = []
    for draws in (2, 12):
        rows.reads, _Counted.calls = 0, 0
        found.append((run.elbo(draws, source), rows.reads, _Counted.calls))
    assert found[0][1] == found[1][1] <= ROWS + 5
    assert found[1][2] - found[0][2] == 10
    assert found[1][0].value == pytest.approx(run.elbo(12).value, rel=1e-6)


def test_a_sampler_may_draw_more_rows_than_there_are() -> None:
    assert fit(drawn(), num_data=ROWS, steps=9).settings["steps"] == 9


def test_fewer_rows_than_num_data_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and not of the rows that a last minibatch may leave out."""
    batches = [(X[rows], Y[rows]) for rows in torch.arange(ROWS).split(SIZE)]
    fit(batches, num_data=ROWS + 3)
    assert "num_data" not in caplog.text
    fit(batches, num_data=10 * ROWS)
    assert caplog.text.count("num_data is 700, the number of rows of the data set, and list has 70 in an epoch") == 1


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
        pyrodrop.fit(model, guide, data, num_data=2 * ROWS, steps=6, engine=engine) for data in (named, turned)
    )
    assert torch.equal(one.history, other.history)


def test_sequences_of_varying_length_are_trained_by_pyro() -> None:
    """Padded by minibatch: each length would be traced anew; the traced engine gives the same numbers."""
    net = nn.Sequential(nn.Embedding(9, 4), _Mean(), nn.Linear(4, 2))
    model = models.from_module(net, priors.Gaussian(), likelihoods.Categorical())
    guide = guides.MeanField(model)
    batches = [(torch.randint(9, (6, length)), torch.arange(6) % 2) for length in (3, 5, 4)]
    runs = [pyrodrop.fit(model, guide, batches, num_data=18, steps=7, engine=e) for e in ("auto", "traced")]  # type: ignore[arg-type]
    assert [run.settings["engine"] for run in runs] == ["pyro", "traced"]
    torch.testing.assert_close(runs[0].history, runs[1].history, rtol=1e-5, atol=1e-5)


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


class _Ragged(Items):
    def __getitem__(self, row: int) -> Any:
        return torch.zeros(1 + row % 2), Y[row]


class _Words(Items):
    def __getitem__(self, row: int) -> Any:
        return object(), Y[row]


class _Short(Shuffled):
    def __len__(self) -> int:
        return 9


class _Long(Shuffled):
    def __len__(self) -> int:
        return 3


class _Keys(Items):
    """Some rows have an entry that the first one lacks."""

    def __getitem__(self, row: int) -> Any:
        return {"x": X[row], "y": Y[row]} | ({"w": X[row]} if row % 7 == 3 else {})


def _named(*names: str) -> list[Any]:
    """A minibatch with inputs of each of these names."""
    return [(dict.fromkeys(each, X), Y) for each in names]


def drawn() -> DataLoader[Any]:
    return loader(sampler=WeightedRandomSampler([1.0] * ROWS, 2 * ROWS), shuffle=False)


BAD_Y = Y.clone().masked_fill(torch.arange(ROWS)[:, None] == 40, float("inf"))
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an iterator": (lambda: fit(iter([(X, Y)]), num_data=ROWS), "iterated again.*got a list_iterator"),
    "no length": (lambda: fit(DataLoader(_Stream(), SIZE), num_data=ROWS), "must have a length.*__len__"),
    "no num_data": (lambda: fit([(X, Y)] * 3), "a list of minibatches with num_data"),
    "a stream": (lambda: fit(_Stream(), num_data=ROWS), r"an IterableDataset: pass DataLoader\(dataset, batch_size=...\)"),
    "num_data of tensors": (lambda: fit((X, Y), num_data=ROWS), "num_data .* must be left out .*got 70 and a tuple"),
    "num_data of 0": (lambda: fit([(X, Y)], num_data=0), "num_data is the number of rows of the data set"),
    "a sampler": (lambda: fit(loader(sampler=WeightedRandomSampler([1.0] * ROWS, 9), shuffle=False)), "num_data, .* given"),
    "batch_size of a loader": (lambda: fit(loader(), batch_size=4), "batch_size must be None, .*got batch_size 4"),
    "accumulate": (lambda: fit(loader(), accumulate=2), "accumulate 1 .* got batch_size None, accumulate 2"),
    "rows without batch_size": (lambda: fit(Items()), "batch_size must be a number of rows .*got None for 70 rows"),
    "rows of several shapes": (lambda: fit(_Ragged(), batch_size=4), "the items of _Ragged must be .*of one shape"),
    "no numbers": (lambda: fit(_Words(), batch_size=4), "the items of _Words must be pairs or mappings of tensors"),
    "more rows than num_data": (lambda: fit([(X, Y)], num_data=10), "of the data set, at least those .* 70 rows"),
    "more rows in an epoch": (lambda: fit([(X, Y)] * 2, num_data=ROWS), "got 70 for list, which has 140 rows up to"),
    "a part of a data set": (lambda: fit(loader(), num_data=35), "data set, 70 for this DataLoader; got 35: leave it out"),
    "more than a data set": (lambda: fit(loader(), num_data=700), "data set, 70 for this DataLoader; got 700"),
    "more than is sampled": (lambda: fit(drawn(), num_data=71), "data set, from 1 to 70 for this DataLoader; got 71"),
    "two dtypes": (lambda: fit([(X, Y), (X.double(), Y)], num_data=2 * ROWS), "minibatch 1 .*x was .*32.*got .*float64"),
    "two dtypes of y": (lambda: fit([(X, Y), (X, Y.int())], num_data=2 * ROWS), "minibatch 1 .*y was .*float32.*got .*int"),
    "other names": (lambda: fit(_named("a", "b"), num_data=2 * ROWS), "minibatch 1 .*x_a was .*32.*got none"),
    "another name": (lambda: fit(_named("ab", "abc"), num_data=2 * ROWS), "minibatch 1 .*x_c was not there; got .*float32"),
    "other keys": (lambda: fit(_Keys(), batch_size=SIZE), "the items of _Keys must have the same keys .*; got w in"),
    "no pairs": (lambda: fit([X, X], num_data=ROWS), "minibatch 0 in epoch 0 of list: a minibatch must be a pair"),
    "no y": (lambda: fit([{"a": X, "b": Y}], num_data=ROWS), "y under one of the names y, label, .* got the names a, b"),
    "an infinite y": (lambda: fit(loader(TensorDataset(X, BAD_Y), shuffle=False)), r"minibatch 2 in epoch 0 of .*\): y"),
    "too short": (lambda: fit(_Short(told=True), num_data=ROWS), "Short must yield .* its length, 9, .*got 5 in epoch 0"),
    "too long": (lambda: fit(_Long(told=True), num_data=ROWS), "Long must yield .*, 3, .*got more than 3 in epoch 0"),
    "rows left out": (lambda: fit(loader(), steps=1).elbo(2, loader(drop_last=True)), "has 70 rows and yielded 64"),
    "replicates": (lambda: pyrodrop.fit_replicates(*pair(), loader(), count=2, steps=1), "got a DataLoader: pass tensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(name: str) -> None:
    call, said = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=said):
        call()


def test_a_bad_label_is_named_with_its_minibatch() -> None:
    model = models.MLP([3, 4, 2], prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    labels = torch.where(torch.arange(ROWS) == 50, 7, torch.arange(ROWS) % 2)
    guide = guides.MeanField(model)
    with pytest.raises(ValueError, match="minibatch 3 in epoch 0 of .*class labels must lie in 0 ... 1"):
        pyrodrop.fit(model, guide, loader(TensorDataset(X, labels), shuffle=False), steps=9)
    with pytest.raises(ValueError, match=r"y: class labels must lie in 0 ... 1"):
        pyrodrop.fit(model, guide, _Labels(labels), batch_size=SIZE, steps=9)


class _Labels(Items):
    def __init__(self, labels: Tensor) -> None:
        super().__init__()
        self.labels = labels

    def __getitem__(self, row: int) -> Any:
        return X[row], self.labels[row]


@pytest.mark.slow
def test_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    """20 GB, in a process of its own: at most 500 MiB of resident memory beyond the imports."""
    assert of_file(tmp_path, 20.0) < 500
