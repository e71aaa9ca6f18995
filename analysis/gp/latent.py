"""Functions that regression and classification share: choice of inference, search for hyperparameters, sampling."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from tqdm import tqdm

from pyrodrop.analysis.gp.exact import Exact
from pyrodrop.analysis.gp.inducing import Inducing, Sparse
from pyrodrop.checks import Progress, Seed, checked, count, flag
from pyrodrop.checks import seed as checked_seed
from pyrodrop.data import Data, Dataset
from pyrodrop.data.dataset import check_inputs
from pyrodrop.devices import seeded
from pyrodrop.parts import Described
from pyrodrop.scaling import Standardize

EXACT_LIMIT = 10_000  # observations
_SUBSET = 500  # observations from which inference with inducing points gets its initial hyperparameters
Latent = Exact | Sparse


@dataclass(frozen=True)
class Problem:
    """Standardised data of D outputs: x ``[N, Q]``, y ``[D, N]``, and the noise variances ``[D, N]`` if known."""

    x: Tensor
    y: Tensor
    noise: Tensor | None = None

    def some(self, size: int) -> Problem:
        """A random subset of at most `size` observations."""
        rows = torch.randperm(len(self.x))[:size]
        return Problem(self.x[rows], self.y[:, rows], None if self.noise is None else self.noise[:, rows])


class FittedProcess(Described):
    """What Gaussian processes of real numbers and of class labels share: the search, and the draws of f."""

    data: Dataset
    inputs: Standardize
    evidence_kind: str

    @checked
    def __init__(self, data: Data, learn: bool, seed: Seed, progress: Progress) -> None:
        self._began = time.perf_counter()
        flag(learn, "learn", "whether to maximise the evidence over the hyperparameters")
        self._search: dict[str, Any] = {"learn": learn, "seed": seed, "progress": progress}
        self.data = Dataset.of(data)

    def _fit(self, problem: Problem, starts: Sequence[tuple[Kernel, float]], inducing: int | Inducing | None) -> bool:
        """Search the hyperparameters; returns whether inference is exact."""
        choice = chosen_inference(len(problem.x), inducing)
        self.log_evidence: float
        self._latent, self.log_evidence = best_fit(problem, starts, choice, **self._search)
        self.kernel: Kernel = self._latent.covar_module
        self.hyperparameters: dict[str, float | list[float]] = hyperparameters(self._latent)
        self.seconds: float = time.perf_counter() - self._began
        return choice is None

    def describe(self) -> str:
        evidence = f"log evidence {self.log_evidence:.4g} nats, {self.evidence_kind}"
        return f"{type(self).__name__}({len(self.data)} rows, {evidence})"

    def _drawn(self, x: Tensor, num_samples: int, seed: int, joint: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Samples of f ``[S, N, D]`` at x ``[N, Q]``, and the mean and variance of f, each ``[N, D]``."""
        what = "whether samples are functions, joint over the points,"
        joint = flag(joint, "joint", what)
        num_samples = count(num_samples, "num_samples", "the number of functions drawn")
        points = self.inputs(columns(x, self.data.x.shape[1]))
        with seeded(checked_seed(seed), points.device):
            return draw(self._latent, points, num_samples, joint=joint)


def chosen_inference(size: int, inducing: int | Inducing | None) -> Inducing | None:
    """Settings of the inducing points, or None for exact inference: the default for up to `EXACT_LIMIT` observations."""
    if inducing is None:
        return Inducing() if size > EXACT_LIMIT else None
    if isinstance(inducing, Inducing):
        return inducing
    return Inducing(points=count(inducing, "inducing", "the number of inducing points, an Inducing or None,"))


def best_fit(
    problem: Problem,
    starts: Sequence[tuple[Kernel, float]],
    inducing: Inducing | None,
    *,
    learn: bool,
    seed: int,
    progress: bool | None,
) -> tuple[Latent, float]:
    """The fit with the highest evidence over all starts (kernel and noise variance), and its evidence in nats.

    With inducing points, the best start is determined by exact inference on a random subset and then trained on all data;
    the second result is then a lower bound on the evidence.
    """
    hidden = None if progress is None else not progress  # None: shown if the output is a terminal
    bar = tqdm(desc="Gaussian process", unit="step", disable=hidden, leave=False)
    with bar, seeded(seed, problem.x.device):
        if inducing is None:
            return _best_exact(problem, starts, bar, learn=learn)
        few, _ = _best_exact(problem.some(_SUBSET), starts, bar, learn=learn)
        noise = float(few.noise) if problem.noise is None else problem.noise
        sparse = Sparse(problem.x, problem.y, few.covar_module, noise, inducing)
        return sparse, sparse.maximise(bar, learn=learn)


def _best_exact(
    problem: Problem, starts: Sequence[tuple[Kernel, float]], bar: tqdm, *, learn: bool
) -> tuple[Exact, float]:
    fits = []
    for kernel, variance in starts:
        noise = variance if problem.noise is None else problem.noise
        exact = Exact(problem.x, problem.y, kernel, noise)
        fits.append((exact, exact.maximise(bar, learn=learn)))
    return max(fits, key=lambda fit: fit[1])


def columns(x: Tensor, width: int | None = None) -> Tensor:
    """x ``[N, Q]`` in float64.

    Raises:
        ValueError: x is not a matrix of `width` columns.
    """
    x = check_inputs(x)
    if not isinstance(x, Tensor):
        raise ValueError(
            f"x of a Gaussian process must be a tensor [N, Q]; got a {type(x).__name__} of {len(x)} tensors"
        )
    if x.dim() != 2 or (width is not None and x.shape[1] != width):
        want = "Q" if width is None else width
        raise ValueError(f"x of a Gaussian process must have shape [N, {want}]; got {tuple(x.shape)}")
    return x.double()


def hyperparameters(latent: Latent) -> dict[str, float | list[float]]:
    """Values of the hyperparameters by GPyTorch's names, in standardised units."""
    names = [name for name, _ in latent.named_parameters() if name.startswith(("covar_module.", "likelihood."))]
    values = {name: attrgetter(name)(latent).detach() for name in (n.replace("raw_", "") for n in names)}
    return {name: float(v) if v.numel() == 1 else v.flatten().tolist() for name, v in values.items()}


def draw(latent: Latent, x: Tensor, num_samples: int, *, joint: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of f ``[S, N, D]`` with torch's generator, and the mean and variance of f, each ``[N, D]``."""
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
    """A matrix square root of a covariance matrix, which may be singular up to rounding."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
