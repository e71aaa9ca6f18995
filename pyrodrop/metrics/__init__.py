"""Scores of predictions on held-out observations, and measures of their uncertainty.

Scores of real observations are in `regression`; scores of class labels, and whether confident predictions have a low loss,
in `classification`. `uncertainty` splits uncertainty into aleatoric and epistemic. `conformal` makes intervals and sets
with guaranteed coverage.
"""

from pyrodrop.metrics.classes import Predicted
from pyrodrop.metrics.classification import (
    CalibrationCurve,
    accuracy,
    adaptive_ece,
    aurc,
    auroc,
    brier,
    calibration_curve,
    classification_scores,
    ece,
    negative_log_likelihood,
    risk_coverage,
)
from pyrodrop.metrics.conformal import Conformal, conformal
from pyrodrop.metrics.regression import (
    coverage,
    crps,
    energy_score,
    pit,
    regression_scores,
    rmse,
)
from pyrodrop.metrics.uncertainty import (
    Uncertainty,
    entropy_split,
    mutual_information,
    predictive_entropy,
    variance_split,
)

__all__ = [
    "CalibrationCurve",
    "Conformal",
    "Predicted",
    "Uncertainty",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "auroc",
    "brier",
    "calibration_curve",
    "classification_scores",
    "conformal",
    "coverage",
    "crps",
    "ece",
    "energy_score",
    "entropy_split",
    "mutual_information",
    "negative_log_likelihood",
    "pit",
    "predictive_entropy",
    "regression_scores",
    "risk_coverage",
    "rmse",
    "variance_split",
]
