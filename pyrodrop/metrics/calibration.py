"""Calibration of a classifier: are 80 % of the predictions with confidence .8 correct?

    conf_n = max_c p_nc,   acc_n = [y_n = argmax_c p_nc]
    ECE    = sum_b |B_b| / N |mean_{B_b} acc - mean_{B_b} conf|

over bins B_b of the confidence, of equal width (Guo et al. 2017, On Calibration of Modern Neural Networks, arXiv:1706.04599,
eq. 3) or of equal numbers of predictions (Nguyen & O'Connor 2015, Posterior Calibration and Exploratory Analysis,
arXiv:1508.05154).

This estimate is biased: a perfectly calibrated classifier has an ECE of about sqrt(2 / pi) sum_b sqrt(|B_b| v_b) / N, where
v_b is the mean of conf (1 - conf) in the bin. The bias decreases as 1 / sqrt(N).
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyrodrop.constraints import Count, Flag, checked
from pyrodrop.metrics.classes import Predicted, class_labels, class_probabilities


class CalibrationCurve(NamedTuple):
    """Accuracy per bin of the confidence, for the B bins that are not empty, in order of increasing confidence.

    Attributes:
        confidence: mean confidence of the predictions in each bin, ``[B]``.
        accuracy: fraction of correct predictions in each bin, ``[B]``.
        share: fraction of all predictions that are in each bin, ``[B]``.
    """

    confidence: Tensor
    accuracy: Tensor
    share: Tensor

    @property
    def error(self) -> float:
        """Mean absolute difference of accuracy and confidence, weighted by share: the ECE."""
        return float((self.share * (self.accuracy - self.confidence).abs()).sum())


@checked
def calibration_curve(
    predicted: Predicted,
    y: Tensor,
    bins: Annotated[int, Count("the number of bins of the confidence", most=2**24)] = 15,
    *,
    equal_mass: Annotated[bool, Flag("whether bins have equal numbers of predictions")] = False,
) -> CalibrationCurve:
    """Accuracy as a function of confidence.

    Args:
        predicted: a `Prediction`, or class probabilities ``[N, C]`` or ``[T, N, C]`` for T samples.
        y: class labels, ``[N]``.
        bins: number of bins (0, 1 / bins], ..., (1 - 1 / bins, 1] of the confidence.
        equal_mass: use bins with equal numbers of predictions instead. Predictions with equal confidence are in the same
            bin, so the result does not depend on the order of the rows.

    Raises:
        ValueError: `bins` is below 1, or shapes or values of probabilities or labels are invalid.
        TypeError: an argument is of another type.
    """
    p = class_probabilities(predicted)
    confidence, choice = p.max(-1)
    right = (choice == class_labels(y, p)).double()
    if equal_mass:
        less_sure = torch.searchsorted(confidence.sort().values, confidence)
        place = less_sure * bins // len(confidence)
    else:
        edges = torch.linspace(0, 1, bins + 1, dtype=p.dtype, device=p.device)
        place = torch.bucketize(confidence, edges[1:-1])
    sizes, total, hits = (
        torch.zeros(bins, dtype=p.dtype, device=p.device).index_add(0, place, values)
        for values in (torch.ones_like(confidence), confidence, right)
    )
    held = sizes > 0
    sizes = sizes[held]
    return CalibrationCurve(total[held] / sizes, hits[held] / sizes, sizes / len(confidence))


def ece(predicted: Predicted, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error, from 0 to 1, with bins of equal width; see `calibration_curve` for the arguments."""
    return calibration_curve(predicted, y, bins).error


def adaptive_ece(predicted: Predicted, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error, from 0 to 1, with bins of equal numbers of predictions; see `calibration_curve`."""
    return calibration_curve(predicted, y, bins, equal_mass=True).error
