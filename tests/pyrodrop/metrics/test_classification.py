"""Scores of class labels, against scoringrules, known miscalibrations and examples counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pyro.distributions as dist
import pytest
import scoringrules
import torch
from torch import Tensor

from pyrodrop import metrics
from pyrodrop.prediction.prediction import Prediction

pytestmark = pytest.mark.usefixtures("float64")


def classified(logits: Tensor) -> Prediction:
    return Prediction(f=logits, distribution=dist.Categorical(logits=logits))


def surely(confidence: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Two classes: the first has the confidence, and the label is the first where right."""
    return torch.stack([confidence, 1 - confidence], -1), 1 - right.long()


def test_scores_of_probabilities() -> None:
    """Brier as the sum over classes of the binary score; the log density and the accuracy by numpy."""
    p, y = torch.randn(50, 4).softmax(-1), torch.randint(4, (50,))
    of_class = [scoringrules.brier_score((y == c).double().numpy(), p[:, c].numpy()) for c in range(4)]
    assert metrics.brier(p, y) == pytest.approx(float(np.sum(of_class, 0).mean()), rel=1e-12)
    chosen = p.numpy()[np.arange(50), y.numpy()]
    assert metrics.classification_scores(p, y)["log_density"] == pytest.approx(np.log(chosen).mean(), rel=1e-12)
    assert metrics.accuracy(p, y) == np.mean(p.numpy().argmax(1) == y.numpy())
    assert metrics.brier(torch.eye(3), torch.tensor([1, 2, 0])) == 2, "the worst"
    assert metrics.brier(torch.eye(3), torch.arange(3)) == 0, "the best"


@pytest.mark.parametrize("at_a_time", [1, 2**22])
def test_a_prediction_is_scored_as_the_mean_of_its_draws(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether all draws or one at a time are in memory."""
    monkeypatch.setattr("pyrodrop.metrics.classification._NUMBERS", at_a_time)
    logits, y = torch.randn(9, 30, 3), torch.randint(3, (30,))
    p = logits.softmax(-1)
    for score in (metrics.accuracy, metrics.brier, metrics.ece):
        want = score(p.mean(0), y)
        assert score(classified(logits), y) == pytest.approx(want, rel=1e-12)
        assert score(p, y) == pytest.approx(want, rel=1e-12)


def test_log_likelihood_survives_logits_whose_probabilities_underflow() -> None:
    logits = torch.tensor([[[0.0, 2000.0]]])
    assert metrics.classification_scores(classified(logits), torch.tensor([0]))["log_density"] == pytest.approx(-2000)
    assert metrics.classification_scores(logits[0].softmax(-1), torch.tensor([0]))["log_density"] == -math.inf


def test_ece_of_known_miscalibration() -> None:
    """Right with probability c^2 where it says c ~ U(1/2, 1): E[c - c^2] = 1/6. And .9 said, .6 right: .3 exactly."""
    ece, c, n = metrics.ece, 0.5 + 0.5 * torch.rand(200_000), 200_000
    right = torch.rand(n) < c**2
    se = float((right.double() - c).std()) / math.sqrt(n)
    assert abs(ece(*surely(c, right)) - 1 / 6) < 4 * se
    right = torch.arange(1000) < 600
    assert ece(*surely(torch.full((1000,), 0.9), right)) == pytest.approx(0.3, rel=1e-12)


def test_ece_counted_by_hand() -> None:
    """A confidence on an edge belongs to the bin below (Guo et al. 2017)."""
    p, y = surely(torch.tensor([0.5, 0.6]), torch.tensor([False, True]))
    assert metrics.ece(p, y, bins=2) == pytest.approx((0.5 + 0.4) / 2)
    assert metrics.ece(p, y, bins=1) == pytest.approx(abs(0.5 - 0.55))
    p, y = surely(torch.tensor([0.6, 0.9, 0.7, 0.8]), torch.tensor([True, True, False, True]))
    curve = metrics.calibration_curve(p, y, 2)  # of equal width: all are in the upper half
    assert [float(v) for v in curve] == pytest.approx([0.75, 0.75, 1.0])
    assert metrics.ece(p, y, bins=2) == pytest.approx(0.0, abs=1e-12)


def test_classification_scores_are_plain_numbers_of_the_parts() -> None:
    logits, y = torch.randn(9, 40, 3), torch.randint(3, (40,))
    prediction = classified(logits)
    scores = metrics.classification_scores(prediction, y)
    assert all(type(value) is float for value in scores.values())
    assert scores["log_density"] == pytest.approx(float(prediction.log_density(y).mean()), rel=1e-12)
    assert scores["accuracy"] == metrics.accuracy(prediction, y)
    assert scores["brier"] == metrics.brier(prediction, y)
    assert scores["ece"] == metrics.ece(prediction, y)
    assert scores["entropy"] == pytest.approx(float(metrics.predictive_entropy(prediction).mean()))
    assert scores["mutual_information"] == pytest.approx(float(metrics.mutual_information(prediction).mean()))
    averaged = metrics.classification_scores(logits.softmax(-1).mean(0), y)
    assert set(scores) - set(averaged) == {"mutual_information"}
