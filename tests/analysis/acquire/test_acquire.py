"""Acquisition, against enumerations in NumPy, SciPy's integrals and the closed forms of linear models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from pyrodrop.analysis import acquire
from pyrodrop.prediction.prediction import Prediction

pytestmark = pytest.mark.usefixtures("float64")


def logits(draws: int, rows: int, classes: int, seed: int = 0) -> torch.Tensor:
    """Draws that depend on each other: a part of the logits is the same for all rows."""
    torch.manual_seed(seed)
    return torch.randn(draws, 1, classes) + 2 * torch.rand(rows, 1) * torch.randn(draws, rows, classes)


def of_classes(f: torch.Tensor, joint: bool = True) -> Prediction:
    return Prediction(f, dist.Categorical(logits=f), joint=joint)


def of_reals(f: torch.Tensor, scale: Any, joint: bool = True) -> Prediction:
    """A prediction of one real y, for f ``[S, N]``."""
    f, scale = f[..., None], torch.as_tensor(scale, dtype=torch.float64)
    return Prediction(f, dist.Normal(f, scale[..., None] if scale.dim() else scale).to_event(1), joint=joint)


def probabilities(f: torch.Tensor) -> np.ndarray:
    p = np.exp(f.numpy() - f.numpy().max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def joint_information(p: np.ndarray, rows: Sequence[int]) -> float:
    """I[y_rows; s] over all labellings, for p ``[S, N, C]``: sum over c and s of p(c, s) ln p(c, s) / (p(c) p(s))."""
    total = 0.0
    for labels in itertools.product(range(p.shape[2]), repeat=len(rows)):
        given = np.prod([p[:, row, label] for row, label in zip(rows, labels, strict=True)], axis=0)
        total += float((given * np.log(given / given.mean())).mean())
    return total


def test_scores_of_labels_are_those_of_scipy() -> None:
    f = logits(7, 5, 4)
    p = probabilities(f)
    mean = p.mean(0)
    assert acquire.entropy(of_classes(f)).numpy() == pytest.approx(stats.entropy(mean, axis=-1), abs=1e-12)
    assert acquire.variance(of_classes(f)).numpy() == pytest.approx(1 - (mean**2).sum(-1), abs=1e-12)
    information = stats.entropy(p, np.broadcast_to(mean, p.shape), axis=-1).mean(0)
    assert acquire.bald(of_classes(f)).numpy() == pytest.approx(information, abs=1e-12)
    assert [joint_information(p, [row]) for row in range(5)] == pytest.approx(information, abs=1e-12)


def test_information_of_a_batch_is_that_of_all_labellings() -> None:
    f = logits(6, 5, 4)
    p = probabilities(f)
    found = acquire.batch(of_classes(f), 3)
    want = [joint_information(p, found.rows[:k].tolist()) for k in (1, 2, 3)]
    assert found.information.numpy() == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_picks_are_greedy_by_the_joint_information(seed: int) -> None:
    f = logits(6, 7, 3, seed)
    p = probabilities(f)
    rows: list[int] = []
    for _ in range(4):
        rows.append(max(set(range(7)) - set(rows), key=lambda row: joint_information(p, [*rows, row])))
    assert acquire.batch(of_classes(f), 4).rows.tolist() == rows
    assert rows[0] == int(acquire.bald(of_classes(f)).argmax())


def test_sampled_labellings_agree_with_all_of_them() -> None:
    """Of 5 labels of 4 classes, within 4 s.e. of the mean over 255 samples of 256 labellings of the first four."""
    f = logits(20, 6, 4)
    p = probabilities(f)
    exact = acquire.batch(of_classes(f), 5, configurations=256)
    rows = exact.rows.tolist()
    assert exact.information.numpy() == pytest.approx([joint_information(p, rows[:k]) for k in range(1, 6)], abs=1e-12)
    mass, gains = [], []
    for labels in itertools.product(range(4), repeat=4):
        given = np.prod([p[:, row, label] for row, label in zip(rows, labels, strict=False)], axis=0)
        weights = given / given.sum()
        mean = weights @ p[:, rows[4]]
        mass.append(given.mean())
        gains.append(weights @ stats.entropy(p[:, rows[4]], mean[None], axis=-1))
    assert np.dot(mass, gains) == pytest.approx(float(exact.information.diff()[-1]), abs=1e-12)
    spread = math.sqrt(np.dot(mass, np.square(gains)) - np.dot(mass, gains) ** 2)
    found = []
    for seed in range(10):
        sampled = acquire.batch(of_classes(f), 5, configurations=255, seed=seed)
        assert sampled.rows.tolist() == rows
        found.append(float(sampled.information[-1]))
        assert found[-1] == pytest.approx(float(exact.information[-1]), abs=4 * spread / math.sqrt(255))
    assert np.mean(found) == pytest.approx(float(exact.information[-1]), abs=4 * spread / math.sqrt(2550))
    again = acquire.batch(of_classes(f), 5, configurations=255, seed=9)
    assert float(again.information[-1]) == found[-1]
    assert len(set(found)) == 10


def test_rows_are_not_picked_where_their_labels_tell_nothing_more() -> None:
    f = torch.tensor([[[0.0, 900.0]] * 3, [[900.0, 0.0]] * 3])  # the first label says which of the two draws it is
    assert acquire.batch(of_classes(f), 1).information.tolist() == pytest.approx([math.log(2)])
    with pytest.raises(
        ValueError, match=r"to pick 2 rows; got 2 draws between which no other label tells after 1 rows"
    ):
        acquire.batch(of_classes(f), 2)


def test_epig_of_labels_is_that_of_all_pairs() -> None:
    f = logits(7, 5, 3)
    p = probabilities(f)
    targets = [1, 4, 4]
    want = np.zeros((5, 3))
    for n, (m, star) in itertools.product(range(5), enumerate(targets)):
        for a, b in itertools.product(range(3), repeat=2):
            both = (p[:, n, a] * p[:, star, b]).mean()
            want[n, m] += both * math.log(both / (p[:, n, a].mean() * p[:, star, b].mean()))
    found = acquire.epig(of_classes(f), targets)
    assert found.numpy() == pytest.approx(want.mean(1), abs=1e-12)
    assert torch.equal(found, acquire.epig(of_classes(f), np.array(targets)))
    independent = acquire.epig(of_classes(torch.stack((f[:1, 0], f[:1, 0]), 1).repeat(3, 1, 1)), [0])
    assert independent.numpy() == pytest.approx(0, abs=1e-14)


def test_yes_or_no_labels_are_classes() -> None:
    f = logits(9, 4, 1)
    two = of_classes(torch.cat([torch.zeros_like(f), f], -1))
    yes = Prediction(f, dist.Bernoulli(logits=f).to_event(1))
    for score in (acquire.entropy, acquire.variance, acquire.bald, lambda of: acquire.epig(of, [0, 2])):
        torch.testing.assert_close(score(yes), score(two))
    assert acquire.batch(yes, 4).rows.tolist() == acquire.batch(two, 4).rows.tolist()


def integral(loc: np.ndarray, scale: np.ndarray) -> float:
    """- int p ln p of a mixture of Gaussians, by SciPy, piece by piece."""

    def integrand(y: float) -> float:
        p = stats.norm.pdf(y, loc, scale).mean()
        return float(-p * np.log(p)) if p > 0 else 0.0

    ends = np.linspace((loc - 12 * scale).min(), (loc + 12 * scale).max(), 80)
    return sum(quad(integrand, a, b, epsabs=1e-12)[0] for a, b in itertools.pairwise(ends))


def test_scores_of_a_real_y_are_integrals() -> None:
    """Also where components are far from each other, and where their noise differs."""
    torch.manual_seed(0)
    f = torch.randn(3, 4) * torch.tensor([0.1, 1.0, 3.0, 20.0])
    scale = 0.3 + torch.rand(3, 4)
    entropy = np.array([integral(f[:, n].numpy(), scale[:, n].numpy()) for n in range(4)])
    prediction = of_reals(f, scale, joint=False)
    assert acquire.entropy(prediction).numpy() == pytest.approx(entropy, abs=1e-8)
    noise = stats.norm.entropy(0, scale.numpy()).mean(0)
    assert acquire.bald(prediction).numpy() == pytest.approx(entropy - noise, abs=1e-8)
    assert acquire.variance(prediction).numpy() == pytest.approx((scale**2).numpy().mean(0) + f.numpy().var(0))
    assert float(acquire.bald(of_reals(torch.tensor([[0.0], [40.0]]), 1.0))) == pytest.approx(math.log(2), abs=1e-8)
    assert float(acquire.bald(of_reals(torch.ones(5, 1), 1.0))) == pytest.approx(0, abs=1e-12)


def linear(rows: int, noise: float) -> tuple[np.ndarray, Prediction]:
    """f = W x for W ~ N(0, I) of three weights: Cov[f], and six draws that have exactly these moments."""
    x = np.random.default_rng(1).normal(size=(rows, 3))
    w = torch.eye(3).mul(math.sqrt(3)).repeat(2, 1) * torch.tensor([1.0] * 3 + [-1.0] * 3)[:, None]
    return x @ x.T, of_reals(w @ torch.as_tensor(x).T, noise)


def test_a_linear_model_has_its_closed_forms() -> None:
    """I = 1/2 ln det(I + K_AA / noise) of a batch, and of a pair by the determinants of the joint covariance."""
    noise = 0.7
    k, prediction = linear(8, noise)
    found = acquire.batch(prediction, 5)

    def information(rows: list[int]) -> float:
        return float(np.linalg.slogdet(np.eye(len(rows)) + k[np.ix_(rows, rows)] / noise**2)[1] / 2)

    rows = found.rows.tolist()
    assert found.information.numpy() == pytest.approx([information(rows[:n]) for n in range(1, 6)], rel=1e-10)
    for n, row in enumerate(rows):
        assert row == max(set(range(8)) - set(rows[:n]), key=lambda other: information([*rows[:n], other]))

    targets, want = [2, 7], np.zeros((8, 2))
    for n, (m, star) in itertools.product(range(8), enumerate(targets)):
        both = np.array([[k[n, n], k[n, star]], [k[star, n], k[star, star]]]) + noise**2 * np.eye(2)
        want[n, m] = 0.5 * math.log(both[0, 0] * both[1, 1] / np.linalg.det(both))
    assert acquire.epig(prediction, targets).numpy() == pytest.approx(want.mean(1), rel=1e-10)


def test_noise_that_differs_by_draw_is_in_both_terms() -> None:
    """The covariance has its mean variance, the entropy given f its mean logarithm; NumPy's determinants."""
    torch.manual_seed(0)
    f, scale = torch.randn(6, 5), 0.2 + torch.rand(6, 5)
    k = np.cov(f.numpy().T, bias=True) + np.diag((scale.numpy() ** 2).mean(0))
    found = acquire.batch(of_reals(f, scale), 3)
    rows = found.rows.tolist()
    given_f = np.log(scale.numpy()).mean(0)[rows].sum()
    assert float(found.information[-1]) == pytest.approx(np.linalg.slogdet(k[np.ix_(rows, rows)])[1] / 2 - given_f)
    pair = k[np.ix_([0, 1], [0, 1])]
    alone = math.log(pair[0, 0] * pair[1, 1]) / 2
    assert float(acquire.epig(of_reals(f, scale), [1])[0]) == pytest.approx(alone - np.linalg.slogdet(pair)[1] / 2)


