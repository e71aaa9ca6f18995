"""Likelihoods of real numbers, and of positive ones with the logarithm as link.

    y ~ N(f, 1 / precision)                                  y, f  [N, D]
    y ~ N(f, s^2 a exp(-r)),   network output = (f, r)       heteroscedastic; s is the scale of y, a = 1 by default
    y ~ N(f, s^2 a (ln(1 + exp r) + 1e-6))                   with the link softplus; a is not trained
    ln y ~ N(c + d f, d^2 v(r))                              positive; c, d: mean and standard deviation of ln y, v as above
    (y - f) / scale ~ t(df)                                  with outliers; scale in the units of y

The precision tau is in the original units of y, to the power -2, also if the network works in standardised units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.checks import known, real
from pyrodrop.likelihoods.dispersed import Dispersed, Dispersion, halves
from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.scaling import Standardize

_FAR = 80.0  # bound of |r|, beyond which the variance exp(-r) or its inverse leaves the range of float32
_SD: dict[str, Callable[[Tensor], Tensor]] = {  # the standard deviation of standardised y, as a function of r
    "exp": lambda r: (-r.clamp(-_FAR, _FAR) / 2).exp(),
    "softplus": lambda r: (torch.logaddexp(r, r.new_zeros(())) + 1e-6).sqrt(),
}


class Gaussian(Dispersed):
    """Independent Gaussian observation noise with the same precision for all examples.

    Args:
        precision: tau, positive, in units of y to the power -2, the same for all columns of y ``[N, D]``, or a list of one
            value per column. If None, it is learned, starting from one over the variance of each column in the training
            data, as if x explained nothing; before training it is 1.
        learned: whether the precision is trained together with the guide, by maximising the ELBO, one value per column of y
            ``[N, D]``. `precision` is then the initial value. For y of other shapes, such as images, it is one value; if
            `precision` is None, it starts from one over the mean of the variances. Always True if `precision` is
            None.

    Raises:
        ValueError: `precision` is outside [1e-36, 1e36], the range in which float32 can represent it and its inverse; on
            calls: the number of values in a list differs from the network's number of outputs.
        TypeError: `precision` is neither a real number nor a list of such, or `learned` is neither True nor False.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> likelihood = likelihoods.Gaussian(precision=4.0)
        >>> y = likelihood(torch.zeros(3, 1), Standardize(loc=10.0, scale=2.0))
        >>> y.mean.squeeze(), y.stddev.squeeze()
        (tensor([10., 10., 10.]), tensor([0.5000, 0.5000, 0.5000]))
    """

    copies = 4
    parameter = "precision"

    def __init__(self, precision: float | Sequence[float] | None = None, *, learned: bool = False) -> None:
        super().__init__(precision, learned, "one over the variance of the observation noise")

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        f = self.location(output, targets)
        sd = parameter.to(f.dtype).sqrt().reciprocal()  # not rsqrt: its gradient has sd^3, beyond float32 at 1e13
        return dist.Normal(f, sd.expand_as(f))

    def estimate(self, y: Tensor) -> Tensor:
        return y.var(correction=0)

    def estimates(self, y: Tensor) -> Tensor:
        """One over the variances of the columns."""
        return 1 / super().estimates(y)


class HeteroscedasticGaussian(Likelihood):
    """Gaussian observation noise whose variance the network predicts.

    The network has ``2 D`` outputs for y ``[N, D]``: the first half is the mean, the second half r the noise, both of the
    standardised y.

    Args:
        link: the variance as a function of r: ``exp``, exp(-r), so that r is the log precision, clamped to [-80, 80], where
            float32 can represent the exponential; ``softplus``, ln(1 + exp r) + 1e-6 (Lakshminarayanan et al. 2017,
            arXiv:1612.01474), which grows linearly in r, so that the noise stays finite far from the training data.

    Attributes:
        factor: factor a of the variance, a number or ``[D]``; 1 by default, and not trained.

    Raises:
        ValueError: there is no such link; on calls: the number of outputs is odd.
        TypeError: `link` is no string.
    """

    from_data = ("factor",)
    factor: Tensor

    def __init__(self, link: Literal["exp", "softplus"] = "exp") -> None:
        super().__init__()
        self.link: str = known(link, _SD, "link")
        self.register_buffer("factor", torch.tensor(1.0))

    def describe(self) -> str:
        return type(self).__name__ + (f"(link={self.link})" if self.link != "exp" else "")

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        return dist.Normal(self.location(output, targets), self.sd(output, targets)).to_event(1)

    def sd(self, output: Tensor, targets: Standardize) -> Tensor:
        """Standard deviation of the noise, in the units of y."""
        return targets.scale * self.factor.sqrt() * _SD[self.link](halves(output, self.describe())[1])

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return targets.inverse(output.chunk(2, -1)[0])

    def outputs(self, targets: int) -> int:
        return 2 * targets

    @property
    def variance_at_zero(self) -> float:
        """The variance of standardised y, without `factor`, at r = 0."""
        return float(_SD[self.link](torch.zeros(1, dtype=torch.float64)).square())


class HeteroscedasticLogNormal(HeteroscedasticGaussian):
    """Positive observations whose logarithm is Gaussian, with a variance that the network predicts.

    The network has ``2 D`` outputs for y ``[N, D]``, as in `HeteroscedasticGaussian`, for ln y standardised to mean 0 and
    standard deviation 1 in the training data. f is the median m of y. The mean of y is m exp(v / 2), where v is the variance
    of ln y. It can be far beyond the data in a few rows with a large v; there, use the median as the prediction.

    Args:
        link: as for `HeteroscedasticGaussian`.

    Attributes:
        factor: factor of the variance; 1 by default, and not trained.
        of_log: the standardisation of ln y.

    Raises:
        ValueError, TypeError: as `HeteroscedasticGaussian`.
    """

    def __init__(self, link: Literal["exp", "softplus"] = "exp") -> None:
        super().__init__(link)
        self.of_log = Standardize()

    def start(self, y: Tensor) -> None:
        if self.of_log.loc.dim() == 0:  # otherwise it is known, as when training continues
            dtype = y.dtype if y.is_floating_point() else torch.get_default_dtype()
            self.of_log = Standardize.of(y.detach().double().log()).to(dtype)

    def units(self, targets: Standardize) -> Standardize:
        return Standardize()

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        log_median = super().location(output, self.of_log)
        return dist.LogNormal(log_median, self.sd(output, self.of_log)).to_event(1)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return super().location(output, self.of_log).exp()


class StudentT(Dispersed):
    """Independent noise with heavier tails than a Gaussian's.

    Args:
        df: degrees of freedom, positive and at most 1000, where the distribution is nearly Gaussian. The variance is finite
            for df above 2.
        scale: positive, in the units of y, or a list with one value per column of y. If None, it is learned, starting from
            its estimate for y of the training data.
        learned: whether a numeric `scale` is trained, with this initial value and one value per column of y ``[N, D]``.

    Raises:
        ValueError: `df` or `scale` is not positive.
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
        self.register_buffer("df", torch.tensor(real(df, "df", "the degrees of freedom", above=0, most=1000)))

    def distribution(self, output: Tensor, parameter: Tensor, targets: Standardize) -> Any:
        f = targets.inverse(output)
        df: Tensor = self.df  # type: ignore[assignment]
        return dist.StudentT(df.to(f.dtype).expand_as(f), f, parameter.expand_as(f))

    def estimate(self, y: Tensor) -> Tensor:
        from scipy.special import stdtrit  # SciPy takes a while to import

        half = (y - y.median()).abs().median()
        return half / float(stdtrit(float(self.df), 0.75)) if half > 0 else y.std(correction=0)
