"""Gaussian-process baselines, fitted by type-II maximum likelihood, with the predictive interface of a fit.

    f ~ GP(0, k),   y = f + noise,   noise ~ N(0, noise variance)         in standardised units

    squared_exponential   k = s^2 exp(-|x - x'|^2 / 2 l^2): the baseline of Gal & Ghahramani (2016), figure 2b
    trend_and_season      a long SE, a yearly period that changes slowly, and a short SE, after Rasmussen & Williams (2006),
                          section 5.4.3, on this very record

Hyperparameters maximise the log marginal likelihood in float64, by L-BFGS from several starts, the best of which counts.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

import gpytorch
import pyro.distributions as dist
import torch
from gpytorch.kernels import Kernel, PeriodicKernel, RBFKernel, ScaleKernel
from torch import Tensor

from pyrodrop.data import Dataset
from pyrodrop.data.dataset import check_inputs
from pyrodrop.devices import seeded
from pyrodrop.predictive import Prediction
from pyrodrop.scaling import Standardize


@dataclass(frozen=True)
class Start:
    """Where a search for hyperparameters begins: kernel and noise variance, in standardised units."""

    kernel: Kernel
    noise: float


def squared_exponential() -> list[Start]:
    """The paper's kernel, from short, middling and long length scales."""
    return [Start(_scaled(RBFKernel(), 1.0, lengthscale=length), 0.05) for length in (0.03, 0.3, 2.0)]


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


class GaussianProcess:
    """A Gaussian process fitted to a data set.

    Attributes:
        log_evidence: the maximised log marginal likelihood of the standardised data, in nats.
        prior_sd: standard deviation of f before any data, in the units of y.
        noise_sd: standard deviation of the observation noise, in the units of y.
        hyperparameters: by GPyTorch's names, in standardised units.
        seconds: of fitting.
    """

    def __init__(self, data: Dataset, starts: Callable[[], list[Start]]) -> None:
        """Fit to `data`, x ``[N, Q]`` and y ``[N, 1]``; they are standardised by what they carry, or by themselves."""
        began = time.perf_counter()
        data = data if data.targets is not None else data.standardized()
        assert data.targets is not None
        self.inputs = copy.deepcopy(data.inputs or Standardize()).double()
        self.targets = copy.deepcopy(data.targets).double()
        x, y = self.inputs(data.x.double()), self.targets(data.y.double()).squeeze(-1)
        if y.dim() != 1:
            raise ValueError(f"a Gaussian process here has one output; y has shape {tuple(data.y.shape)}")
        candidates = [_Exact(x, y, start) for start in starts()]
        evidences = [candidate.maximise() for candidate in candidates]
        best = max(range(len(candidates)), key=evidences.__getitem__)
        self._model, self.log_evidence = candidates[best], evidences[best]
        self.seconds = time.perf_counter() - began
        scale = float(self.targets.scale)
        prior_variance = float(self._model.covar_module(x[:1]).to_dense().detach())
        self.prior_sd = scale * prior_variance**0.5
        self.noise_sd = scale * float(self._model.likelihood.noise.detach()) ** 0.5
        names = [name.replace("raw_", "") for name, _ in self._model.named_parameters()]
        self.hyperparameters = {name: float(attrgetter(name)(self._model).detach()) for name in names}

    def predict(self, x: Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
        """The posterior at x ``[N, Q]``: joint draws of f, and the exact law of y, a mixture of one component."""
        points = self.inputs(check_inputs(x).double())
        self._model.eval()
        with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False), seeded(seed, points.device):
            posterior = self._model(points)
            mean, covariance = posterior.mean, posterior.covariance_matrix
            root = _root(covariance)
            draws = mean + torch.randn(num_samples, len(mean), dtype=mean.dtype) @ root.mT
            variance = covariance.diagonal() + self._model.likelihood.noise
        loc = self.targets.inverse(mean[:, None])
        sd = self.targets.scale * variance.sqrt()[:, None]
        f = self.targets.inverse(draws[..., None])
        f_sd = self.targets.scale * covariance.diagonal().clamp_min(0).sqrt()[:, None]
        return Prediction(f=f, law=dist.Normal(loc[None], sd[None]).to_event(1), seed=seed, f_sd=f_sd)


class _Exact(gpytorch.models.ExactGP):
    """Zero-mean exact GP regression."""

    def __init__(self, x: Tensor, y: Tensor, start: Start) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-8))
        super().__init__(x, y, likelihood.double())
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = start.kernel.double()
        self.likelihood.noise = start.noise

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def maximise(self) -> float:
        """Fit the hyperparameters; the log marginal likelihood reached."""
        self.train()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self)
        free = [p for p in self.parameters() if p.requires_grad]
        search = torch.optim.LBFGS(free, lr=1, max_iter=200, line_search_fn="strong_wolfe")
        n = len(self.train_targets)

        def evidence() -> Tensor:
            with gpytorch.settings.fast_computations(False, False, False):
                return objective(self(*self.train_inputs), self.train_targets) * n

        def closure() -> float:
            search.zero_grad()
            loss = -evidence()
            loss.backward()
            return float(loss.detach())

        search.step(closure)  # type: ignore[arg-type]
        with torch.no_grad():
            return float(evidence())


def _set(kernel: Kernel, **values: float) -> Kernel:
    kernel.initialize(**values)
    return kernel


def _scaled(kernel: Kernel, outputscale: float, **values: float) -> ScaleKernel:
    scaled = ScaleKernel(_set(kernel, **values))
    scaled.outputscale = outputscale
    return scaled


def _root(covariance: Tensor) -> Tensor:
    """A square root of a covariance that may be singular to rounding."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt()
