"""Gaussian-process classification by regression on the logarithm of a Dirichlet's gamma variables.

    y_n = c  ->  Dirichlet(a_n1 ... a_nC),   a_nc = alpha_epsilon + 1[y_n = c]
    Gamma(a, 1) ~ LogNormal:   noise_nc = ln(1 / a_nc + 1),   target_nc = ln a_nc - noise_nc / 2
    f_c ~ GP(mean of all targets, k),   target_nc = f_c(x_n) + N(0, noise_nc),   p(y = c | f) = softmax(f)_c

Milios, Camoriano, Michiardi, Rosasco & Filippone (2018), Dirichlet-based Gaussian Processes for Large-scale Calibrated
Classification, https://arxiv.org/abs/1805.10915. Classes share one kernel, like the outputs of a network. Hyperparameters
maximise the evidence of the targets. It is not that of the labels and cannot be compared with an ELBO. Inference given the
targets is exact for up to 10,000 observations and uses inducing points above.
"""

from __future__ import annotations

import copy

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrodrop.analysis.gp.inducing import Inducing
from pyrodrop.analysis.gp.latent import FittedProcess, Problem, columns
from pyrodrop.analysis.gp.starts import KernelSetting, starts_of
from pyrodrop.checks import count, real
from pyrodrop.data import Data, Dataset
from pyrodrop.likelihoods import Categorical
from pyrodrop.likelihoods.classes import number_of_classes
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.scaling import Standardize


class GaussianProcessClassifier(FittedProcess):
    """One Gaussian process per class, fitted to labels.

    Args:
        data: x ``[N, Q]`` and integer labels y ``[N]``, from 0.
        kernel, learn, inducing, seed, progress: as for `GaussianProcess`. The kernel is that of the logits.
        alpha_epsilon: positive pseudo-count of a class that was not observed. Smaller values make predictions more
            confident.
        classes: number of classes. If None, that of the model from which the kernel was made, otherwise the largest label
            plus 1.

    Attributes:
        data: the training data.
        inputs: the standardisation of x.
        classes: number of classes.
        log_evidence: log marginal likelihood of the real-valued targets, in nats, or a lower bound on it.
        evidence_kind: ``of the Dirichlet targets`` or ``lower bound, of the Dirichlet targets``.
        kernel, hyperparameters, seconds: as for `GaussianProcess`.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: y is not integer labels, a label is outside 0 ... classes - 1, or alpha_epsilon is not positive.
    """

    def __init__(
        self,
        data: Data,
        kernel: KernelSetting,
        *,
        alpha_epsilon: float = 0.01,
        classes: int | None = None,
        learn: bool = True,
        inducing: int | Inducing | None = None,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        super().__init__(data, learn, seed, progress)
        data = self.data
        labels = Categorical().as_target(data.y)
        x = columns(data.x)
        starts = starts_of(kernel, x.shape[1])
        if classes is not None:
            classes = count(classes, "classes", "the number of classes")
        if labels.dim() != 1:
            raise ValueError(f"y of a GaussianProcessClassifier must be labels of shape [N]; got {tuple(labels.shape)}")
        self.classes: int = classes or starts[0].classes or number_of_classes(labels)
        if not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            if classes is not None and int(labels.min()) >= 0:
                raise ValueError(f"classes must be at least {int(labels.max()) + 1} for these labels; got {classes}")
            raise ValueError(
                f"y: class labels must lie in 0 ... {self.classes - 1}; got {int(labels.min())} to {int(labels.max())}"
            )
        inputs = data.inputs or starts[0].inputs or Standardize.of(data.x if data.x.is_floating_point() else x)
        self.inputs: Standardize = copy.deepcopy(inputs).double()
        targets, noise = dirichlet_targets(labels, self.classes, alpha_epsilon)
        self._offset = targets.mean()
        problem = Problem(self.inputs(x), targets - self._offset, noise)
        exact = self._fit(problem, [(start.kernel, 0.0) for start in starts], inducing)
        self.evidence_kind = ("" if exact else "lower bound, ") + "of the Dirichlet targets"

    def predict(self, x: Tensor, num_samples: int = 1000, *, seed: int = 0, joint: bool = True) -> Prediction:
        """Samples of the logits at x ``[N, Q]``, f ``[S, N, C]``, and the mixture of their categorical distributions.

        ``joint=False`` samples every point independently. The marginals are the same, and no N x N covariance is needed.
        """
        f, _, variance = self._drawn(x, num_samples, seed, joint)
        f = f + self._offset
        return Prediction(f, dist.Categorical(logits=f), seed, joint=joint, f_sd=variance.sqrt())

    def log_density(self, data: Data, num_samples: int = 1000, *, seed: int = 0) -> Tensor:
        """ln p(y_n | x_n, training data) per observation, ``[N]`` in nats, from `num_samples` samples of the logits."""
        data = Dataset.of(data)
        parts = [
            self.predict(x, num_samples, seed=seed, joint=False).log_density(y)
            for x, y in zip(data.x.split(1000), Categorical().as_target(data.y).split(1000), strict=True)
        ]
        return torch.cat(parts)


def dirichlet_targets(labels: Tensor, classes: int, alpha_epsilon: float) -> tuple[Tensor, Tensor]:
    """Real-valued targets and their noise variances, each ``[classes, N]``, for labels ``[N]``."""
    alpha_epsilon = real(alpha_epsilon, "alpha_epsilon", "the pseudo-count of a class that was not observed", above=0)
    alpha = alpha_epsilon + torch.nn.functional.one_hot(labels, classes).double().T
    noise = (1 / alpha + 1).log()
    return alpha.log() - noise / 2, noise
