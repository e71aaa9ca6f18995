"""Gaussian-process regression with inducing points, for data sets too large for exact inference.

    u = f(Z),   q(u_d) = N(m_d, S_d),   q(f) = int p(f | u) q(u) du            Z [M, Q], shared by all outputs
    ELBO = sum_d sum_n E_q[ln N(y_dn; f_d(x_n), noise_dn)] - sum_d KL(q(u_d) | p(u_d))

Hensman, Fusi & Lawrence (2013), Gaussian Processes for Big Data, https://arxiv.org/abs/1309.6835. Trained on minibatches: q
by natural gradients, for which one step of length 1 on all data is exact given the hyperparameters (Salimbeni,
Eleftheriadis & Hensman 2018, https://arxiv.org/abs/1803.09151), all other parameters by Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.variational import NaturalVariationalDistribution, VariationalStrategy
from torch import Tensor, nn
from tqdm import tqdm

from pyrodrop.checks import Count, Real, checked

_CHUNK = 1000


@checked
@dataclass(frozen=True)
class Inducing:
    """Settings of inference with inducing points.

    Attributes:
        points: M, number of inducing points. They start at M distinct training points; if there are at most M of these, the
            inducing points are not learned.
        steps: number of optimisation steps.
        batch_size: rows per minibatch.
        lr: Adam's learning rate for hyperparameters and inducing points; falls to a tenth over the second half.
        natural_lr: step length of the natural gradient.

    Raises:
        TypeError: a value is no number.
        ValueError: a value is outside its range.
    """

    points: Annotated[int, Count("the number of inducing points")] = 500
    steps: Annotated[int, Count("the number of optimisation steps")] = 1000
    batch_size: Annotated[int, Count("the number of rows of a minibatch")] = 1024
    lr: Annotated[float, Real("the learning rate of the hyperparameters", above=0)] = 0.02
    natural_lr: Annotated[float, Real("the step length of the natural gradient", above=0, most=1)] = 0.1


class Sparse(nn.Module):
    """The posterior with inducing points. Arguments are those of `Exact`, and the settings."""

    def __init__(self, x: Tensor, y: Tensor, kernel: Kernel, noise: float | Tensor, settings: Inducing) -> None:
        super().__init__()
        self.x: Tensor = x
        self.y: Tensor = y
        self.settings: Inducing = settings
        self.covar_module = kernel.double()
        self.fixed_noise: Tensor | None = noise if isinstance(noise, Tensor) else None
        if not isinstance(noise, Tensor):
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood(
                noise_constraint=gpytorch.constraints.GreaterThan(1e-8)
            ).double()
            self.likelihood.noise = noise
        distinct = torch.unique(x, dim=0)
        chosen = distinct[torch.randperm(len(distinct))[: settings.points]]
        self.process: _Process = _Process(
            chosen, len(y), self.covar_module, learn_places=len(chosen) < len(distinct)
        ).double()

    @property
    def noise(self) -> Tensor:
        """Variance of the observation noise, if it is a single number."""
        return self.likelihood.noise.detach()  # type: ignore[no-any-return, union-attr, operator]

    def maximise(self, bar: tqdm, *, learn: bool) -> float:
        """Fit q, and if `learn` hyperparameters and inducing points; returns the ELBO on all data, in nats."""
        self.train()
        n, settings = len(self.x), self.settings
        natural = list(self.process.variational_parameters())
        rest = [p for p in self.parameters() if p.requires_grad and not any(p is q for q in natural)]
        optimizers: list[torch.optim.Optimizer] = [gpytorch.optim.NGD(natural, num_data=n, lr=settings.natural_lr)]
        if learn and rest:
            optimizers.append(torch.optim.Adam(rest, lr=settings.lr))
        size = min(settings.batch_size, n)
        order = torch.randperm(n)
        for step in range(settings.steps):
            if len(order) < size:
                order = torch.randperm(n)
            rows, order = order[:size], order[size:]
            for optimizer in optimizers:
                optimizer.zero_grad()
            fits = self._expected(rows)  # before the KL divergence, for which GPyTorch caches q here
            loss = self._divergence() - fits * (n / size)
            (loss / n).backward()
            for group in optimizers[1].param_groups if len(optimizers) > 1 else ():
                group["lr"] = settings.lr * min(1.0, 1.9 - 1.8 * step / settings.steps)
            for optimizer in optimizers:
                optimizer.step()
            bar.update()
            if step % 10 == 0:
                bar.set_postfix(elbo=f"{-float(loss.detach()):.5g}")
        self.eval()
        with torch.no_grad():
            parts = [self._expected(rows) for rows in torch.arange(n).split(_CHUNK)]
            return float(torch.stack(parts).sum() - self._divergence())

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``[D, N]`` and covariance ``[D, N, N]`` of f at x ``[N, Q]``."""
        self.eval()
        with torch.no_grad():
            distribution = self.process(x)
            return distribution.mean, distribution.covariance_matrix

    def marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at every point, each ``[D, N]``."""
        self.eval()
        with torch.no_grad():
            distributions = [self.process(chunk) for chunk in x.split(_CHUNK)]
            return torch.cat([d.mean for d in distributions], -1), torch.cat([d.variance for d in distributions], -1)

    def _expected(self, rows: Tensor) -> Tensor:
        """E_q[ln N(y; f, noise)], summed over these rows and all outputs."""
        distribution = self.process(self.x[rows])
        noise = self.likelihood.noise if self.fixed_noise is None else self.fixed_noise[:, rows]  # type: ignore[union-attr]
        squares = (self.y[:, rows] - distribution.mean).square() + distribution.variance
        return -0.5 * ((2 * torch.pi * noise).log() + squares / noise).sum()

    def _divergence(self) -> Tensor:
        return self.process.variational_strategy.kl_divergence().sum()  # type: ignore[no-any-return, operator, union-attr]


class _Process(gpytorch.models.ApproximateGP):
    """Zero-mean variational GPs that share kernel and inducing points."""

    def __init__(self, points: Tensor, outputs: int, kernel: Kernel, *, learn_places: bool) -> None:
        q = NaturalVariationalDistribution(len(points), batch_shape=torch.Size([outputs]))
        super().__init__(VariationalStrategy(self, points, q, learn_inducing_locations=learn_places))
        self.covar_module = kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(x.new_zeros(x.shape[:-1]), self.covar_module(x))
