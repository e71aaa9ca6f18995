"""Steps that an engine makes in blocks are, bit for bit, those that it makes one by one.

Most tests replay the graph of a step operation by operation in place of the compiled program, since what is tested is what
the engine does around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.compiled import inductor
from pyrodrop.compiled.program import Noise
from pyrodrop.compiled.steps import Prepared, Steps
from pyrodrop.private_apis import Compiled
from pyrodrop.steps import Batch, Call

X = torch.randn(45, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin() + 0.1 * X[:, 1:2]
STEPS = 37


def program(module: Any, inputs: Any, options: Any) -> Compiled:
    """A step that is replayed, in place of one that is compiled."""
    return Compiled(lambda given: module(*given))


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "compile_by_inductor", program)
    monkeypatch.setattr(inductor, "_path", lambda *_: None)


def mlp(prior: priors.Prior | None = None, widths: Sequence[int] = (3, 5, 1)) -> models.MLP:
    torch.manual_seed(0)
    return models.MLP(list(widths), prior=prior or priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))


def masks() -> tuple[Any, Any, str]:
    model = mlp()
    return model, guides.BernoulliDropout(model, 0.3), "local"


def weights() -> tuple[Any, Any, str]:
    """Normal numbers, of a guide without masks."""
    model = mlp()
    return model, guides.MeanField(model), "shared"


def activations() -> tuple[Any, Any, str]:
    """Normal numbers for every row."""
    model = mlp(priors.LogUniform())
    return model, guides.VariationalDropout(model, "B", "layer"), "local"


def mixed() -> tuple[Any, Any, str]:
    """Masks and normal numbers."""
    model = mlp()
    return model, guides.BernoulliDropout(model, 0.3, theta=0.1), "local"


def fitted(parts: Callable[[], tuple[Any, Any, str]], steps: int = STEPS, **options: Any) -> pyrodrop.Fit:
    model, guide, estimator = parts()
    given = {"lr": 1e-2, "engine": "compiled", "progress": False, "seed": 3, **options}
    fit = pyrodrop.fit(model, guide, (X, Y), steps=steps, estimator=estimator, **given)  # type: ignore[arg-type]
    assert isinstance(fit, pyrodrop.Fit)
    return fit


def training(parts: Callable[[], tuple[Any, Any, str]], **options: Any) -> pyrodrop.Training:
    model, guide, estimator = parts()
    given = {"lr": 1e-2, "engine": "compiled", "seed": 3, **options}
    return pyrodrop.Training(model, guide, (X, Y), steps=STEPS, estimator=estimator, **given)  # type: ignore[arg-type]


def same(one: pyrodrop.Fit, other: pyrodrop.Fit) -> bool:
    """Whether all losses and parameters have the same bits."""
    pairs = [(one.history, other.history), *zip(one.guide.parameters(), other.guide.parameters(), strict=True)]
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps of every block."""
    sizes: list[int] = []
    block = Steps.block

    def counted(engine: Steps, batches: Any, most: int) -> None:
        before = len(engine.made)
        block(engine, batches, most)
        sizes.append(len(engine.made) - before)

    monkeypatch.setattr(Steps, "block", counted)
    return sizes


GIVEN = [(parts, size) for parts in (masks, weights, activations, mixed) for size in (None, 16, 7)]
FAST = [(masks, 7), (weights, None), (activations, 16)]


@pytest.mark.few(2)
@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("engine", ["traced", "compiled"])
@pytest.mark.parametrize(
    ("parts", "size"),
    [
        pytest.param(*given, marks=[] if given in FAST else pytest.mark.slow, id=f"{given[0].__name__}-{given[1]}")
        for given in GIVEN
    ],
)
def test_blocks_are_single_steps(parts: Any, size: int | None, engine: str, blocks: list[int]) -> None:
    """Minibatches of all 45 rows; of 16, 16 and 13; of 7, six times, and 3. A block goes on in the next epoch."""
    fits = []
    for counts in ([STEPS - 3], [1] * (STEPS - 3), [4, 1, 1, 9, 2, 1, 16]):
        made = training(parts, batch_size=size, engine=engine)
        made.advance(3)
        blocks.clear()
        for count in counts:
            made.advance(count)
        assert set(blocks) == set(counts) or len(set(counts)) > 2
        fits.append(made.fit)
    assert all(same(fits[0], other) for other in fits[1:])


@pytest.mark.more
@pytest.mark.usefixtures("replayed")
def test_what_is_called_after_an_epoch_sees_the_random_state_of_single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> list[list[int]]:
        states: list[list[int]] = []
        fitted(masks, batch_size=7, after_epoch=lambda fit, epoch: states.append(torch.get_rng_state().tolist()))
        return states

    together = seen()
    monkeypatch.setattr(Steps, "most_steps", 1)
    assert together == seen()
    assert len(together) == STEPS // 7


