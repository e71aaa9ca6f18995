"""Rows within an example share the noise of the example: against all masks, and against weight draws.

A network's rows are tokens ``[N, T, D]``, positions of an image or times. Two examples, equal or not, are independent; the
rows of one example are those of one weight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrodrop.distributions import (
    BernoulliMixture,
    CorrelatedNormal,
    InputUnits,
    LowRankNormal,
    MultiplicativeNormal,
    RelaxedBernoulliMixture,
)
from pyrodrop.prediction.draws import Draws
from pyrodrop.reparam import STRATEGIES, LazyWeight, LocalReparam, PerExampleReparam, SharedNoise
from pyrodrop.reparam.lazy import LazyDistribution

pytestmark = pytest.mark.usefixtures("float64")
DRAWS = 20_000


def lazy(q: Any, strategy: Any, examples: int | None = 0) -> LazyWeight:
    distribution = LazyDistribution(q, strategy, "w")
    distribution.examples = examples
    return LazyWeight(distribution)


def draws_of(name: str, q: Any, call: Callable[[Tensor, Any], Tensor], x: Tensor, axis: int) -> Tensor:
    """``[DRAWS, ...]`` outputs of one example x, whose copies stand along an axis of the input and of the output."""
    copies = x.unsqueeze(axis).expand(*x.shape[:axis], DRAWS, *x.shape[axis:])
    y = call(copies, lazy(q, STRATEGIES[name], axis))
    return y.movedim(axis, 0).flatten(1).detach()


def by_weights(q: Any, call: Callable[[Tensor, Any], Tensor], x: Tensor, axis: int, draws: int = DRAWS) -> Tensor:
    """The same by drawing one weight per copy."""
    weights = q.expand((draws,)).sample()
    return torch.stack([call(x.unsqueeze(axis), w).flatten() for w in weights])


def by_masks(q: BernoulliMixture, call: Callable[[Tensor, Any], Tensor], x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the outputs of one example, of all 2^K masks of the weight's K input units."""
    keep = q.keep_rate
    values, weights = [], []
    for bits in itertools.product((0.0, 1.0), repeat=len(keep)):
        mask = torch.tensor(bits)
        values.append(call(x.unsqueeze(axis), q.over_units(mask) * q.loc).flatten())
        weights.append(torch.where(mask > 0, keep, 1 - keep).prod())
    y, p = torch.stack(values), torch.stack(weights)
    mean = p @ y
    return mean, (y - mean).T @ (p[:, None] * (y - mean))


