"""Calibration of a classifier: of the predictions made with confidence .8, are 80 % right?

    conf_n = max_c p_nc,   acc_n = [y_n = argmax_c p_nc]
    ECE    = sum_b |B_b| / N |mean_{B_b} acc - mean_{B_b} conf|

over bins B_b of the confidence: of equal width (Guo et al. 2017, On Calibration of Modern Neural Networks, eq. 3), or of
equal numbers of predictions (Nguyen & O'Connor 2015, Posterior Calibration and Exploratory Analysis).

An estimate: even a calibrated classifier has an ECE of about sqrt(2 / pi) sum_b sqrt(|B_b| v_b) / N, v_b the mean of
conf (1 - conf) in the bin, which goes as 1 / sqrt(N).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyrodrop.metrics.classes import Predicted, class_labels, class_probabilities


class CalibrationCurve(NamedTuple):
    """By bin that holds predictions, in order of confidence: their mean confidence, accuracy and share of all, ``[B]``."""

    confidence: Tensor
    accuracy: Tensor
    share: Tensor

    @property
    def error(self) -> float:
        """Mean distance of accuracy from confidence, weighted by share."""
        return float((self.share * (self.accuracy - self.confidence).abs()).sum())


def calibration_curve(predicted: Predicted, y: Tensor, bins: int = 15, *, equal_mass: bool = False) -> CalibrationCurve:
    """Accuracy by confidence.

    Args:
        predicted: a prediction, or probabilities ``[N, C]`` or ``[T, N, C]``.
        y: labels, ``[N]``.
        bins: of the confidence, (0, 1 / bins], ... (1 - 1 / bins, 1].
        equal_mass: bins that hold equally many predictions instead. Equal confidences share a bin, so that the
            order of the rows does not matter.
    """
    if bins < 1:
        raise ValueError(f"bins is the number of bins of the confidence and must be at least 1; got {bins}")
    p = class_probabilities(predicted)
    confidence, choice = p.max(-1)
    right = (choice == class_labels(y, p)).double()
    if equal_mass:
        less_sure = torch.searchsorted(confidence.sort().values, confidence)
        place = less_sure * bins // len(confidence)
    else:
        edges = torch.linspace(0, 1, bins + 1, dtype=p.dtype, device=p.device)
        place = torch.bucketize(confidence, edges[1:-1])
    count, total, hits = (
        torch.zeros(bins, dtype=p.dtype, device=p.device).index_add(0, place, values)
        for values in (torch.ones_like(confidence), confidence, right)
    )
    held = count > 0
    count = count[held]
    return CalibrationCurve(total[held] / count, hits[held] / count, count / len(confidence))


def ece(predicted: Predicted, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error over bins of equal width; see `calibration_curve` for the arguments."""
    return calibration_curve(predicted, y, bins).error


def adaptive_ece(predicted: Predicted, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error over bins of equal numbers of predictions; see `calibration_curve`."""
    return calibration_curve(predicted, y, bins, equal_mass=True).error
