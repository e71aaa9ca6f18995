"""Paired comparison of two predictors on the same labelled test set, with bootstrap standard errors.

    s.e. of a difference = its standard deviation over bootstrap draws of the test set's rows, the same rows for both

Efron & Tibshirani (1993), An Introduction to the Bootstrap, chapter 6. The errors do not include the variation between
trainings.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyrodrop.analysis.comparison.predicts import Predicts
from pyrodrop.data import Dataset
from pyrodrop.metrics import Predicted, brier, classification_scores, ece
from pyrodrop.metrics.classification import class_probabilities


def _nll(predicted: Predicted, y: Tensor) -> float:
    return -classification_scores(predicted, y)["log_density"]


JUDGED = {"ece": ece, "nll": _nll, "brier": brier}
_RESAMPLES = 200


def compared(
    predictors: Mapping[str, Predicts], test: Dataset, draws: int, seed: int
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Scores by predictor and, if there are two, the differences second - first of the scores in `JUDGED`, with errors."""
    scores, probabilities = {}, []
    for name, predictor in predictors.items():
        prediction = predictor.predict(test.x, draws, seed=seed)
        p = class_probabilities(prediction)
        scores[name] = {"error_percent": 100 * float((p.argmax(-1) != test.y).double().mean())}
        scores[name] |= {
            "nll": _nll(prediction, test.y),
            **classification_scores(prediction, test.y),
        }
        del scores[name]["log_density"], scores[name]["accuracy"]
        probabilities.append(p.clamp_min(torch.finfo(torch.float32).tiny))
    if len(probabilities) != 2:
        return scores, {}
    generator = torch.Generator().manual_seed(seed)
    first, second = probabilities
    resampled: dict[str, list[float]] = {name: [] for name in JUDGED}
    for _ in range(_RESAMPLES):
        rows = torch.randint(len(test), (len(test),), generator=generator)
        for name, score in JUDGED.items():
            resampled[name].append(score(second[rows], test.y[rows]) - score(first[rows], test.y[rows]))
    names = list(predictors)
    difference = {
        name: {
            "difference": scores[names[1]][name] - scores[names[0]][name],
            "se": float(torch.tensor(values, dtype=torch.float64).std()),
        }
        for name, values in resampled.items()
    }
    return scores, difference