def test_what_cannot_be_right_is_refused() -> None:
    f = logits(3, 4, 2)
    apart, one = of_classes(f, joint=False), of_classes(f[:1])
    assert acquire.bald(apart).shape == acquire.entropy(one).shape == acquire.variance(one).shape == (4,)
    for call in (lambda p: acquire.epig(p, [0]), lambda p: acquire.batch(p, 1)):
        with pytest.raises(ValueError, match="joint over the points, as of a fit; got one with joint=False"):
            call(apart)
    for call in (acquire.bald, lambda p: acquire.epig(p, [0]), lambda p: acquire.batch(p, 1)):
        with pytest.raises(ValueError, match=r"at least 2 draws .* got a distribution of y with 1 component"):
            call(one)
    for distribution, said in (
        (dist.Poisson(f.exp()[..., :1]).to_event(1), r"got Poisson with y of shape \[1\] in every row"),
        (dist.Normal(f, 1.0).to_event(1), r"got Normal with y of shape \[2\]"),
        (
            dist.Categorical(logits=f[:, :, None].repeat(1, 1, 3, 1)).to_event(1),
            r"got Categorical with y of shape \[3\]",
        ),
    ):
        for call in (acquire.entropy, acquire.variance, acquire.bald, lambda p: acquire.batch(p, 1)):
            with pytest.raises(TypeError, match=said):
                call(Prediction(f, distribution))
    with pytest.raises(ValueError, match="batch needs a prediction whose draws differ"):
        acquire.batch(of_classes(f[:1].repeat(3, 1, 1)), 2)
    with pytest.raises(ValueError, match="the logits of prediction must be finite"):
        acquire.bald(Prediction(f, dist.Categorical(logits=f.log(), validate_args=False)))
    quiet = of_reals(torch.tensor([[0.0, 1.0], [0.1, 2.0]]), 1e-7)
    with pytest.raises(ValueError, match=r"noise of at least 1e-6 of the standard deviation of y.* at row 1"):
        acquire.batch(quiet, 1)
    with pytest.raises(ValueError, match=r"at least 1/4096 of it.* got a standard deviation of 1e-07 .* at row 1"):
        acquire.bald(quiet)
    assert acquire.variance(quiet).tolist() == pytest.approx([0.0025, 0.25])
