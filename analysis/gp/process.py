"""Gaussian-process regression, fitted by type-II maximum likelihood, with the predictive interface of a fit.

    f ~ GP(0, k),   y = f + noise,   noise ~ N(0, noise variance)         in standardised units

Hyperparameters maximise the log marginal likelihood in float64, and the best of several starts is kept. Up to 10,000
observations inference is exact, with L-BFGS; above, hyperparameters are first fitted on a random subset and then with
inducing points, which give a lower bound.
"""

from __future__ import annotations

import copy

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrodrop.analysis.gp.inducing import Inducing
from pyrodrop.analysis.gp.latent import FittedProcess, Problem, columns
from pyrodrop.analysis.gp.starts import KernelSetting, Start, starts_of
from pyrodrop.data import Data, Dataset
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.scaling import Standardize


class GaussianProcess(FittedProcess):
    """A Gaussian process fitted to a data set.

    Args:
        data: x ``[N, Q]`` and y ``[N, 1]`` or ``[N]``, in their own units. The standardisation is that of the data set,
            otherwise that of the kernel's start, otherwise it is computed from the columns.
        kernel: a name in `KERNELS` (with one length scale per column of x), a GPyTorch kernel for standardised units,
            `from_model(model)`, or starts such as `squared_exponential` or `trend_and_season(period)`. It is copied.
        learn: whether to maximise the evidence over the hyperparameters, including the noise; otherwise they keep their
            initial values.
        inducing: number of inducing points, or an `Inducing` with settings. None uses exact inference for up to
            `EXACT_LIMIT` observations and 500 inducing points above.
        seed: seed of the inducing points and minibatches; exact inference is deterministic.
        progress: whether to show a progress bar; None shows it if the output is a terminal.

    Attributes:
        data: the training data, in its own units.
        inputs: the standardisation of x.
        targets: the standardisation of y.
        kernel: the fitted kernel, in standardised units.
        log_evidence: log marginal likelihood of the standardised data in nats, or a lower bound on it.
        evidence_kind: ``exact`` or ``lower bound``.
        prior_sd: prior standard deviation of f in the units of y, as the root mean square over the training points.
        noise_sd: standard deviation of the observation noise, in the units of y.
        hyperparameters: values by GPyTorch's names, in standardised units.
        seconds: duration of the fit.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: x is not a matrix, y has several columns or is class labels, or a number is out of range.
    """

    def __init__(
        self,
        data: Data,
        kernel: KernelSetting,
        *,
        learn: bool = True,
        inducing: int | Inducing | None = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        super().__init__(data, learn, seed, progress)
        data = self.data
        if not data.y.is_floating_point():
            raise ValueError(
                f"y: GaussianProcess needs floating-point y; got {data.y.dtype}. For class labels use "
                "GaussianProcessClassifier"
            )
        x = columns(data.x)
        starts = starts_of(kernel, x.shape[1])
        self.inputs: Standardize
        self.targets: Standardize
        self.inputs, self.targets = _standardisation(data, starts[0])
        x, y = self.inputs(x), self.targets(data.y.double())
        y = y.squeeze(-1) if y.dim() == 2 and y.shape[1] == 1 else y
        if y.dim() != 1:
            raise ValueError(f"y of a GaussianProcess must have shape [N, 1] or [N]; got {tuple(data.y.shape)}")
        scale = float(self.targets.scale)
        exact = self._fit(Problem(x, y[None]), [(start.kernel, _noise(start, scale)) for start in starts], inducing)
        self.evidence_kind = "exact" if exact else "lower bound"
        with torch.no_grad():
            self.prior_sd: float = scale * float(self.kernel(x, diag=True).mean().sqrt())
        self.noise_sd: float = scale * float(self._latent.noise) ** 0.5

    def predict(self, x: Tensor, num_samples: int = 1000, *, seed: int = 0, joint: bool = True) -> Prediction:
        """The posterior at x ``[N, Q]``: samples of f ``[S, N, 1]``, and the distribution of y in closed form.

        Samples are functions, joint over the points, which needs a decomposition of the N x N covariance. ``joint=False``
        samples every point independently and is cheaper for many points.
        """
        f, mean, variance = self._drawn(x, num_samples, seed, joint)
        f_sd = self.targets.scale * variance.sqrt()
        sd = self.targets.scale * (variance + self._latent.noise).sqrt()
        distribution = dist.Normal(self.targets.inverse(mean)[None], sd[None]).to_event(1)
        return Prediction(self.targets.inverse(f), distribution, seed, joint=joint, f_sd=f_sd)

    def log_density(self, data: Data) -> Tensor:
        """ln p(y_n | x_n, training data) per observation in closed form, ``[N]`` in nats, for y in its own units."""
        data = Dataset.of(data)
        if not data.y.is_floating_point():
            raise ValueError(f"y of a GaussianProcess must be real numbers; got {data.y.dtype}")
        return self.predict(data.x, 1, joint=False).log_density(data.y.double())


def _standardisation(data: Dataset, start: Start) -> tuple[Standardize, Standardize]:
    """The standardisations of x and y, in float64."""
    inputs, targets = data.inputs or start.inputs, data.targets or start.targets
    if targets is None:
        standardized = data.standardized()
        inputs, targets = inputs or standardized.inputs, standardized.targets
    assert targets is not None
    return copy.deepcopy(inputs or Standardize()).double(), copy.deepcopy(targets).double()


def _noise(start: Start, scale: float) -> float:
    """The noise variance in standardised units."""
    if start.precision is not None:
        return 1 / (start.precision * scale**2)
    if start.noise is None:
        raise ValueError(
            "regression needs a start with noise (variance in standardised units) or precision (in the units of y); got "
            "neither, as from a model with a Categorical likelihood"
        )
    return start.noise
