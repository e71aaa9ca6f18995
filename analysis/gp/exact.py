"""Exact Gaussian-process regression with several outputs, which share a kernel and have separate noise.

    y_d = f_d(x) + noise_d,   f_d ~ GP(0, k)                       y [D, N]
    ln p(y) = sum_d ln N(y_d; 0, K + diag(noise_d))                maximised over the kernel's hyperparameters by L-BFGS

Rasmussen & Williams (2006), http://gaussianprocess.org/gpml, eq. 2.25, 2.26 and 2.30. Cholesky in float64: N^3 operations
per evaluation of the evidence.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from linear_operator import to_linear_operator
from linear_operator.utils.errors import NanError, NotPSDError
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor, nn
from tqdm import tqdm

_ENOUGH = 1e-6  # nats: the search ends when a step gains less
_CHUNK = 1000  # points per covariance matrix if only variances are needed
_log = logging.getLogger("pyrodrop")


class Exact(nn.Module):
    """The exact posterior.

    Args:
        x: ``[N, Q]``, standardised.
        y: ``[D, N]``, standardised.
        noise: initial value of the noise variance, or the known variance of every observation, ``[D, N]``.
    """

    def __init__(self, x: Tensor, y: Tensor, kernel: Kernel, noise: float | Tensor) -> None:
        super().__init__()
        self.x: Tensor = x
        self.covar_module = kernel.double()
        if isinstance(noise, Tensor):
            likelihoods = [gpytorch.likelihoods.FixedNoiseGaussianLikelihood(row) for row in noise]
        else:
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood(
                noise_constraint=gpytorch.constraints.GreaterThan(1e-8)
            ).double()
            self.likelihood.noise = noise
            likelihoods = [self.likelihood] * len(y)
        self.outputs: nn.ModuleList = nn.ModuleList(
            _Output(x, row, likelihood, self.covar_module) for row, likelihood in zip(y, likelihoods, strict=True)
        )

    @property
    def noise(self) -> Tensor:
        """Variance of the observation noise, if it is a single number."""
        return self.likelihood.noise.detach()  # type: ignore[no-any-return, union-attr, operator]

    def maximise(self, bar: tqdm, *, learn: bool) -> float:
        """Fit the hyperparameters if `learn` is True, and return the log marginal likelihood in nats."""
        self.train()
        free = [p for p in self.parameters() if p.requires_grad]
        if learn and free:
            search = torch.optim.LBFGS(
                free, lr=1, max_iter=200, tolerance_change=_ENOUGH, line_search_fn="strong_wolfe"
            )
            worst = None

            def closure() -> float:
                """The negative evidence, or a large value if rounding makes the covariance matrix indefinite."""
                nonlocal worst
                search.zero_grad()
                try:
                    value = self._backward()
                except (NotPSDError, NanError):
                    if worst is None:
                        raise
                    search.zero_grad(set_to_none=False)
                    return worst + 1e6
                worst = value if worst is None else max(worst, value)
                bar.update()
                bar.set_postfix(log_evidence=f"{-value:.5g}")
                return value

            with _jitter(logging.INFO, "the search for its hyperparameters tried values at which"):
                search.step(closure)  # type: ignore[arg-type]
        with torch.no_grad(), _jitter(logging.WARNING, "the evidence is approximate:"):
            return float(sum(self._evidence(self.covar_module(self.x).to_dense())))

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``[D, N]`` and covariance ``[D, N, N]`` of f at x ``[N, Q]``."""
        self.eval()
        quiet = gpytorch.settings.debug(False)  # no warning about predicting at the training points
        jitter = _jitter(logging.WARNING, "the posterior is approximate:")
        with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False), quiet, jitter:
            distributions = [output(x) for output in self.outputs]
            means, covariances = [d.mean for d in distributions], [d.covariance_matrix for d in distributions]
            return torch.stack(means), torch.stack(covariances)

    def marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at every point, each ``[D, N]``."""
        parts = []
        for chunk in x.split(_CHUNK):
            mean, covariance = self.posterior(chunk)
            parts.append((mean, covariance.diagonal(dim1=-2, dim2=-1)))
        means, variances = zip(*parts, strict=True)
        return torch.cat(means, -1), torch.cat(variances, -1).clamp_min(0)

    def _evidence(self, covariance: Tensor) -> Iterator[Tensor]:
        """The log marginal likelihood of each output, in nats."""
        for output in self.outputs:
            prior = MultivariateNormal(covariance.new_zeros(len(covariance)), to_linear_operator(covariance))
            with gpytorch.settings.fast_computations(False, False, False):
                yield output.likelihood(prior).log_prob(output.train_targets)  # type: ignore[operator]

    def _backward(self) -> float:
        """The negative evidence; adds its gradient. One output after the other, to limit memory to a few N x N matrices."""
        covariance = self.covar_module(self.x).to_dense()
        leaf, total = covariance.detach().requires_grad_(), 0.0
        for evidence in self._evidence(leaf):
            evidence.neg().backward()
            total -= float(evidence.detach())
        covariance.backward(leaf.grad)
        return total


@contextmanager
def _jitter(level: int, where: str) -> Iterator[None]:
    """Log once that GPyTorch has added to the diagonal of covariance matrices within the block.

    Rounding makes a matrix of huge or nearly equal covariances indefinite, even in float64. GPyTorch would warn at every
    such matrix. Other warnings are passed on.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NumericalWarning)
        yield
    jitter = [each for each in caught if issubclass(each.category, NumericalWarning)]
    for each in caught:
        if each not in jitter:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno, source=each.source)
    if jitter:
        _log.log(
            level,
            "Gaussian process: %s rounding makes a covariance matrix indefinite, %d times; GPyTorch adds to its "
            "diagonal: %s",
            where,
            len(jitter),
            "; ".join(sorted({str(each.message) for each in jitter})),
        )


class _Output(gpytorch.models.ExactGP):
    """Zero-mean exact GP regression of one output."""

    def __init__(self, x: Tensor, y: Tensor, likelihood: gpytorch.likelihoods.Likelihood, kernel: Kernel) -> None:
        super().__init__(x, y, likelihood)
        self.covar_module = kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(x.new_zeros(x.shape[:-1]), self.covar_module(x))
