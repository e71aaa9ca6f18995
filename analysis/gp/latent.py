"""What regression and classification share: choosing the inference, searching the hyperparameters, drawing functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor
from tqdm import tqdm

from pyrodrop.analysis.gp.exact import Exact
from pyrodrop.analysis.gp.inducing import Inducing, Sparse
from pyrodrop.devices import seeded

EXACT_LIMIT = 10_000  # observations
Latent = Exact | Sparse


@dataclass(frozen=True)
class Problem:
    """Standardised data of D outputs: x ``[N, Q]``, y ``[D, N]``, and their noise variances, ``[D, N]``, where known."""

    x: Tensor
    y: Tensor
    noise: Tensor | None = None


def chosen_inference(size: int, inducing: int | Inducing | None) -> Inducing | None:
    """None for exact inference, which is the choice up to `EXACT_LIMIT` observations where none is made."""
    if isinstance(inducing, int):
        return Inducing(points=inducing)
    if inducing is None and size > EXACT_LIMIT:
        return Inducing()
    return inducing


def best_fit(
    problem: Problem,
    starts: Sequence[tuple[torch.nn.Module, float]],
    inducing: Inducing | None,
    *,
    learn: bool,
    seed: int,
    progress: bool | None,
) -> tuple[Latent, float]:
    """The fit of highest evidence (or bound on it) of those from every start, a kernel and a noise variance; and it."""
    fits: list[tuple[Latent, float]] = []
    hidden = None if progress is None else not progress  # None: shown where the output is a terminal
    total = None if inducing is None else inducing.steps * len(starts)
    bar = tqdm(total=total, desc="Gaussian process", unit="step", disable=hidden, leave=False)
    with bar, seeded(seed, problem.x.device):
        for kernel, variance in starts:
            noise = variance if problem.noise is None else problem.noise
            parts = problem.x, problem.y, kernel, noise
            latent: Latent = Exact(*parts) if inducing is None else Sparse(*parts, inducing)  # type: ignore[arg-type]
            fits.append((latent, latent.maximise(bar, learn=learn)))
    return max(fits, key=lambda fit: fit[1])


def hyperparameters(latent: Latent) -> dict[str, float | list[float]]:
    """Values by GPyTorch's names, in standardised units."""
    names = [name for name, _ in latent.named_parameters() if name.startswith(("covar_module.", "likelihood."))]
    values = {name: attrgetter(name)(latent).detach() for name in (n.replace("raw_", "") for n in names)}
    return {name: float(v) if v.numel() == 1 else v.flatten().tolist() for name, v in values.items()}


def draw(latent: Latent, x: Tensor, num_samples: int, *, joint: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Draws of f ``[S, N, D]`` from torch's random state, with its mean and variance ``[N, D]``."""
    if num_samples < 1:
        raise ValueError(f"num_samples is the number of functions drawn and must be at least 1; got {num_samples}")
    if joint:
        mean, covariance = latent.posterior(x)
        variance = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0)
        noise = torch.randn(num_samples, *mean.shape, dtype=mean.dtype)
        steps = (root(covariance) @ noise.unsqueeze(-1)).squeeze(-1)
    else:
        mean, variance = latent.marginals(x)
        steps = variance.sqrt() * torch.randn(num_samples, *mean.shape, dtype=mean.dtype)
    return (mean + steps).mT, mean.mT, variance.mT


def root(covariance: Tensor) -> Tensor:
    """A square root of a covariance that may be singular to rounding."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
