"""Calibration after training: predictions of a run are adjusted to held-out observations.

    temperature, classes     p(y | f_t) ~ exp(f_t / T)
    temperature, numbers     mu_t <- m + T (mu_t - m),   sigma_t <- T sigma_t,   with the predictive mean m
    residuals, numbers       p(y | x) = mean_i t_4(y; m + s z_i, s h),   z_i = (y_i - m_i) / s_i,   i a held-out row

T maximises the log density of the held-out observations under the mixture over t. It is applied to every draw, not to their
mean. Guo et al. (2017), On Calibration of Modern Neural Networks, section 4.2, arXiv:1706.04599; Rahaman &
Thiery (2021), Uncertainty Quantification and Deep Ensembles, arXiv:2007.08792, for ensembles; Levi et al. (2022), Evaluating
and Calibrating Uncertainty Prediction in Regression Tasks, arXiv:1905.11659, for standard deviations. The residuals are
those of CRUDE (Zelikman, Healy, Zhou & Avati 2020, arXiv:2005.12496), m and s the predictive mean and standard deviation,
here smoothed by a kernel of Silverman's width h. The kernel is a Student's t with 4 degrees of freedom, because under a
Gaussian kernel an observation beyond all residuals would have almost no density.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyro.distributions as dist
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal, StudentT

from pyrodrop.arguments import instance, real, tensor
from pyrodrop.constraints import checked
from pyrodrop.likelihoods import elements
from pyrodrop.prediction.prediction import Prediction

_log = logging.getLogger("pyrodrop")
_MOST = 1000  # residuals that are kept
_RANGE = math.log(50.0)  # ln T is searched between -_RANGE and _RANGE
_FEWEST = 20  # residuals
_DEGREES = 4.0  # degrees of freedom of the kernel
_GRID = 41  # number of values of ln T, the best of which is refined


@dataclass(frozen=True)
class Calibration:
    """The result of `calibrate`: a function from predictions to calibrated predictions.

    Attributes:
        temperature: T, above 0; above 1 if the predictions were overconfident.
        residuals: z, ``[K, ...]`` with the shape of y at a point; None if the temperature is used.

    Raises:
        TypeError, ValueError: `temperature` is no positive number, or `residuals` no finite floating-point tensor.
    """

    temperature: float = 1.0
    residuals: Tensor | None = None

    def __post_init__(self) -> None:
        real(self.temperature, "temperature", "what logits are divided by", above=0)
        if self.residuals is not None:
            tensor(self.residuals, "residuals", "standardised residuals", floating=True)

    def __call__(self, prediction: Prediction) -> Prediction:
        """The calibrated prediction.

        With a temperature, the draws are still draws of functions (`joint`); with residuals they are not.

        Raises:
            TypeError: `prediction` is no `Prediction`, or its distribution does not support this calibration.
            ValueError: the residuals have another shape than y at a point; with them, a standard deviation is not finite.
        """
        instance(prediction, Prediction, "prediction", "a Prediction, such as run.predict(x)")
        of_element, of_y = elements(prediction.distribution), len(prediction.distribution.event_shape)
        if isinstance(of_element, Categorical | Bernoulli) and self.residuals is None:
            logits = of_element.logits / self.temperature
            of_logits = dist.Categorical if isinstance(of_element, Categorical) else dist.Bernoulli
            are_logits = prediction.f.shape[1:] == logits.shape[1:]  # rather than the latent value of ordered classes
            f = prediction.f / self.temperature if are_logits else prediction.f
            return replace(prediction, f=f, distribution=of_logits(logits=logits).to_event(of_y))
        of_element = _real(prediction)
        mean = of_element.loc.mean(0)  # the predictive mean, or the centre where Student's t has no mean
        if self.residuals is not None:
            return _by_residuals(prediction, mean, self.residuals.to(mean))
        location, scale = mean + self.temperature * (of_element.loc - mean), self.temperature * of_element.scale
        is_t = isinstance(of_element, StudentT)
        wider = dist.StudentT(of_element.df, location, scale) if is_t else dist.Normal(location, scale)
        f_sd = None if prediction.f_sd is None else self.temperature * prediction.f_sd
        f = mean + self.temperature * (prediction.f - mean)
        return replace(prediction, f=f, distribution=wider.to_event(of_y), f_sd=f_sd)


@checked
def calibrate(
    prediction: Prediction,
    y: Any,
    method: Literal["temperature", "residuals"] = "temperature",
) -> Calibration:
    """Calibrate the predictions of a run with held-out observations.

    Args:
        prediction: prediction of the run at the points of the observations.
        y: the observations, ``[N, ...]``, or class labels.
        method: ``"temperature"``, one number, for class labels and for Gaussian and Student's t observations; or
            ``"residuals"``, the distribution of standardised residuals, for real observations of which there are hundreds.
            Its kernel makes intervals a little too wide: of Gaussian residuals those of 95 % contain 96 % and those of 50 %
            contain 54 % with 50 rows, and 96 % and 52 % with 1,000.

    Returns:
        A function from predictions of the same run at other points to calibrated ones.

    Raises:
        TypeError: `prediction` is no `Prediction`, or this method does not support its distribution of y.
        ValueError: y does not fit the prediction; for residuals there are fewer than 20 complete rows, or
            a standard deviation is not finite.

    Example:
        >>> import torch, pyro.distributions as dist, pyrodrop
        >>> y = torch.tensor([[-2.0], [2.0], [1.0], [-1.0]])
        >>> f = torch.zeros(1, 4, 1)
        >>> held_out = pyrodrop.Prediction(f, dist.Normal(f, 0.5).to_event(1))
        >>> calibration = pyrodrop.metrics.calibrate(held_out, y)
        >>> round(calibration.temperature, 3)  # the root mean square of y is 1.581
        3.162
        >>> calibration(held_out).sd[0]
        tensor([1.5811])
    """
    instance(prediction, Prediction, "prediction", "a Prediction, such as run.predict(x)")
    if method == "residuals":
        return Calibration(residuals=_residuals(prediction, y))

    def loss(log_temperature: float) -> float:
        return -float(Calibration(math.exp(log_temperature))(prediction).log_density(y).double().mean())

    step = 2 * _RANGE / (_GRID - 1)
    best = min((number * step - _RANGE for number in range(_GRID)), key=loss)
    refined = minimize_scalar(loss, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-5}).x
    if abs(refined) > _RANGE - step:
        _log.warning(
            "the observations do not bound the temperature: it is %.3g, the end of the search", math.exp(refined)
        )
    return Calibration(math.exp(refined))


def _real(prediction: Prediction) -> Any:
    """The Gaussian or Student's t distributions of the elements of y; a TypeError for others."""
    of_element = elements(prediction.distribution)
    if type(of_element) not in (dist.Normal, dist.StudentT, Normal, StudentT):
        raise TypeError(
            "prediction must be of Gaussian or Student's t observations, or of class labels under a temperature; got one of "
            f"{type(of_element).__name__} observations"
        )
    return of_element


