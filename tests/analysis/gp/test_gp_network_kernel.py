"""The kernel of an infinitely wide network, against quadrature, random features and wide networks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from scipy import special
from torch import Tensor

from pyrodrop.analysis.gp import NetworkKernel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "erf": torch.erf}
X = torch.tensor([[0.5, -1.0], [0.0, 0.0], [0.4, -1.1], [-2.0, 0.3]], dtype=torch.float64)


def gram(kernel: NetworkKernel, x: Tensor) -> Tensor:
    return kernel(x).to_dense().detach()


def value(kernel: NetworkKernel, x: float, other: float) -> float:
    """The kernel at two points of one input."""
    points = torch.tensor([[x], [other]], dtype=torch.float64)
    return float(gram(kernel, points)[0, 1])


def within(estimates: Tensor, expected: Tensor, errors: float = 3.0) -> None:
    """The mean of independent estimates, along the first dimension, is `expected` to that many standard errors."""
    deviation = (estimates.mean(0) - expected) / (estimates.std(0) / len(estimates) ** 0.5)
    assert float(deviation.abs().max()) < errors, deviation


def features(activation: str, v: list[float], c: list[float], x: Tensor, width: int) -> Tensor:
    """The output's covariance given one draw of a network's hidden layers, `width` random features each.

    Given the features below, those of a layer are independent draws of N(0, c + v mean of products), distributed
    as W g + b.
    """
    g, eye = ACTIVATIONS[activation], 1e-12 * torch.eye(len(x), dtype=x.dtype)
    covariance = c[0] + v[0] * x @ x.T / x.shape[1]
    for weight, bias in zip(v[1:], c[1:], strict=True):
        h = torch.randn(width, len(x), dtype=x.dtype) @ torch.linalg.cholesky(covariance + eye).T
        covariance = bias + weight * g(h).T @ g(h) / width
    return covariance


@pytest.mark.few(1)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_recursion_is_that_of_random_features(activation: str, depth: int) -> None:
    """20 networks of 100,000 features a layer, to 3 standard errors."""
    v, c = [1.5, 2.0, 1.2, 0.8, 2.5][: depth + 1], [0.3, 0.1, 0.2, 0.05, 0.4][: depth + 1]
    estimates = torch.stack([features(activation, v, c, X, 100_000) for _ in range(20)])
    within(estimates, gram(NetworkKernel(activation, v, c), X))


def test_gain_is_inside_the_activation() -> None:
    """E[erf(a u) erf(a u')] of 100,000 draws, ten times."""
    k = torch.tensor([[1.3, 0.4], [0.4, 0.9]], dtype=torch.float64)
    u = torch.randn(10, 100_000, 2, dtype=torch.float64) @ torch.linalg.cholesky(k).T
    estimates = torch.erf(0.7 * u[..., 0]) * torch.erf(0.7 * u[..., 1])
    x = math.sqrt(2) * torch.linalg.cholesky(k)  # two inputs of two columns with x.x'/2 = k
    kernel = NetworkKernel("erf", [1.0, 1.0], [0.0, 0.0], gain=0.7)
    within(estimates.mean(1), gram(kernel, x)[0, 1])


def one_layer_integral(g: Callable[[np.ndarray], np.ndarray], x: float, other: float, order: int) -> float:
    """K(x, x') = int p(w) p(b) g(w x + b) g(w x' + b) dw db by Gauss-Hermite in w and b, standard normal both."""
    nodes, weights = hermegauss(order)
    w, b = nodes[:, None], nodes[None, :]
    p = weights[:, None] * weights[None, :] / (2 * np.pi)
    return float((p * g(w * x + b) * g(w * other + b)).sum())


POINTS = [(0.7, 0.7), (0.7, -0.4), (0.0, 1.3), (-2.0, -1.9)]


@pytest.mark.parametrize(("x", "other"), POINTS)
@pytest.mark.parametrize(
    ("activation", "function", "tolerance"),
    [("relu", lambda u: np.maximum(u, 0), 6e-4), ("erf", special.erf, 1e-12)],
    ids=["relu", "erf"],
)
def test_one_layer_is_the_integral_over_weight_and_bias(
    activation: str, function: Callable[[np.ndarray], np.ndarray], tolerance: float, x: float, other: float
) -> None:
    """Order 180; the tolerance is the quadrature's, whose error at a ReLU's edge falls as 1 / order."""
    kernel = NetworkKernel(activation, [1.0, 1.0], [1.0, 0.0])
    assert value(kernel, x, other) == pytest.approx(one_layer_integral(function, x, other, 180), abs=tolerance)


def test_without_hidden_layers_it_is_the_linear_model() -> None:
    torch.testing.assert_close(gram(NetworkKernel("relu", [3.0], [0.5]), X), 0.5 + 3 * X @ X.T / 2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_diagonal_and_cross_covariances_are_those_of_the_matrix(activation: str) -> None:
    kernel = NetworkKernel(activation, [1.5, 2.0, 1.2], [0.3, 0.0, 0.2], drop_rate=[0.1, 0.4])
    full = gram(kernel, X)
    torch.testing.assert_close(kernel(X, diag=True), full.diagonal())
    torch.testing.assert_close(kernel(X[:2], X[1:]).to_dense(), full[:2, 1:])
    torch.testing.assert_close(kernel(X[:2], X[2:], diag=True), torch.stack([full[0, 2], full[1, 3]]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [0.0, 0.1])
def test_repeated_points_are_positive_definite_with_finite_gradients(activation: str, bias: float) -> None:
    """200 points of which half are repeats, some a rounding apart and some 0, five layers deep."""
    x = torch.randn(100, 3, dtype=torch.float64)
    x[0] = 0
    x = torch.cat([x, x[:50], x[50:] * (1 + 1e-15)]).requires_grad_()
    kernel = NetworkKernel(activation, [2.0] * 6, [bias] * 6, drop_rate=0.1)
    k = kernel(x).to_dense()
    torch.testing.assert_close(k, k.T, rtol=0, atol=1e-14)
    factor = torch.linalg.cholesky(k + 1e-8 * k.detach().diagonal().mean() * torch.eye(200, dtype=torch.float64))
    factor.diagonal().log().sum().backward()
    for value in (x, *kernel.parameters()):
        assert value.grad is not None
        assert bool(value.grad.isfinite().all())


@pytest.mark.parametrize(("activation", "most"), [("relu", 1e18 * 3), ("erf", 1.0)])
def test_huge_variances_keep_their_digits(activation: str, most: float) -> None:
    """Points a rounding apart, v_0 = 1e18: no determinant below 0, no cosine above 1."""
    x = torch.tensor([[1.0], [1 + 1e-15], [1 + 1e-9], [-1.7]], dtype=torch.float64)
    kernel = NetworkKernel(activation, [1e18, 1.0], [0.0, 0.0])
    k = kernel(x).to_dense()
    k.sum().backward()
    assert bool((k <= most).all())
    assert bool(kernel.raw_weight_variance.grad.isfinite().all())  # type: ignore[union-attr]
    torch.testing.assert_close(k.detach()[0, :3], k.detach()[0, 0].expand(3), rtol=1e-5, atol=0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_those_of_finite_differences(activation: str) -> None:
    """Of variances and inputs, away from repeats; at a repeat, of the variances."""
    kernel = NetworkKernel(activation, [1.5, 2.0, 1.2], [0.3, 0.1, 0.2])
    raw = [p.detach().requires_grad_() for p in (kernel.raw_weight_variance, kernel.raw_bias_variance)]

    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v, c, x: kernel_value(kernel, v, c, x, x[:2] + 0.1), (*raw, x))
    assert torch.autograd.gradcheck(lambda v, c: kernel_value(kernel, v, c, X, X), raw)


def kernel_value(kernel: NetworkKernel, v: Tensor, c: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """The kernel's matrix as a function of its raw parameters too."""
    stated = {"raw_weight_variance": v, "raw_bias_variance": c}
    saved = {name: kernel._parameters.pop(name) for name in stated}
    kernel.__dict__.update(stated)
    try:
        return kernel.forward(x, other)
    finally:
        for name, parameter in saved.items():
            del kernel.__dict__[name]
            kernel._parameters[name] = parameter


def test_layers_without_bias_stay_without() -> None:
    kernel = NetworkKernel("relu", [1.0, 1.0], [0.5, 0.0])
    gram_before = kernel(X).to_dense()
    gram_before.sum().backward()
    assert kernel.raw_bias_variance.grad is not None
    assert float(kernel.raw_bias_variance.grad[1]) == 0
    assert kernel.bias_variance.tolist() == pytest.approx([0.5, 0.0])
