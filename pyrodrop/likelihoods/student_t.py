"""Student's t likelihood: real observations with outliers.

(y - f) / scale ~ t(df)        y, f [N, D], in the units of y
"""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrodrop.arguments import real
from pyrodrop.likelihoods.dispersed import Dispersed, Dispersion
from pyrodrop.scaling import Standardize


class StudentT(Dispersed):
    """Independent noise with heavier tails than a Gaussian's.

    Args:
        df: degrees of freedom, positive and at most 1000, where the distribution is nearly Gaussian. The variance is finite
            for df above 2.
        scale: positive, in the units of y, or a list with one value per column of y. If None, it is learned, starting from
            its estimate for y of the training data. With ``"network"`` it is the scale of y times the exponential of a
            second output, one per example.
        learned: whether a numeric `scale` is trained, with this initial value and one value per column of y ``[N, D]``.

    Raises:
        ValueError: `df` or `scale` is not positive, or `learned` is True and the network predicts the scale.
        TypeError: `df` is no number, `scale` neither a number nor a list of such, or `learned` neither True nor False.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> y = likelihoods.StudentT(4.0, scale=0.5)(torch.zeros(1, 1), Standardize(loc=10.0, scale=2.0))
        >>> y.mean, y.stddev
        (tensor([[10.]]), tensor([[0.7071]]))
    """

    parameter = "scale"

    def __init__(self, df: float = 4.0, scale: Dispersion = None, *, learned: bool = False) -> None:
        super().__init__(scale, learned, "the scale of the noise, in the units of y")
        self.scales = (*self.scales, "df")
        self.register_buffer("df", torch.tensor(real(df, "df", "the degrees of freedom", above=0, most=1000)))

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        f = targets.inverse(output)
        df: Tensor = self.df  # type: ignore[assignment]
        return dist.StudentT(df.to(f.dtype).expand_as(f), f, parameter.expand_as(f))

    def unit(self, targets: Standardize) -> Tensor:
        return targets.scale

    def estimate(self, y: Tensor) -> Tensor:
        from scipy.special import stdtrit  # SciPy takes a while to import

        half = (y - y.median()).abs().median()
        return half / float(stdtrit(float(self.df), 0.75)) if half > 0 else y.std(correction=0)