def agree(y: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Mean and covariance of independent draws ``[draws, ...]`` within 4.5 standard errors of what they should be."""
    deviation = covariance.diagonal().clamp_min(1e-12).sqrt()
    assert float(((y.mean(0) - mean) * math.sqrt(len(y)) / deviation).abs().max()) < 4.5
    z = (y - mean) / deviation
    products = z[:, :, None] * z[:, None, :]
    wanted = covariance / (deviation[:, None] * deviation)
    error = products.std(0) / math.sqrt(len(y))
    assert float(((products.mean(0) - wanted) / error.clamp_min(1e-6)).abs().max()) < 4.5


MAPS: dict[str, tuple[Callable[[Tensor, Any], Tensor], tuple[int, ...], tuple[int, ...], int, InputUnits]] = {
    # call, shape of one example, shape of the weight, where examples go, units
    "tokens": (F.linear, (3, 4), (2, 4), 0, InputUnits()),
    "tokens, examples second": (F.linear, (3, 4), (2, 4), 1, InputUnits()),
    "patches": (F.linear, (2, 2, 4), (2, 4), 0, InputUnits()),
    "x @ W": (lambda x, w: x @ w, (3, 4), (4, 2), 0, InputUnits(0)),
    "x @ W.T": (lambda x, w: x @ w.T, (3, 4), (2, 4), 0, InputUnits()),
    "conv": (F.conv1d, (4, 5), (2, 4, 3), 0, InputUnits()),
    "grouped conv": (lambda x, w: F.conv1d(x, w, groups=2), (4, 4), (2, 2, 3), 0, InputUnits(1, 2)),
    "depthwise conv": (lambda x, w: F.conv2d(x, w, groups=4), (4, 3, 3), (4, 1, 2, 2), 0, InputUnits(1, 4)),
    "conv transpose": (F.conv_transpose1d, (4, 3), (4, 2, 2), 0, InputUnits(0)),
    "grouped transpose": (lambda x, w: F.conv_transpose1d(x, w, groups=2), (4, 2), (4, 1, 2), 0, InputUnits(0, 2)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["local", "per_example"])
@pytest.mark.parametrize("kind", MAPS)
def test_all_rows_of_an_example_see_its_mask(kind: str, name: str) -> None:
    """Mean and covariance of all outputs of an example, rows together, against the 16 masks of its 4 input units."""
    call, shape, weight, axis, units = MAPS[kind]
    torch.manual_seed(5)
    q = BernoulliMixture(torch.randn(weight), torch.tensor([0.2, 0.5, 0.4, 0.7]), units=units)
    x = torch.randn(shape)
    y = draws_of(name, q, call, x, axis)
    mean, covariance = by_masks(q, call, x, axis)
    agree(y, mean, covariance)
    values = {tuple(round(float(v), 6) + 0.0 for v in row) for row in y[:500]}
    assert len(values) <= 16, "each example is that of one mask"


POSTERIORS: dict[str, Callable[[Tensor, InputUnits], Any]] = {
    "type A": lambda m, u: CorrelatedNormal(m, -0.5, units=u),
    "concrete": lambda m, u: RelaxedBernoulliMixture(m, torch.tensor(-0.5), units=u),
    "normal": lambda m, u: dist.Normal(m, 0.4).to_event(m.dim()),
    "type B": lambda m, u: MultiplicativeNormal(m, -0.5),
    "low rank": lambda m, u: LowRankNormal(
        m, torch.linspace(-0.6, 0.8, m.numel())[:, None], torch.full((m.numel(),), 0.1)
    ),
    "mixture": lambda m, u: BernoulliMixture(m, 0.3, 0.2, units=u),
    "DropConnect": lambda m, u: BernoulliMixture(m, 0.3, per="weight", units=u),
}
EXACT = {
    "local": ("type A", "concrete"),
    "per_example": tuple(POSTERIORS),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["tokens", "tokens, examples second", "x @ W", "grouped conv", "conv transpose"])
@pytest.mark.parametrize(("name", "posterior"), [(n, q) for n, posteriors in EXACT.items() for q in posteriors])
def test_all_rows_of_an_example_see_one_weight(kind: str, name: str, posterior: str) -> None:
    """The same for other posteriors: against the covariance of the map, which is linear in the weight, in closed form."""
    call, shape, weight, axis, units = MAPS[kind]
    torch.manual_seed(6)
    q, x = POSTERIORS[posterior](torch.randn(weight), units), torch.randn(shape)
    basis = torch.eye(math.prod(weight)).reshape(-1, *weight)
    jacobian = torch.stack([call(x.unsqueeze(axis), e).flatten() for e in basis], 1)
    sample = q.expand((200_000,)).sample().flatten(1)
    mean = sample.mean(0) if posterior == "concrete" else q.mean.flatten()
    covariance = jacobian @ sample.T.cov() @ jacobian.T
    y = draws_of(name, q, call, x, axis)
    deviation = covariance.diagonal().sqrt()
    se = deviation / math.sqrt(DRAWS) * (1.05 if posterior == "concrete" else 1)
    assert float(((y.mean(0) - jacobian @ mean) / se).abs().max()) < 4.5
    torch.testing.assert_close(
        y.T.cov() / deviation.outer(deviation), covariance / deviation.outer(deviation), atol=0.06, rtol=0
    )


def test_examples_have_masks_of_their_own() -> None:
    """Rows of two equal examples, against each other: the covariance between examples is 0, within one it is not."""
    torch.manual_seed(7)
    q, x = BernoulliMixture(torch.randn(1, 4), 0.5), torch.randn(3, 4)
    for name, axis in itertools.product(("local", "per_example"), (0, 1)):
        y = draws_of(name, q, F.linear, x, axis)
        within, between = y.T.cov(), (y[0::2] - y.mean(0)).T @ (y[1::2] - y.mean(0)) / (DRAWS / 2)
        scale = within.diagonal().sqrt()
        assert float((between / scale.outer(scale)).abs().max()) < 4.5 / math.sqrt(DRAWS / 2) * 1.1
        assert float((within / scale.outer(scale)).fill_diagonal_(0).abs().max()) > 0.1


@pytest.mark.parametrize("posterior", ["normal", "type B", "low rank"])
def test_local_noise_of_weights_keeps_each_row_and_not_their_correlation(posterior: str) -> None:
    """What the docstring says: each row has the variance of a weight draw; only a factor's part is common to rows."""
    torch.manual_seed(8)
    q, x = POSTERIORS[posterior](torch.randn(2, 4), InputUnits()), torch.randn(3, 4)
    y = draws_of("local", q, F.linear, x, 0)
    variance = torch.stack([(row**2 @ q.variance.T) for row in x]).flatten()
    if posterior == "low rank":
        factor = (x @ q.factor.reshape(2, 4).T).flatten()
        independent = torch.stack([(row**2 @ q.diagonal.reshape(2, 4).T) for row in x]).flatten()
        agree(y, (x @ q.mean.T).flatten(), torch.outer(factor, factor) + independent.diag())
    else:
        agree(y, (x @ q.mean.T).flatten(), variance.diag())


@pytest.mark.parametrize("name", ["local", "per_example"])
def test_without_an_axis_of_examples_one_draw_serves_the_minibatch(name: str) -> None:
    """Examples and rows merged into one axis: all rows see one weight, in this map and in the next."""
    q = dist.Normal(torch.randn(4, 4), 1.0).to_event(2)
    w = lazy(q, STRATEGIES[name], None)
    x = torch.randn(6, 4)
    y, z = F.linear(x, w), F.linear(2 * x, w)
    assert len(w.drawn) == 1
    torch.testing.assert_close(y, x @ w.drawn[0].T)
    torch.testing.assert_close(z, 2 * y)


def two_layers(x: Tensor, w: Any) -> Tensor:
    return torch.tanh(F.linear(torch.tanh(F.linear(x, w)), w))


def test_noise_that_cannot_be_kept_is_refused() -> None:
    q = dist.Normal(torch.randn(3, 3), 1.0).to_event(2)
    with pytest.raises(ValueError, match="weight 'w' is used a second time.*estimator='shared'"):
        two_layers(torch.randn(5, 3), lazy(q, LocalReparam()))
    with pytest.raises(ValueError, match="weight 'w' is used a second time"):
        two_layers(torch.randn(5, 3), lazy(BernoulliMixture(torch.randn(3, 3), 0.5, 0.1), LocalReparam()))
    w = lazy(q, PerExampleReparam())
    F.linear(torch.randn(5, 3), w)
    with pytest.raises(ValueError, match="weight 'w' is used a second time"):
        w.exp()


@pytest.mark.parametrize("name", ["local", "per_example"])
def test_a_constant_weight_may_be_used_in_any_way(name: str) -> None:
    m, x = torch.randn(3, 3), torch.randn(5, 3)
    w = lazy(BernoulliMixture(m, 0.0), STRATEGIES[name])
    y = (
        F.linear(x, w),
        x @ w,
        F.embedding(torch.tensor([0, 2]), w),
        F.linear(x, w, lazy(BernoulliMixture(m[0], 0.0), STRATEGIES[name])),
    )
    want = x @ m.T, x @ m, m[[0, 2]], x @ m.T + m[0]
    torch.testing.assert_close(y, want)


@pytest.mark.parametrize("name", ["local", "per_example"])
def test_a_bias_is_one_draw_per_example(name: str) -> None:
    """All rows of an example have its bias, examples have different ones."""
    bias = lazy(dist.Normal(torch.zeros(2), 1.0).to_event(1), STRATEGIES[name])
    weight = lazy(BernoulliMixture(torch.zeros(2, 4), 0.0), STRATEGIES[name], 1)
    y = F.linear(torch.randn(3, 5000, 4), weight, bias)
    torch.testing.assert_close(y[0], y[2])
    torch.testing.assert_close(y[0].T.cov(), torch.eye(2), atol=4.5 * math.sqrt(2 / 5000), rtol=0)


@pytest.mark.parametrize("strategy", [LocalReparam(), SharedNoise(torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]))])
def test_words_of_an_embedding_that_is_tied_to_the_head(strategy: Any) -> None:
    """Words are dropped: an embedding and the head it is tied to see one weight whose rows are gone."""
    torch.manual_seed(4)
    m, ids = torch.randn(5, 3), torch.tensor([[0, 1, 4], [2, 3, 3]])
    w = lazy(BernoulliMixture(m, 0.5, units=InputUnits(0)), strategy)
    h = F.embedding(ids, w)
    y = F.linear(h, w)
    (weight,) = w.drawn
    kept = weight.abs().sum(1) > 0
    assert 0 < int(kept.sum()) < 5
    torch.testing.assert_close(weight, m * kept[:, None])
    torch.testing.assert_close(y, F.embedding(ids, weight) @ weight.T)


