"""Kernels, and where the search for their hyperparameters starts.

    squared_exponential   k = s^2 exp(-r^2 / 2): the baseline of Gal & Ghahramani (2016), figure 2b
    matern                k = s^2 exp(-a) P(a),   a = sqrt(2 nu) r,   P = 1, 1 + a, 1 + a + a^2/3 for nu = 1/2, 3/2, 5/2
    trend_and_season      a long SE, a yearly period that changes slowly, and a short SE, after Rasmussen & Williams (2006),
                          section 5.4.3, on this very record

    r^2 = sum_q (x_q - x'_q)^2 / l_q^2      one length scale a column (ARD), or one for all

Everything is in standardised units. Matern: Rasmussen & Williams (2006), eq. 4.14-4.17.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

from pyrodrop.names import known
from pyrodrop.scaling import Standardize

_LENGTHS = (0.03, 0.3, 2.0)  # short, middling, long
_NOISE = 0.05


@dataclass(frozen=True)
class Start:
    """Where a search for hyperparameters begins.

    Attributes:
        kernel: in standardised units.
        noise: variance of the observation noise in standardised units; or
        precision: one over it in the units of y, as likelihoods have it. A classifier needs neither.
        inputs, targets: the standardisation to use where the data carry none, instead of that of their own columns.
        classes: the number of classes; None where the labels are to tell.
    """

    kernel: Kernel
    noise: float | None = None
    precision: float | None = None
    inputs: Standardize | None = None
    targets: Standardize | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        if self.noise is not None and self.precision is not None:
            raise ValueError(
                "a start takes the noise variance in standardised units or the precision in the units of y, not both; "
                f"got noise={self.noise} and precision={self.precision}"
            )


KernelSetting: TypeAlias = str | Kernel | Start | Sequence[Start] | Callable[[], Sequence[Start]]


def squared_exponential(dims: int = 1) -> list[Start]:
    """From short, middling and long length scales.

    Args:
        dims: length scales: the columns of x for ARD, or 1 for one that all columns share.
    """
    return _stationary(RBFKernel, dims)


def matern(nu: float, dims: int = 1) -> list[Start]:
    """As `squared_exponential`, with functions that are nu - 1/2 times differentiable; nu is 0.5, 1.5 or 2.5."""
    if nu not in (0.5, 1.5, 2.5):
        raise ValueError(f"nu is the smoothness of a Matern kernel and must be 0.5, 1.5 or 2.5; got {nu}")
    return _stationary(functools.partial(MaternKernel, nu=nu), dims)


def trend_and_season(period: float) -> Callable[[], list[Start]]:
    """Trend, season of this period (in standardised x) and short-term deviations."""

    def starts() -> list[Start]:
        kernels = []
        for trend in (2.0, 5.0):
            season = ScaleKernel(
                _set(PeriodicKernel(), period_length=period, lengthscale=1.0) * _set(RBFKernel(), lengthscale=8.0)
            )
            season.outputscale = 0.1
            season.base_kernel.kernels[0].raw_period_length.requires_grad_(False)  # a year is a year
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
    """The starts that `kernel` stands for, as copies: one of `KERNELS` by name has a length scale for each of `dims`."""
    if isinstance(kernel, str):
        found: Sequence[Start] = KERNELS[known(kernel, KERNELS, "kernel")](dims)
    elif isinstance(kernel, Kernel):
        found = [Start(kernel, _NOISE)]
    elif isinstance(kernel, Start):
        found = [kernel]
    else:
        found = kernel() if callable(kernel) else kernel
    if not (isinstance(found, Sequence) and found and all(isinstance(start, Start) for start in found)):
        raise TypeError(
            "a kernel is a name, a gpytorch kernel, a Start, a sequence of Starts, or a function that returns one; "
            f"got {kernel!r}"
        )
    return [copy.deepcopy(start) for start in found]


def _stationary(make: Callable[..., Kernel], dims: int) -> list[Start]:
    if dims < 1:
        raise ValueError(f"dims is the number of length scales and must be at least 1; got {dims}")
    ard = None if dims == 1 else dims
    spread = dims**0.5  # distances grow so with the number of columns
    kernels = (_scaled(make(ard_num_dims=ard), 1.0, lengthscale=length * spread) for length in _LENGTHS)
    return [Start(kernel, _NOISE) for kernel in kernels]


def _set(kernel: Kernel, **values: float) -> Kernel:
    kernel.initialize(**values)
    return kernel


def _scaled(kernel: Kernel, outputscale: float, **values: float) -> ScaleKernel:
    scaled = ScaleKernel(_set(kernel, **values))
    scaled.outputscale = outputscale
    return scaled
