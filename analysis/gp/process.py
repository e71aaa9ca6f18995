"""Gaussian-process regression, fitted by type-II maximum likelihood, with the predictive interface of a fit.

    f ~ GP(0, k),   y = f + noise,   noise ~ N(0, noise variance)         in standardised units

Hyperparameters maximise the log marginal likelihood in float64, from several starts, the best of which counts: by L-BFGS for
up to 10,000 observations; above, on a random subset first and then from inducing points, which bound it from below.
"""

from __future__ import annotations

import copy
import time

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrodrop.analysis.gp.inducing import Inducing
from pyrodrop.analysis.gp.latent import Problem, best_fit, chosen_inference, columns, draw, hyperparameters
from pyrodrop.analysis.gp.starts import KernelSetting, Start, starts_of
from pyrodrop.data import Data, Dataset
from pyrodrop.devices import seeded
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.scaling import Standardize


class GaussianProcess:
    """A Gaussian process fitted to a data set.

    Args:
        data: x ``[N, Q]`` and y ``[N, 1]``, in their own units. They are standardised by what they carry, else by what the
            kernel's start carries, else by their own columns.
        kernel: one of `KERNELS` by name (with a length scale for every column of x), a GPyTorch kernel for standardised
            units, `from_model(model)`, or starts such as `squared_exponential` or `trend_and_season(period)`. It is copied.
        learn: whether hyperparameters, the noise among them, maximise the evidence or stay where they start.
        inducing: number of inducing points, or `Inducing` with settings; None is exact inference for up to
            `EXACT_LIMIT` observations and 500 inducing points above.
        seed: of the choice of inducing points and minibatches; exact inference has nothing random.
        progress: whether to show a progress bar; if None, where the output is a terminal.

    Attributes:
        data: what it was fitted to, in its own units.
        inputs, targets: the standardisation.
        log_evidence: the maximised log marginal likelihood of the standardised data, in nats: its value, or
        evidence_kind: ``exact`` or ``lower bound``.
        prior_sd: standard deviation of f before any data, in the units of y: root mean square over the training points.
        noise_sd: standard deviation of the observation noise, in the units of y.
        hyperparameters: by GPyTorch's names, in standardised units.
        seconds: of fitting.

    Raises:
        ValueError: x that is no matrix, y with several columns, or class labels.
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
        began = time.perf_counter()
        self.data = data = Dataset.of(data)
        if not data.y.is_floating_point():
            raise ValueError(
                f"a GaussianProcess is fitted to real y; got {data.y.dtype}. For class labels there is "
                "GaussianProcessClassifier"
            )
        x = columns(data.x)
        starts = starts_of(kernel, x.shape[1])
        self.inputs, self.targets = _standardisation(data, starts[0])
        x, y = self.inputs(x), self.targets(data.y.double())
        y = y.squeeze(-1) if y.dim() == 2 and y.shape[1] == 1 else y
        if y.dim() != 1:
            raise ValueError(f"a Gaussian process here has one output; y has shape {tuple(data.y.shape)}")
        scale = float(self.targets.scale)
        choice = chosen_inference(len(x), inducing)
        self._latent, self.log_evidence = best_fit(
            Problem(x, y[None]),
            [(start.kernel, _noise(start, scale)) for start in starts],
            choice,
            learn=learn,
            seed=seed,
            progress=progress,
        )
        self.evidence_kind = "exact" if choice is None else "lower bound"
        self.seconds = time.perf_counter() - began
        self.kernel = self._latent.covar_module
        with torch.no_grad():
            self.prior_sd = scale * float(self.kernel(x, diag=True).mean().sqrt())
        self.noise_sd = scale * float(self._latent.noise) ** 0.5
        self.hyperparameters = hyperparameters(self._latent)

    def predict(self, x: Tensor, num_samples: int = 1000, *, seed: int = 0, joint: bool = True) -> Prediction:
        """The posterior at x ``[N, Q]``: draws of f, and the exact law of y, a mixture of one component.

        Draws are functions, joint over the points, for which the N x N covariance is decomposed. ``joint=False`` draws
        every point on its own, for many points.
        """
        points = self.inputs(columns(x, self.data.x.shape[1]))
        with seeded(seed, points.device):
            f, mean, variance = draw(self._latent, points, num_samples, joint=joint)
        f_sd = self.targets.scale * variance.sqrt()
        sd = self.targets.scale * (variance + self._latent.noise).sqrt()
        law = dist.Normal(self.targets.inverse(mean)[None], sd[None]).to_event(1)
        return Prediction(f=self.targets.inverse(f), law=law, seed=seed, f_sd=f_sd)

    def log_density(self, data: Data) -> Tensor:
        """ln p(y_n | x_n, training data) of every observation, in nats and the units of y: ``[N]``. In closed form."""
        data = Dataset.of(data)
        return self.predict(data.x, 1, joint=False).log_density(data.y.double())


def _standardisation(data: Dataset, start: Start) -> tuple[Standardize, Standardize]:
    """Of x and y, in float64."""
    inputs, targets = data.inputs or start.inputs, data.targets or start.targets
    if targets is None:
        own = data.standardized()
        inputs, targets = inputs or own.inputs, own.targets
    assert targets is not None
    return copy.deepcopy(inputs or Standardize()).double(), copy.deepcopy(targets).double()


def _noise(start: Start, scale: float) -> float:
    """The noise variance in standardised units."""
    if start.precision is not None:
        return 1 / (start.precision * scale**2)
    if start.noise is None:
        raise ValueError(
            "regression needs the noise of a start: noise in standardised units, or precision in the units of y; got "
            "neither, as from a model of class labels"
        )
    return start.noise