def test_a_map_along_the_other_axis_realises_the_weight() -> None:
    """x @ W of a weight whose units are its second axis, and a linear head of a weight whose units are its words."""
    torch.manual_seed(2)
    for call, units in ((lambda x, w: x @ w, InputUnits(1)), (F.linear, InputUnits(0))):
        m, x = torch.randn(4, 4), torch.randn(6, 4)
        for strategy in (LocalReparam(), SharedNoise(torch.tensor([1.0, 0.0, 1.0, 0.0]))):
            w = lazy(BernoulliMixture(m, 0.5, units=units), strategy)
            y = call(x, w)
            (weight,) = w.drawn
            assert set((weight / m).sum(1 - units.axis).tolist()) <= {0.0, 4.0}  # type: ignore[operator]
            torch.testing.assert_close(y, call(x, weight))


@pytest.mark.parametrize("kind", MAPS)
def test_draws_of_functions_put_the_noise_of_a_draw_on_inputs_or_weight(kind: str) -> None:
    """`SharedNoise`: f(x, M diag(s)) of every draw, mapped over draws, whichever the noise is put on."""
    call, shape, weight, _, units = MAPS[kind]
    q, noise = BernoulliMixture(torch.randn(weight), 0.5, units=units), torch.rand(7, 4)
    for count in (1, 9):
        x = torch.randn(count, *shape)
        network = SimpleNamespace(outputs=lambda weights, x: call(x, weights["w"]), batches_weights=True)
        y = Draws(network, 7, {"w": noise}, {"w": q}, {})(x)
        want = torch.stack([call(x, q.over_units(s) * q.loc) for s in noise])
        torch.testing.assert_close(y, want)


@pytest.mark.parametrize("name", ["local", "per_example"])
def test_a_product_of_two_weights_is_of_one_draw_of_each(name: str) -> None:
    u, v = (lazy(dist.Normal(torch.randn(3, 3), 1.0).to_event(2), STRATEGIES[name]) for _ in range(2))
    y = torch.randn(5, 3) @ (u @ v.T)
    assert y.shape == (5, 3)
    torch.testing.assert_close(u @ v.T, u.drawn[0] @ v.drawn[0].T)
