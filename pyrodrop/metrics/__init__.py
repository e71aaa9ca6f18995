"""Scores of predictions on held-out observations, and measures of their uncertainty.

Scores of real observations are in `regression`; scores of class labels, and their uncertainty, in `classification`.
`conformal` makes intervals and sets with guaranteed coverage.
"""

from pyrodrop.checks import public
from pyrodrop.metrics.classification import (
    CalibrationCurve,
    Predicted,
    Uncertainty,
    accuracy,
    brier,
    calibration_curve,
    classification_scores,
    ece,
    entropy_split,
    mutual_information,
    predictive_entropy,
)
from pyrodrop.metrics.conformal import Conformal, conformal
from pyrodrop.metrics.regression import (
    coverage,
    crps,
    pit,
    regression_scores,
    rmse,
)

__all__ = [
    "CalibrationCurve",
    "Conformal",
    "Predicted",
    "Uncertainty",
    "accuracy",
    "brier",
    "calibration_curve",
    "classification_scores",
    "conformal",
    "coverage",
    "crps",
    "ece",
    "entropy_split",
    "mutual_information",
    "pit",
    "predictive_entropy",
    "regression_scores",
    "rmse",
]

public(__name__, __all__)
