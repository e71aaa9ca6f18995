"""The Gaussian process of a network's prior, against wide networks drawn from it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from pyro.infer import Predictive
from torch import Tensor

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis import gp
from pyrodrop.analysis.gp.from_model import TANH_GAIN
from pyrodrop.data import Dataset

X = torch.tensor([[0.5, -1.0, 2.0], [0.0, 0.3, 0.0], [0.4, -1.1, 2.0]])


def mlp(
    widths: tuple[int, ...] = (3, 4096, 64), activation: str | Callable[[Tensor], Tensor] = "relu", **settings: object
) -> models.MLP:
    """An MLP whose weights are of the order of their fan-in, biases with a prior too."""
    scales = {f"layers.{i}.*": priors.Gaussian(scale=1.3 / n**0.5) for i, n in enumerate(widths[:-1])}
    options: dict[str, object] = {
        "prior": scales,
        "bias_prior": priors.Gaussian(scale=0.4),
        "likelihood": likelihoods.Gaussian(precision=4.0),
    }
    return models.MLP(widths, activation, **{**options, **settings})  # type: ignore[arg-type]


def within(f: Tensor, expected: Tensor, errors: float = 3.0) -> None:
    """E[f(x) f(x')] over outputs and networks ``[networks, N, outputs]``, to that many standard errors of the networks."""
    products = torch.einsum("snd,smd->snm", f.double(), f.double()) / f.shape[-1]
    deviation = (products.mean(0) - expected) / (products.std(0) / len(products) ** 0.5)
    assert float(deviation.abs().max()) < errors, deviation


def kernel_of(start: gp.Start, x: Tensor) -> Tensor:
    return start.kernel(x.double()).to_dense().detach()


@pytest.mark.few(1)
@pytest.mark.parametrize("activation", ["relu", torch.erf], ids=["relu", "erf"])
@pytest.mark.parametrize("widths", [(3, 4096, 256), (3, 4096, 4096, 256)], ids=["one", "two"])
def test_prior_of_a_wide_network(activation: str | Callable[[Tensor], Tensor], widths: tuple[int, ...]) -> None:
    """8 networks of width 4096 drawn by `Predictive`, outputs independent given the hidden layers."""
    model = mlp(widths, activation)
    f = Predictive(model, num_samples=8, return_sites=("_RETURN",))(X)["_RETURN"]
    within(f, kernel_of(gp.from_model(model), X))


@pytest.mark.more
@pytest.mark.parametrize(("guide", "theta"), [(guides.BernoulliDropout, 0.005), (guides.DropConnect, 0.05)])
def test_prior_of_a_wide_network_with_dropout(guide: Callable[..., guides.BernoulliDropout], theta: float) -> None:
    """M of the prior, and the guide's own masks and noise: one mask for all x."""
    model = mlp((3, 2048, 1024, 64))
    q = guide(model, {"layers.0.*": 0.0, "layers.1.*": 0.5, "*": 0.2}, theta=theta)
    draws = []
    for _ in range(30):
        weights = {}
        for name, prior in model.priors.items():
            q.loc[name].data.copy_(prior.for_site(name, q.loc[name]).sample())
            weights[name] = q.posterior(name).sample()
        draws.append(model.outputs(weights, X).detach())
    f, start = torch.stack(draws), gp.from_model(model, q)
    assert start.kernel.bias_variance.tolist() == pytest.approx([0.16 + theta**2] * 3)
    within(f, kernel_of(start, X))
    with pytest.raises(AssertionError):  # the same number without the masks
        within(f, kernel_of(gp.from_model(model), X))


def test_units_and_precision_are_those_of_the_model() -> None:
    """The prior's spread and the noise in the units of y, for data with a standardisation and for data without."""
    data = Dataset(torch.linspace(1950, 1960, 30)[:, None], 320 + 10 * torch.rand(30, 1))
    model = mlp((1, 50, 1))
    for given in (data, data.standardized()):
        process = gp.GaussianProcess(given, gp.from_model(model), learn=False)
        scale = 1.0 if given.targets is None else float(given.targets.scale)
        assert process.noise_sd == pytest.approx(0.5, rel=1e-6)
        assert float(process.targets.scale) == pytest.approx(scale)
        x = given.x if given.inputs is None else given.inputs(given.x)
        expected = scale * kernel_of(gp.from_model(model), x).diagonal().mean().sqrt()
        assert process.prior_sd == pytest.approx(float(expected), rel=1e-5)
    model.standardize(data.standardized())
    process = gp.GaussianProcess(data, gp.from_model(model), learn=False)
    assert float(process.inputs.loc) == pytest.approx(1955)


def test_tanh_is_refused_or_openly_approximated() -> None:
    """erf(sqrt(pi) u / 2) is .0354 from tanh at most, and the covariances of a unit normal pair .03 of quadrature's."""
    with pytest.raises(ValueError, match="tanh network has no closed form; tanh_as_erf=True"):
        gp.from_model(mlp(activation="tanh"))
    u = torch.linspace(-8, 8, 160_001).double()
    assert float((torch.erf(TANH_GAIN * u) - torch.tanh(u)).abs().max()) < 0.0354
    start = gp.from_model(mlp((2, 8, 1), "tanh"), tanh_as_erf=True)
    assert start.kernel.gain == TANH_GAIN
    kernel = gp.NetworkKernel("erf", [2.0, 1.0], [0.0, 0.0], gain=TANH_GAIN)
    nodes, weights = hermegauss(80)
    rho = 0.6
    other = rho * nodes[:, None] + math.sqrt(1 - rho**2) * nodes[None]
    exact = float((np.outer(weights, weights) * np.tanh(nodes[:, None]) * np.tanh(other)).sum() / (2 * np.pi))
    points = torch.tensor([[1.0, 0.0], [rho, math.sqrt(1 - rho**2)]], dtype=torch.float64)
    assert float(kernel(points).to_dense()[0, 1].detach()) == pytest.approx(exact, abs=0.03)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: mlp(activation="gelu"), ValueError, "must be relu, erf, or tanh with tanh_as_erf=True; got gelu"),
        (lambda: mlp(prior=priors.ARD()), TypeError, "the prior of 'layers.0.weight' is ARD"),
        (lambda: mlp(bias_prior=priors.ARD()), TypeError, "the prior of 'layers.0.bias' is ARD"),
        (
            lambda: mlp(likelihood=likelihoods.HeteroscedasticGaussian()),
            TypeError,
            "likelihood; got Heteroscedastic",
        ),
        (
            lambda: models.from_module(torch.nn.Linear(1, 1), priors.Gaussian(), likelihoods.Gaussian(1.0)),
            TypeError,
            "that is a models.MLP; got a NetworkModel",
        ),
    ],
)
def test_models_without_a_kernel_are_refused_by_name(
    build: Callable[[], models.NetworkModel], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gp.from_model(build())


def test_guides_without_a_kernel_are_refused_by_name() -> None:
    model = mlp((3, 8, 1))
    with pytest.raises(TypeError, match="BernoulliDropout or DropConnect; got MeanField"):
        gp.from_model(model, guides.MeanField(model))
    with pytest.raises(ValueError, match="dropout on the network's input does not average out.*got drop_rate 0.5"):
        gp.from_model(model, guides.BernoulliDropout(model, 0.5, mask_input=True))