@pytest.mark.usefixtures("replayed")
def test_a_training_continues_after_an_interrupted_block(monkeypatch: pytest.MonkeyPatch) -> None:
    made = training(masks, batch_size=7)
    made.advance(9)
    engine: Any = made._session.engine._engine
    make, calls = engine.make, iter(range(100))

    def interrupted(*given: Any) -> Tensor:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return make(*given)  # type: ignore[no-any-return]

    monkeypatch.setattr(engine, "make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.advance(6)
    monkeypatch.setattr(engine, "make", make)
    assert made.steps_done == 12
    made.advance(STEPS - 12)
    assert made.fit.history.isfinite().all()
    assert len(made.fit.history) == STEPS


@pytest.mark.more
@pytest.mark.usefixtures("replayed")
def test_a_block_is_bounded_in_memory(monkeypatch: pytest.MonkeyPatch, blocks: list[int]) -> None:
    bytes_of_a_step = 16 * (3 + 1) * 4 + 16 * (3 + 5)  # rows, and masks as bytes
    whole = fitted(masks, batch_size=16)
    for steps, most in ((4, 6), (1, 1)):  # as of 16, 16, 13, 16, 16 and 13 rows
        monkeypatch.setattr(Steps, "most_bytes", steps * bytes_of_a_step)
        blocks.clear()
        assert same(whole, fitted(masks, batch_size=16))
        assert max(blocks) == most


@pytest.mark.usefixtures("replayed")
def test_a_loss_that_breaks_within_a_block_is_found() -> None:
    with pytest.raises(FloatingPointError, match="stopped being finite at step"):
        fitted(weights, steps=100, batch_size=16, lr=1e30)


def rates(size: int) -> Tensor:
    return torch.linspace(0.1, 0.9, size)


NOISES: Mapping[str, list[Noise]] = {
    "one mask": [Noise("coins", torch.tensor(0.7).expand(1), shape=(9, 5))],
    "masks": [Noise("coins", torch.tensor(0.7), shape=(9, 5)), Noise("coins", rates(3), shape=(4, 3))],
    "a mask of one unit": [Noise("coins", torch.tensor(1 - 2.0**-17), shape=())],
    "normal": [Noise("normal", torch.empty(8, 4)), Noise("normal", torch.empty(17, dtype=torch.float64))],
    "one normal number": [Noise("normal", torch.empty(()))],
    "uniform": [Noise("uniform", torch.empty(16)), Noise("uniform", torch.empty(2, 3))],
    "bernoulli": [Noise("bernoulli", rates(5)), Noise("normal", torch.empty(16))],
    "all": [
        Noise("normal", torch.empty(16)), Noise("coins", torch.tensor(0.2), shape=(3,)), Noise("uniform", torch.empty(2)),
        Noise("coins", rates(4), shape=(2, 4)), Noise("coins", torch.tensor(0.9), shape=(2,)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("noises", NOISES.values(), ids=list(NOISES))
def test_noise_of_several_steps_is_that_of_each(noises: list[Noise]) -> None:
    """Drawn in parts, then again for other steps, and the generator is left where it would be."""
    program: Any = SimpleNamespace(noise=noises)
    ahead, rows = Prepared(Call((), {}), program), None
    ahead.reserve(6)
    torch.manual_seed(0)
    want = [[noise.draw() for noise in noises] for _ in range(9)]
    after = torch.get_rng_state()
    torch.manual_seed(0)
    for first, count in ((0, 5), (5, 4)):
        ahead.clear()
        ahead.take(rows, 2)
        ahead.take(rows, count - 2)
        ahead.fill(rows)
        for step, inputs in zip(want[first : first + count], ahead.noise, strict=False):
            for one, other in zip(step, inputs, strict=True):
                assert one.dtype == other.dtype
                assert other.is_contiguous()
                assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.usefixtures("replayed")
def test_a_program_is_not_given_tensors_of_other_strides() -> None:
    made = training(masks, batch_size=16)
    made.advance(2)
    session: Any = made._session
    batch = session.rows.samples(None)[0]
    turned = Batch((batch.x.t().contiguous().t(), batch.y), batch.kwargs)
    with pytest.raises(RuntimeError, match=r"takes tensors with strides \[\(3, 1\), \(1, 1\)\]; got \[\(1, 16\), "):
        session.engine.step(turned, 0)


@pytest.mark.usefixtures("replayed")
def test_autograd_knows_that_parameters_have_moved() -> None:
    made = training(masks, batch_size=16)
    made.advance(2)
    leaf = next(iter(made._session.parameters.values()))
    for steps in (1, 3):
        with torch.enable_grad():
            value = (leaf**2).sum()
        made.advance(steps)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 7])
def test_a_compiled_training_makes_the_same_steps_in_blocks_and_singly(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TorchInductor's own program, called as a C++ function without PyTorch's checks."""
    programs: list[Compiled] = []
    compile_graph = inductor.compile_graph
    monkeypatch.setattr(inductor, "compile_graph", lambda *args: programs.append(compile_graph(*args)) or programs[-1])
    monkeypatch.setattr("pyrodrop.compiled.inductor._path", lambda *_: None)
    together, made = (training(activations, batch_size=size) for _ in range(2))
    together.advance(STEPS)
    made.advance(3)
    for _ in range(STEPS - 3):
        made.step()
    assert same(together.fit, made.fit)
    pyro = fitted(activations, batch_size=size, engine="pyro")
    torch.testing.assert_close(made.fit.history, pyro.history, rtol=2e-4, atol=2e-4)
    engine: Any = made._session.engine
    assert isinstance(engine, Steps)
    assert programs
    assert all(program.file is not None for program in programs)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["traced", "compiled"])
@pytest.mark.usefixtures("replayed")
def test_rates_that_a_callback_changes_are_those_of_the_next_steps(engine: str) -> None:
    """As with Pyro's handlers, which read them at every step: masks, divergence and precision."""

    def change(fit: pyrodrop.Fit, epoch: int) -> None:
        with torch.no_grad():
            fit.guide.drop_rate.mul_(1.1)
            fit.model.likelihood.precision.data.mul_(0.9)

    want, got = (fitted(masks, batch_size=16, engine=name, after_epoch=change) for name in ("pyro", engine))
    torch.testing.assert_close(got.history, want.history, rtol=2e-4, atol=2e-4)
