"""Gaussian-process classification, against GPyTorch's likelihood, linear algebra and labels that are clear."""

from __future__ import annotations

import math
from pathlib import Path

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.analysis import gp
from pyrodrop.analysis.gp import GaussianProcessClassifier, Inducing, Start
from pyrodrop.analysis.gp.classifier import dirichlet_targets
from pyrodrop.data import Dataset


def blobs(n: int, spread: float = 0.4) -> tuple[Tensor, Tensor]:
    """Three classes around the corners of a triangle."""
    labels = torch.arange(n) % 3
    corners = torch.tensor([[0.0, 2.0], [-1.7, -1.0], [1.7, -1.0]])
    return corners[labels] + spread * torch.randn(n, 2), labels


def test_targets_are_those_of_gpytorchs_likelihood() -> None:
    labels = torch.tensor([0, 2, 1, 1, 0])
    theirs = gpytorch.likelihoods.DirichletClassificationLikelihood(labels, alpha_epsilon=0.05, dtype=torch.float64)
    targets, noise = dirichlet_targets(labels, 3, 0.05)
    torch.testing.assert_close(targets, theirs.transformed_targets)
    torch.testing.assert_close(noise, theirs.noise_covar.noise)


def test_posterior_of_the_logits_is_linear_algebra() -> None:
    """A Cholesky factor a class, of K plus that class's noise, by numpy."""
    x, labels = blobs(30)
    new = 2 * torch.randn(8, 2)
    start = Start(ScaleKernel(RBFKernel()))
    classifier = GaussianProcessClassifier(Dataset(x, labels), start)
    got = classifier.predict(new, 20_000)
    h = classifier.hyperparameters
    scaled = [classifier.inputs(v.double()).numpy() for v in (x, new)]
    targets, noise = (v.numpy() for v in dirichlet_targets(labels, 3, 0.01))

    def k(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squares = ((a[:, None] - b[None]) ** 2).sum(-1)
        length = h["covar_module.base_kernel.lengthscale"]
        return h["covar_module.outputscale"] * np.exp(-squares / (2 * length**2))  # type: ignore[operator]

    evidence = 0.0
    for c in range(3):
        factor = np.linalg.cholesky(k(scaled[0], scaled[0]) + np.diag(noise[c]))
        white = np.linalg.solve(factor, targets[c] - targets.mean())
        cross = np.linalg.solve(factor, k(scaled[0], scaled[1]))
        mean, sd = targets.mean() + cross.T @ white, np.sqrt(h["covar_module.outputscale"] - (cross**2).sum(0))
        np.testing.assert_allclose(got.spread[:, c], sd, rtol=1e-5)
        np.testing.assert_allclose(got.f[..., c].mean(0), mean, rtol=0, atol=4 * sd.max() / math.sqrt(20_000))
        evidence += -0.5 * (white**2).sum() - np.log(np.diag(factor)).sum() - 15 * math.log(2 * math.pi)
    assert classifier.log_evidence == pytest.approx(evidence, abs=1e-6)
    assert classifier.evidence_kind == "of the Dirichlet targets"


def test_probabilities_are_those_of_a_coin() -> None:
    """One place, labels 7 : 3, a kernel wide enough to pool them: the posterior mean of the share, within .06."""
    x, labels = torch.zeros(100, 1), (torch.arange(100) % 10 < 3).long()
    start = Start(ScaleKernel(RBFKernel()))
    start.kernel.initialize(outputscale=25.0)
    classifier = GaussianProcessClassifier((x, labels), start, learn=False, alpha_epsilon=0.1)
    share = classifier.predict(torch.zeros(1, 1), 4000).f.softmax(-1).mean(0)[0, 1]
    assert float(share) == pytest.approx(0.3, abs=0.06)


@pytest.mark.more
def test_inducing_points_agree_with_exact_inference() -> None:
    """All points: logits to 1e-2 of their prior sd. A third of them: the same classes."""
    x, labels = blobs(45)
    start = Start(ScaleKernel(RBFKernel()))
    exact = GaussianProcessClassifier((x, labels), start, learn=False)
    new = blobs(40)[0]
    a = exact.predict(new, 2)
    every = Inducing(points=45, steps=150, natural_lr=0.2)
    b = GaussianProcessClassifier((x, labels), start, learn=False, inducing=every)
    torch.testing.assert_close(b.predict(new, 2).f_sd, a.f_sd, rtol=0, atol=1e-2)
    mean_a, mean_b = (p.predict(new, 4000, seed=1).f.mean(0) for p in (exact, b))
    torch.testing.assert_close(mean_a, mean_b, rtol=0, atol=0.1)
    assert exact.log_evidence - 0.1 < b.log_evidence < exact.log_evidence + 1e-6
    assert b.evidence_kind == "lower bound, of the Dirichlet targets"
    few = GaussianProcessClassifier((x, labels), start, inducing=Inducing(points=15, steps=200, batch_size=20))
    assert bool((few.predict(new, 300).f.mean(0).argmax(-1) == mean_a.argmax(-1)).all())


@pytest.mark.slow
def test_networks_prior_classifies_digits(data_folder: Path) -> None:
    """MNIST, 600 digits for training: the prior of a 784-200-200-10 ReLU network with dropout, nothing learned."""
    digits = data.mnist()
    train, test = (Dataset(p.x[:n], p.y[:n], inputs=p.inputs) for p, n in ((digits.train, 600), (digits.test, 500)))
    model = models.MLP(
        [784, 200, 200, 10],
        "relu",
        prior={"layers.0.*": priors.Gaussian(scale=784**-0.5), "*": priors.Gaussian(scale=0.5)},
        bias_prior=priors.Gaussian(scale=0.1),
        likelihood=likelihoods.Categorical(),
    )
    guide = guides.BernoulliDropout(model, 0.5, mask_input=False)
    classifier = GaussianProcessClassifier(train, gp.from_model(model, guide), learn=False)
    assert classifier.classes == 10
    got = classifier.predict(test.x, 300, joint=False)
    accuracy = (got.f.softmax(-1).mean(0).argmax(-1) == test.y).double().mean()
    assert float(accuracy) > 0.82
    assert float(classifier.log_density(test).mean()) > math.log(0.45)
