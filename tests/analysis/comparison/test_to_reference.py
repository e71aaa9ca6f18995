"""Fits beside a reference: `compare(fits, data, reference=...)`."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import norm, wasserstein_distance

import pyrodrop
from pyrodrop import guides
from pyrodrop.analysis.comparison.to_reference import COLUMNS, distances, sign_probability
from pyrodrop.analysis.gp import GaussianProcess, GaussianProcessClassifier
from pyrodrop.prediction.prediction import Prediction


@dataclasses.dataclass
class Line:
    """f = a x with a ~ N(mean, sd^2), and noise with standard deviation 0.5."""

    mean: float
    sd: float
    joint: bool = True

    def predict(self, x: torch.Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
        a = self.mean + self.sd * torch.randn(num_samples, 1, 1, generator=torch.Generator().manual_seed(seed))
        return Prediction(f=a * x, distribution=dist.Normal(a * x, 0.5).to_event(1), seed=seed, joint=self.joint)


X = torch.tensor([[-1.0], [0.5], [2.0]])
DATA = (X, torch.tensor([[-0.8], [0.7], [1.0]]))


def test_distances_of_lines_are_their_closed_forms() -> None:
    """f(x) ~ N(m x, s^2 x^2), y(x) ~ N(m x, s^2 x^2 + 1/4), Cov[f(x), f(x')] = s^2 x x'.

    Of S samples a mean has the standard error s / sqrt(S), s / sqrt(2 S) a standard deviation, and relative to itself
    sqrt(2 / S) a variance; there are two sets, and 4.5 standard errors are allowed.
    """
    lines = {"moved": Line(2.0, 0.3), "wide": Line(1.0, 0.6), "same": Line(1.0, 0.3)}
    table = pyrodrop.compare(lines, DATA, reference=Line(1.0, 0.3), num_samples=10_000)
    size = X.abs().mean().item()
    assert table.rows["moved"]["wasserstein"] == pytest.approx(1.0 * size, abs=4.5 * 0.3 * math.sqrt(2 / 10_000) * size)
    assert table.rows["wide"]["wasserstein"] == pytest.approx(
        0.3 * size, abs=4.5 * math.hypot(0.3, 0.6) / math.sqrt(20_000) * size
    )
    assert table.rows["wide"]["covariance"] == pytest.approx(0.6**2 / 0.3**2 - 1, abs=4.5 * 4 * math.sqrt(4 / 10_000))
    assert table.rows["wide"]["correlation"] == pytest.approx(0, abs=1e-5)
    for name, ratio in (("moved", 1.0), ("wide", 2.0), ("same", 1.0)):
        assert table.rows[name]["spread"] == pytest.approx(ratio, rel=4.5 / math.sqrt(10_000))
    sd = (0.3**2 * X**2 + 0.25).sqrt()
    want = (2 * norm.cdf((X.abs() / (2 * sd)).numpy()) - 1).mean()
    assert table.rows["moved"]["total_variation"] == pytest.approx(want, abs=0.01)
    assert table.reference is not None
    assert table.reference["spread"] == pytest.approx(1.0, rel=4.5 / math.sqrt(10_000))
    for name in ("total_variation", "wasserstein", "covariance"):
        floor, same = table.reference[name], table.rows["same"][name]
        assert floor is not None
        assert same is not None
        assert 0 < same < 4.5 * math.sqrt(4 / 10_000)  # the samples of a fit are not those of the reference
        assert 0 < floor < 4.5 * math.sqrt(4 / 10_000)
    assert all(row["agreement"] is None for row in table.rows.values())


@dataclasses.dataclass
class Stored:
    """Stored draws of a, ``[chains, draws]``, in the order of the chains."""

    samples: dict[str, torch.Tensor]
    stats: dict[str, torch.Tensor]

    def predict(self, x: torch.Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
        a = self.samples["a"].flatten()
        a = a[torch.arange(num_samples) * len(a) // num_samples][:, None, None]
        return Prediction(f=a * x, distribution=dist.Normal(a * x, 0.5).to_event(1), seed=seed)


@pytest.mark.parametrize(
    ("a", "count"),
    [
        (torch.tensor([[1.0] * 6, [1.0] * 6, [3.0] * 6, [3.0] * 6]), 12),  # two chains elsewhere than the others
        (torch.tensor([[1.0] * 6, [9.0] * 6, [3.0] * 6]), 6),  # the one in the middle is left out
        (torch.tensor([[1.0, 1.0, 9.0, 3.0, 3.0]]), 2),  # one chain that drifts
    ],
    ids=["even", "odd", "one chain"],
)
def test_a_reference_that_keeps_its_draws_is_halved_by_chains(a: torch.Tensor, count: int) -> None:
    table = pyrodrop.compare({"a": Line(1.0, 0.1)}, DATA, reference=Stored({"a": a}, {"lp": a}))
    assert table.reference is not None
    assert table.reference["wasserstein"] == pytest.approx(2 * X.abs().mean().item())
    assert f"reference: distances between two independent sets of {count} of its samples" in table.notes
    assert any("fewer than the 1000 of the fits" in note for note in table.notes)


def test_log_density_difference_is_paired(small: Any) -> None:
    test, process = small.waves(30, seed=1), GaussianProcess(small.waves(), "matern-5/2")
    fits = {"dropout": small.fitted(small.dropout), "mean field": small.fitted(guides.MeanField), "same": process}
    table = pyrodrop.compare(fits, test, reference=process, num_samples=200)
    values = {name: fit.predict(test.x, 200).log_density(test.y.double()).double() for name, fit in fits.items()}
    for name in ("dropout", "mean field"):
        difference = values[name] - values["same"]
        mean, se = float(difference.mean()), float(difference.std()) / math.sqrt(30)
        row = table.rows[name]
        assert row["to_reference"] == pytest.approx(mean, rel=1e-4)
        assert row["to_reference_se"] == pytest.approx(se, rel=1e-4)
        assert row["sign_probability"] == pytest.approx(norm.cdf(abs(mean) / se), rel=1e-4)
        assert "difference" not in row
        assert "elbo" not in row
    assert table.rows["same"]["to_reference"] == 0
    assert table.rows["same"]["sign_probability"] is None
    assert list(table.rows) == sorted(values, key=lambda name: -float(values[name].mean()))
    assert any("P(sign) is rough for fewer than 100 observations; there are 30" in note for note in table.notes)


def test_probability_of_a_sign() -> None:
    assert sign_probability(1.0, 1.0) == sign_probability(-1.0, 1.0) == pytest.approx(norm.cdf(1))
    assert sign_probability(0.0, 1.0) == 0.5
    assert sign_probability(0.1, 0.0) == 1
    assert sign_probability(0.0, 0.0) is None
    assert sign_probability(1.0, None) is None


def test_sorted_by_a_distance_and_written_as_json(small: Any) -> None:
    lines = {"far": Line(3.0, 0.2), "near": Line(1.1, 0.2), "between": Line(2.0, 0.2)}
    for by in ("total_variation", "wasserstein"):
        table = pyrodrop.compare(lines, DATA, by, reference=Line(1.0, 0.2))
        assert list(table.rows) == ["near", "between", "far"]
        assert table.best == "near"
    written = table.to_dict()
    assert list(written) == ["near", "between", "far", "reference"]
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    one = pyrodrop.compare(lines, (X[:1], DATA[1][:1]), "wasserstein", reference=Line(1.0, 0.2))
    assert one.rows["near"]["to_reference_se"] is None
    assert any("no correlation distance of near: there is one point" in note for note in one.notes)


def test_classes(small: Any) -> None:
    data, test = small.classes(), small.classes(60, seed=3)
    fits = {"dropout": small.fitted(small.dropout, small.classifier(), data)}
    process = GaussianProcessClassifier(data, "matern-5/2")
    table = pyrodrop.compare(fits, test, "agreement", reference=process, num_samples=300)
    row = table.rows["dropout"]
    p = fits["dropout"].predict(test.x, 300).f.softmax(-1).mean(0)
    q = process.predict(test.x, 5000, seed=9).f.softmax(-1).mean(0)
    assert row["total_variation"] == pytest.approx(float((p - q).abs().sum(-1).mean()) / 2, abs=0.03)
    assert row["agreement"] == pytest.approx(float((p.argmax(-1) == q.argmax(-1)).float().mean()), abs=0.07)
    f, g = (
        p - p.mean(-1, keepdim=True) for p in (fits["dropout"].predict(test.x, 300).f, process.predict(test.x, 5000).f)
    )
    want = (f.double().var(0).mean(-1) / g.double().var(0).mean(-1)).sqrt().median()
    assert row["spread"] == pytest.approx(float(want), rel=0.2)
    assert row["covariance"] is not None
    both = pyrodrop.compare(fits | {"itself": process}, test, "agreement", reference=process, num_samples=300)
    assert list(both.rows) == ["itself", "dropout"]  # the larger agreement first
    shown = str(table)
    assert "agree" in shown
    assert "W2 of f" in shown
    with pytest.raises(ValueError, match="by='agreement' needs a fit that has this distance"):
        pyrodrop.compare({"a": Line(1.0, 0.2)}, DATA, "agreement", reference=Line(1.0, 0.2), num_samples=30)


def test_distances_of_classes_are_free_of_a_shift_of_the_logits() -> None:
    torch.manual_seed(0)
    f, g, shift = torch.randn(30, 5, 3), torch.randn(30, 5, 3), 10 * torch.randn(30, 5, 1)
    plain, moved, other = (Prediction(x, dist.Categorical(logits=x)) for x in (f, f + shift, g))
    found, want = distances("a", moved, other).values, distances("a", plain, other).values
    for name in COLUMNS:
        assert found[name] == pytest.approx(want[name], rel=1e-4)
    centred = [p.numpy() - p.numpy().mean(-1, keepdims=True) for p in (f, g)]
    each = [wasserstein_distance(*(np.sort(p[:, n, c]) for p in centred)) for n in range(5) for c in range(3)]
    assert found["wasserstein"] >= np.mean(each)  # type: ignore[operator]  # W_1 <= W_2
    squares = ((np.sort(centred[0], 0) - np.sort(centred[1], 0)) ** 2).mean(0)
    assert found["wasserstein"] == pytest.approx(np.sqrt(squares).mean(), rel=1e-4)


def test_what_a_prediction_cannot_give_is_said(small: Any) -> None:
    table = pyrodrop.compare({"local": Line(1.0, 0.2, joint=False)}, DATA, reference=Line(1.0, 0.2))
    assert table.rows["local"]["covariance"] is None
    assert table.rows["local"]["wasserstein"] is not None
    assert table.rows["local"]["spread"] == pytest.approx(1, rel=0.2)
    fixed = pyrodrop.compare({"a": Line(1.0, 0.2)}, DATA, reference=Line(1.0, 0.0), num_samples=20)
    assert fixed.rows["a"]["spread"] is None
    assert "spread" not in str(fixed)
    assert any("no covariance of local: its samples" in note for note in table.notes)
    student = Prediction(torch.randn(9, 2), dist.StudentT(3.0, torch.zeros(9, 2), 1.0))
    found = distances("heavy", student, student)
    assert found.values["total_variation"] is None
    assert found.notes == [
        "no total variation of heavy: total variation needs classes, or real y with Normal or Laplace noise; StudentT is "
        "neither"
    ]
    assert set(found.values) == set(COLUMNS)


def test_mistakes(small: Any) -> None:
    line = Line(1.0, 0.2)
    with pytest.raises(
        ValueError, match=r"by='total_variation' is a distance from a reference: compare\(fits, data, ref"
    ):
        pyrodrop.compare({"a": line}, DATA, "total_variation")
    with pytest.raises(ValueError, match="reference= needs points to predict at"):
        pyrodrop.compare({"a": line}, by="elbo", reference=line)
    with pytest.raises(ValueError, match="'reference' is the name of the reference's own row"):
        pyrodrop.compare({"reference": line}, DATA, reference=line)
    with pytest.raises(
        ValueError, match=r"y \[3, 1\] \(Normal\) and f \[3, 1\], the reference y \[2\] \(Categorical\)"
    ):
        distances(
            "a", line.predict(X, 5), Prediction(torch.zeros(5, 2, 4), dist.Categorical(logits=torch.zeros(5, 2, 4)))
        )
    four, three = (Prediction(torch.zeros(5, 2, c), dist.Categorical(logits=torch.zeros(5, 2, c))) for c in (4, 3))
    with pytest.raises(
        ValueError, match=r"'a' predicts y \[2\] \(Categorical\) and f \[2, 4\], the reference .* f \[2, 3\]"
    ):
        distances("a", four, three)
