"""An estimator as an entry of ScoringBench, which represents a predictive distribution by the probabilities of bins.

    e_n0 < ... < e_nK                   ends of the bins of row n, between the quantiles of Phi(-5) and Phi(5)
    p_nk = F_n(e_n,k+1) - F_n(e_nk)     F_n the cumulative distribution function of y_n; outer bins include the tails

Quantiles of Phi(z) for equally spaced z divide each row's range, and each part is divided into equal bins, so that bins of a
normal distribution are .025 standard deviations wide. ScoringBench computes in float32, so the ends are rounded to distinct
float32 numbers.

ScoringBench: https://github.com/jonaslandsgesell/ScoringBench, https://arxiv.org/abs/2603.29928.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from scipy.stats import norm

from pyrodrop.sklearn import NetworkRegressor

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[np.float64]]

_FAR, _PARTS, _BINS = 5.0, 100, 4  # standard deviations of a normal distribution, parts, and bins in each


@dataclass
class Bins:
    """A substitute for ScoringBench's `DistributionPrediction` with the same attributes, if it is not installed."""

    probas: Array  # [n, K]
    bin_edges: Array  # [n, K + 1]
    bin_midpoints: Array  # [n, K]
    mean: Array  # [n]


_Wrapper: Any = object
_Bins: Any = Bins
try:
    from scoringbench.wrappers.base import DistributionPrediction as _Bins  # type: ignore[import-not-found,no-redef]
    from scoringbench.wrappers.base import ProbabilisticWrapper as _Wrapper  # type: ignore[no-redef]
except ImportError:  # ScoringBench needs only these methods and attributes
    pass


class Entry(_Wrapper):  # type: ignore[misc]
    """An entry of ScoringBench: ``MODELS["pyrodrop"] = Entry``.

    Args:
        regressor: an estimator with methods ``fit(X, y)`` and ``prediction(X)``, such as `NetworkRegressor`; None for that
            with its defaults and a fixed seed.
    """

    def __init__(self, regressor: Any = None) -> None:
        self.regressor = NetworkRegressor(random_state=0) if regressor is None else regressor

    def fit(self, X: Any, y: Any) -> Self:
        """Train on a table X ``[n, D]`` of numbers and y ``[n]``."""
        self.regressor.fit(X, np.asarray(y, dtype=float))
        return self

    def predict(self, X: Any) -> Array:
        """The mean of y, ``[n]``."""
        return self.regressor.prediction(X).mean[:, 0].double().numpy()  # type: ignore[no-any-return]

    def predict_distribution(self, X: Any) -> Any:
        """The probabilities of bins, which differ between rows.

        Raises:
            TypeError: the regressor predicts whole numbers such as counts, which have no density.
        """
        predicted = self.regressor.prediction(X)
        ends = predicted.quantile(norm.cdf(np.linspace(-_FAR, _FAR, _PARTS + 1)))[..., 0].T
        if not ends.is_floating_point():
            raise TypeError("regressor must predict real numbers, which have a density; got one of whole numbers")
        edges = _increasing(_divided(ends.numpy()))
        below = [predicted.cdf(torch.as_tensor(edges[:, k, None])) for k in range(1, edges.shape[1] - 1)]
        inner = torch.cat(below, 1).double().numpy()
        at = np.concatenate([np.zeros((len(edges), 1)), inner, np.ones((len(edges), 1))], 1)
        return _Bins(
            probas=np.diff(at),
            bin_edges=edges,
            bin_midpoints=(edges[:, :-1] + edges[:, 1:]) / 2,
            mean=predicted.mean[:, 0].double().numpy(),
        )


def _divided(ends: Array) -> Array:
    """The ends of equal bins in every part, ``[n, parts * bins + 1]``, from the ends of the parts, ``[n, parts + 1]``."""
    steps = np.arange(_BINS) / _BINS
    inner = ends[:, :-1, None] + np.diff(ends)[..., None] * steps
    return np.concatenate([inner.reshape(len(ends), -1), ends[:, -1:]], 1)


def _increasing(edges: Array) -> Array:
    """Edges that are numbers of float32, each larger than the one before."""
    rounded = edges.astype(np.float32)
    for k in range(1, rounded.shape[1]):
        rounded[:, k] = np.maximum(rounded[:, k], np.nextafter(rounded[:, k - 1], np.float32(np.inf)))
    return rounded.astype(float)
