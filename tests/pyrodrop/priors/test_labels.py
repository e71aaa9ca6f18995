"""The evidence of class labels: Laplace's approximation against dense linear algebra, and what `from_gp` makes of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.priors.labels import laplace


def kernel(x: Tensor, scales: Tensor) -> Tensor:
    return scales[0].exp() * torch.exp(-torch.cdist(x, x).square() / 2 / scales[1].exp()) + 0.3


def dense(k: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, float]:
    """The mode by SciPy in whitened functions, and the evidence with the determinant of the whole matrix."""
    n = len(k)
    y, root = np.eye(classes)[labels], np.linalg.cholesky(k + 1e-10 * np.eye(n))

    def objective(white: np.ndarray) -> tuple[float, np.ndarray]:
        f = root @ (white := white.reshape(n, classes))
        norm = np.logaddexp.reduce(f, 1, keepdims=True)
        return -float((y * (f - norm)).sum() - (white**2).sum() / 2), -(root.T @ (y - np.exp(f - norm)) - white).ravel()

    found = minimize(
        objective, np.zeros(n * classes), jac=True, method="L-BFGS-B", tol=1e-14, options={"maxiter": 9999}
    )
    f = root @ found.x.reshape(n, classes)
    p = np.exp(f - np.logaddexp.reduce(f, 1, keepdims=True))
    w = np.einsum("nc,nm,cd->ncmd", p, np.eye(n), np.eye(classes)) - np.einsum("nc,nd,nm->ncmd", p, p, np.eye(n))
    whole = np.eye(n * classes) + np.kron(k, np.eye(classes)) @ w.reshape(n * classes, -1)
    return f, -found.fun - np.linalg.slogdet(whole)[1] / 2


@pytest.mark.parametrize(("classes", "log_size"), [(2, 1.0), (3, 3.0), (5, 4.0)])
def test_mode_evidence_and_gradient_are_those_of_dense_matrices(classes: int, log_size: float) -> None:
    """The gradient by central differences of the dense evidence; functions as large as e^2."""
    g = torch.Generator().manual_seed(classes)
    x, labels = torch.randn(14, 2, generator=g).double(), torch.randint(0, classes, (14,), generator=g)
    scales = torch.tensor([log_size, 0.3], dtype=torch.float64, requires_grad=True)
    mode = laplace(kernel(x, scales), labels, classes)
    (slope,) = torch.autograd.grad(mode.evidence, scales)
    f, evidence = dense(kernel(x, scales).detach().numpy(), labels.numpy(), classes)
    np.testing.assert_allclose(mode.f.detach().numpy(), f, atol=1e-3 * np.abs(f).max())
    assert mode.evidence.item() == pytest.approx(evidence, rel=1e-5)
    for n, unit in enumerate(torch.eye(2).double()):
        up, down = (
            dense(kernel(x, scales.detach() + h * unit).numpy(), labels.numpy(), classes)[1] for h in (1e-3, -1e-3)
        )
        assert float(slope[n]) == pytest.approx((up - down) / 2e-3, rel=1e-3, abs=1e-3)


def mlp(classes: int = 2, activation: Any = "tanh", **options: Any) -> models.MLP:
    return models.MLP(
        [2, 50, classes], activation, prior=priors.Gaussian(), likelihood=likelihoods.Categorical(), **options
    )


def rings(rows: int, classes: int = 2, seed: int = 0) -> data.Dataset:
    """Rings around each other, in units of their own."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    angle, radius = 2 * math.pi * torch.rand(rows, generator=g), 1.0 + y + 0.2 * torch.randn(rows, generator=g)
    x = torch.stack([5 + radius * angle.cos(), 100 * radius * angle.sin()], 1)
    return data.Dataset(x, y, inputs=data.Dataset(x, x).standardized().inputs)


def test_the_model_has_the_evidence_and_units_do_not_matter() -> None:
    """That of the kernel of `analysis.gp.from_model` for the fitted network; two columns in units 100 times apart."""
    from pyrodrop.analysis import gp

    train = rings(60, 3)
    fitted = priors.from_gp(mlp(3), train)
    assert train.inputs is not None
    k = gp.from_model(fitted.model, tanh_as_erf=True).kernel(train.inputs(train.x.double())).to_dense().detach()
    assert fitted.evidence == pytest.approx(float(laplace(k, train.y, 3).evidence), rel=1e-6)
    assert fitted.constant == pytest.approx(-math.log(3))
    assert fitted.noise_sd is None
    assert "sd of noise" not in repr(fitted)
    assert isinstance(fitted.model.likelihood, likelihoods.Categorical)
    one, two = fitted.prior["layers.0.weight"].scale  # type: ignore[misc]
    assert 1 / 1.5 < one / two < 1.5  # rings are as curved in both directions


def waves(rows: int, seed: int) -> data.Dataset:
    g = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(rows, 2, generator=g) - 2
    return data.Dataset(x, (x[:, 1] > torch.sin(3 * x[:, 0])).long())


def test_priors_that_fit_predict_as_a_gaussian_process_does() -> None:
    """Waves that N(0, 1) cannot follow: a mean field is better under fitted priors, and at most .1 nats behind."""
    import pyrodrop
    from pyrodrop.analysis.gp import GaussianProcessClassifier

    train, test = waves(150, 0), waves(400, 1)

    def score(model: models.MLP) -> float:
        run = pyrodrop.fit(model, guides.MeanField(model), train, steps=1200, lr=0.02, progress=False)
        return float(run.predict(test.x, 200).log_density(test.y).mean())

    process = GaussianProcessClassifier(train, "squared-exponential", progress=False)
    best = float(process.predict(test.x, 200).log_density(test.y).mean())
    usual, fitted = score(mlp()), score(priors.from_gp(mlp(), train).model)
    assert fitted > usual + 0.04
    assert fitted > best - 0.1


def test_of_many_rows_some_are_drawn_and_labels_have_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrodrop.priors.fitted.ROWS_OF_LABELS", 50)
    fitted = priors.from_gp(mlp(activation="relu"), rings(60))
    assert (fitted.rows, fitted.of_rows) == (50, 60)
    with pytest.raises(ValueError, match="learn_noise must be False for class labels"):
        priors.from_gp(mlp(), rings(30), learn_noise=True)
    alone = data.Dataset(rings(30).x, torch.zeros(30, dtype=torch.int64))
    with pytest.raises(ValueError, match="y must vary for from_gp; got 30 equal labels"):
        priors.from_gp(mlp(), alone)
