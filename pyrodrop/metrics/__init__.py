"""Scores of predictions on held-out observations, and measures of their uncertainty.

Scores of real observations are in `regression`; scores of class labels in `classification`. `uncertainty` splits uncertainty
into aleatoric and epistemic. `conformal` makes intervals and sets with guaranteed coverage.
"""

from pyrodrop.checks import public
from pyrodrop.metrics.classes import Predicted
from pyrodrop.metrics.classification import (
    CalibrationCurve,
    accuracy,
    brier,
    calibration_curve,
    classification_scores,
    ece,
)
from pyrodrop.metrics.conformal import Conformal, conformal
from pyrodrop.metrics.regression import (
    coverage,
    crps,
    pit,
    regression_scores,
    rmse,
)
from pyrodrop.metrics.uncertainty import (
    Uncertainty,
    entropy_split,
    mutual_information,
    predictive_entropy,
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
