"""Kernels, with initial values for the search for their hyperparameters.

    squared_exponential   k = s^2 exp(-r^2 / 2): the baseline of Gal & Ghahramani (2016), figure 2b
    matern                k = s^2 exp(-a) P(a),   a = sqrt(2 nu) r,   P = 1, 1 + a, 1 + a + a^2/3 for nu = 1/2, 3/2, 5/2
    trend_and_season      a long SE, a slowly changing yearly period, and a short SE, after Rasmussen & Williams (2006),
                          section 5.4.3, on the same CO2 record

    r^2 = sum_q (x_q - x'_q)^2 / l_q^2      one length scale per column (ARD), or one for all

All values are in standardised units. Rasmussen & Williams (2006), http://gaussianprocess.org/gpml; Matern: eq. 4.14-4.17.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

from pyrodrop.checks import Count, Real, checked, known, real, shown
from pyrodrop.scaling import Standardize

_LENGTHS = (0.03, 0.3, 2.0)  # short, medium, long
_NOISE = 0.05


@checked
@dataclass(frozen=True)
class Start:
    """Initial values of a search for hyperparameters.

    Attributes:
        kernel: the kernel, for standardised inputs and outputs.
        noise: variance of the observation noise in standardised units. Regression needs either this or `precision`.
        precision: inverse variance of the observation noise in the units of y, like that of a likelihood.
        inputs: standardisation of x for a data set without one; if None, it is computed from the columns.
        targets: standardisation of y for a data set without one; if None, it is computed from the columns.
        classes: number of classes; None to take it from the labels.

    Raises:
        TypeError: `kernel` is not a gpytorch kernel, or a value is no number.
        ValueError: both `noise` and `precision` are given, or a value is not positive.
    """

    kernel: Kernel
    noise: Annotated[float, Real("the variance of the noise", above=0)] | None = None
    precision: Annotated[float, Real("the precision of the noise", above=0)] | None = None
    inputs: Standardize | None = None
    targets: Standardize | None = None
    classes: Annotated[int, Count("the number of classes")] | None = None

    def __post_init__(self) -> None:
        if self.noise is not None and self.precision is not None:
            raise ValueError(
                "Start takes noise (variance in standardised units) or precision (in the units of y), not both; "
                f"got noise={self.noise} and precision={self.precision}"
            )
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be a gpytorch kernel; got {shown(self.kernel)}")


KernelSetting: TypeAlias = str | Kernel | Start | Sequence[Start] | Callable[[], Sequence[Start]]


def squared_exponential(dims: int = 1) -> list[Start]:
    """Squared exponential kernels with short, medium and long initial length scales.

    Args:
        dims: number of length scales: the number of columns of x for ARD, or 1 for a shared one.
    """
    return _stationary(RBFKernel, dims)


def matern(nu: float, dims: int = 1) -> list[Start]:
    """Matern kernels, with starts as in `squared_exponential`; nu must be 0.5, 1.5 or 2.5, larger values are smoother.

    Raises:
        TypeError: nu is no number.
        ValueError: nu has another value.
    """
    nu = real(nu, "nu", "the smoothness of a Matern kernel, 0.5, 1.5 or 2.5,")
    if nu not in (0.5, 1.5, 2.5):
        raise ValueError(f"nu is the smoothness of a Matern kernel and must be 0.5, 1.5 or 2.5; got {nu:g}")
    return _stationary(functools.partial(MaternKernel, nu=nu), dims)


@checked
def trend_and_season(
    period: Annotated[float, Real("the period of the season, in standardised x,", above=0)],
) -> Callable[[], list[Start]]:
    """Kernels of a trend, a season with this period (in standardised x) and short-term deviations.

    Raises:
        TypeError, ValueError: the period is no positive number.
    """

    def starts() -> list[Start]:
        kernels = []
        for trend in (2.0, 5.0):
            season = ScaleKernel(
                _set(PeriodicKernel(), period_length=period, lengthscale=1.0) * _set(RBFKernel(), lengthscale=8.0)
            )
            season.outputscale = 0.1
            season.base_kernel.kernels[0].raw_period_length.requires_grad_(False)  # the period is known
            kernels.append(
                _scaled(RBFKernel(), 4.0, lengthscale=trend) + season + _scaled(RBFKernel(), 0.01, lengthscale=0.2)
            )
        return [Start(kernel, 0.005) for kernel in kernels]

    return starts


KERNELS: Mapping[str, Callable[[int], list[Start]]] = {
    "squared-exponential": squared_exponential,
    "matern-1/2": functools.partial(matern, 0.5),
    "matern-3/2": functools.partial(matern, 1.5),
    "matern-5/2": functools.partial(matern, 2.5),
}


def starts_of(kernel: KernelSetting, dims: int) -> list[Start]:
    """Copies of the starts that `kernel` denotes; a kernel passed by name has one length scale for each of `dims` columns.

    Raises:
        TypeError: `kernel` is none of the types of `KernelSetting`.
        ValueError: no kernel has this name.
    """
    if isinstance(kernel, str):
        chosen: Sequence[Start] = KERNELS[known(kernel, KERNELS, "kernel")](dims)
    elif isinstance(kernel, Kernel):
        chosen = [Start(kernel, _NOISE)]
    elif isinstance(kernel, Start):
        chosen = [kernel]
    else:
        chosen = kernel() if callable(kernel) else kernel
    if not (isinstance(chosen, Sequence) and chosen and all(isinstance(start, Start) for start in chosen)):
        raise TypeError(
            "kernel must be a name, a gpytorch kernel, a Start, a sequence of Starts, or a function that returns one; "
            f"got {shown(kernel)}"
        )
    return [copy.deepcopy(start) for start in chosen]


@checked
def _stationary(make: Callable[..., Kernel], dims: Annotated[int, Count("the number of length scales")]) -> list[Start]:
    ard = None if dims == 1 else dims
    spread = dims**0.5  # typical distances grow with the square root of the number of columns
    kernels = (_scaled(make(ard_num_dims=ard), 1.0, lengthscale=length * spread) for length in _LENGTHS)
    return [Start(kernel, _NOISE) for kernel in kernels]


def _set(kernel: Kernel, **values: float) -> Kernel:
    kernel.initialize(**values)
    return kernel


def _scaled(kernel: Kernel, outputscale: float, **values: float) -> ScaleKernel:
    scaled = ScaleKernel(_set(kernel, **values))
    scaled.outputscale = outputscale
    return scaled