def finite_sd(prediction: Prediction) -> Tensor:
    """The predictive standard deviation; a ValueError where it is not finite."""
    sd = prediction.sd
    if not bool(sd.isfinite().all()):
        raise ValueError(
            "prediction must have a finite standard deviation for 'residuals', as Student's t with df above 2 has; got "
            f"{float(sd.flatten()[~sd.flatten().isfinite()][0])}"
        )
    return sd


def _by_residuals(prediction: Prediction, mean: Tensor, z: Tensor) -> Prediction:
    """A mixture of kernels at the residuals z ``[K, ...]``."""
    if z.shape[1:] != mean.shape[1:]:
        raise ValueError(
            f"prediction must be of a y of shape {list(z.shape[1:])} at a point, as the residuals are; got "
            f"{list(mean.shape[1:])}"
        )
    sd = finite_sd(prediction)
    location = mean + sd * z[:, None]
    kernel = dist.StudentT(_DEGREES, location, (sd * _width(z)).expand_as(location)).to_event(mean.dim() - 1)
    return replace(prediction, f=location, distribution=kernel, f_sd=None, joint=False)


def _residuals(prediction: Prediction, y: Any) -> Tensor:
    """Standardised residuals of at most 1000 rows, evenly spaced in the order of the rows' first residual."""
    mean, sd = _real(prediction).loc.mean(0), finite_sd(prediction)
    y, seen = prediction.observed(y)
    z = (y - mean) / sd
    z = z if seen is None else z[seen.flatten(1).all(1)]
    if len(z) < _FEWEST:
        raise ValueError(
            f"y must have at least {_FEWEST} complete rows for the distribution of residuals; got {len(z)}"
        )
    z = z[z.flatten(1)[:, 0].argsort()]
    every = torch.linspace(0, len(z) - 1, min(len(z), _MOST), device=z.device).round().long()
    return z[every].detach()


def _width(z: Tensor) -> Tensor:
    """The width of the kernel for every element of y, ``[...]`` (Silverman 1986, eq. 3.31)."""
    low, high = torch.quantile(z.double(), torch.tensor([0.25, 0.75], dtype=torch.float64, device=z.device), 0)
    narrow = torch.minimum(z.double().std(0), (high - low) / 1.349)
    return (0.9 * narrow * len(z) ** -0.2).clamp_min(1e-6).to(z)
