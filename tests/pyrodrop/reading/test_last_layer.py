"""`pyrodrop.last_layer` against Bayesian linear regression in NumPy and SciPy, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import null_space
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from torch import Tensor, nn

import pyrodrop
from pyrodrop import data
from pyrodrop.guides.laplace import LabelRows
from pyrodrop.reading.last_layer import most_evident, scale_of_labels


def network(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(outputs)
    return nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Dropout(0.5), nn.Linear(9, outputs))


def rows(outputs: int = 1, n: int = 40) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(outputs)
    x = torch.randn(n, 2, generator=g)
    y = torch.stack([torch.sin((k + 1) * x[:, 0]) * 10.0**k for k in range(outputs)], 1)
    return x, 5 + y + 0.1 * torch.randn(n, outputs, generator=g)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n", [40, 8])  # more and fewer rows than features
def test_scale_and_noise_have_the_largest_evidence(outputs: int, n: int, bias: bool) -> None:
    """SciPy's maximum of the density of N - 1 contrasts of y, which have no bias; of y itself if the layer has none."""
    g = torch.Generator().manual_seed(0)
    phi = torch.randn(n, 12, generator=g).double()
    w = torch.randn(12, outputs, generator=g).double() * 0.7
    y = phi @ w + torch.tensor([0.5, 2.0])[:outputs] * torch.randn(n, outputs, generator=g) + (30 if bias else 1)
    contrasts = null_space(np.ones((1, n))).T if bias else np.eye(n)

    def minus_evidence(logs: np.ndarray) -> float:
        total = 0.0
        for d in range(outputs):
            covariance = np.exp(2 * logs[0]) * (phi @ phi.T).numpy() + np.exp(2 * logs[1 + d]) * np.eye(n)
            normal = multivariate_normal(cov=contrasts @ covariance @ contrasts.T)
            total -= float(normal.logpdf(contrasts @ y[:, d].numpy()))
        return total

    scale, noise = most_evident(torch.linalg.qr(torch.cat([torch.ones(n, 1), phi, y], 1))[1], outputs, bias)
    got = np.log([scale, *noise.tolist()])
    best = minimize(minus_evidence, got + 0.3, method="Nelder-Mead", options={"fatol": 1e-9, "xatol": 1e-9})
    assert minus_evidence(got) == pytest.approx(best.fun, abs=1e-3)


@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize("outputs", [1, 2])
def test_predictions_are_those_of_bayesian_linear_regression(outputs: int, standardised: bool) -> None:
    """Mean and variance of f at the data and far from them, from features that plain PyTorch computes, to 5 errors."""
    net, (x, y), draws = network(outputs), rows(outputs), 4000
    train = data.Dataset(x, y).standardized() if standardised else data.Dataset(x, y)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run = pyrodrop.last_layer(net, train)
    at = torch.cat([x[:3], torch.tensor([[4.0, -4.0]])])
    f = run.predict(at, draws).f.double().numpy()

    def features(x: Tensor) -> np.ndarray:
        x = train.inputs(x) if train.inputs else x
        with torch.no_grad():
            phi = torch.tanh(net[0](x)).double()
        return np.column_stack([phi.numpy(), np.ones(len(phi))])

    phi, there = features(x), features(at)
    loc, size = (train.targets.loc.double(), train.targets.scale.double()) if train.targets else (0.0, 1.0)
    target = ((y - loc) / size).numpy()
    sizes = np.broadcast_to(np.asarray(size), (outputs,))
    prior, bias = run.model.priors["3.weight"], run.model.priors["3.bias"]
    inverse = np.diag([prior.scale**-2.0] * 9 + [bias.scale**-2.0])
    tau = np.broadcast_to(np.asarray(run.model.likelihood.precision.detach().double()), (outputs,)) * sizes**2
    for d in range(outputs):
        covariance = np.linalg.inv(inverse + tau[d] * phi.T @ phi)
        mean = there @ (covariance @ phi.T @ target[:, d] * tau[d]) * sizes[d] + np.broadcast_to(loc, (outputs,))[d]
        variance = np.einsum("nk,kl,nl->n", there, covariance, there) * sizes[d] ** 2
        assert (np.abs(f[:, :, d].mean(0) - mean) < 5 * np.sqrt(variance / draws)).all()
        np.testing.assert_allclose(f[:, :, d].var(0), variance, rtol=5 * np.sqrt(2 / draws))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net.training


def test_noise_is_in_the_units_of_y() -> None:
    """Of standardised data, that of the same network for their standardised numbers times their scales."""
    (x, y), net = rows(2), network(2)
    train = data.Dataset(x, y).standardized()
    assert train.inputs is not None
    assert train.targets is not None
    plain = pyrodrop.last_layer(net, (train.inputs(x), train.targets(y))).model.likelihood.precision
    precision = pyrodrop.last_layer(net, train).model.likelihood.precision
    torch.testing.assert_close(precision * train.targets.scale**2, plain, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("noise", [1.0, 0.0], ids=["", "separable"])
def test_labels_have_the_scale_with_the_largest_elbo(noise: float) -> None:
    """By draws from SciPy's Laplace approximation, the ELBO is largest near it, and near the evidence."""
    g = torch.Generator().manual_seed(0)
    phi = torch.randn(60, 3, generator=g).double()
    label = (phi @ torch.tensor([2.0, -1.0, 0.0]).double() + noise * torch.randn(60, generator=g).double() > 0).long()
    scale = scale_of_labels(phi, torch.nn.functional.one_hot(label, 2).double(), bias=False)

    def log_weights(sd: float) -> np.ndarray:
        """ln p(y, w) - ln q(w) of two classes, whose difference of weights has sd sqrt(2)."""
        sign, white = 1 - 2 * label.numpy(), np.random.default_rng(0).normal(size=(20_000, 3))

        def minus(w: np.ndarray) -> float:
            return float(np.logaddexp(0, phi.numpy() @ w * sign).sum() + (w**2).sum() / (4 * sd**2))

        mode = minimize(minus, np.zeros(3), method="BFGS").x
        p = 1 / (1 + np.exp(-phi.numpy() @ mode))
        precision = np.eye(3) / (2 * sd**2) + (phi.numpy().T * p * (1 - p)) @ phi.numpy()
        draws = mode + np.linalg.solve(np.linalg.cholesky(precision).T, white.T).T
        log_q = -(white**2).sum(1) / 2 + np.linalg.slogdet(precision)[1] / 2
        log_p = -np.logaddexp(0, draws @ phi.numpy().T * sign).sum(1) - (draws**2).sum(1) / (4 * sd**2)
        return log_p - 3 * np.log(np.sqrt(2) * sd) - log_q  # type: ignore[no-any-return]

    grid = [log_weights(scale * factor).mean() for factor in (0.5, 0.8, 1.0, 1.25, 2.0)]
    assert np.logaddexp.reduce(log_weights(scale)) - np.log(20_000) - grid[2] < 3
    one_hot, zero = torch.nn.functional.one_hot(label, 2).double(), torch.zeros(2, 3).double()
    of_both = LabelRows(phi, one_hot, torch.ones(60, 1).double(), zero[:, 0], zero, zero + scale**-2, True)
    elbo = float(of_both.elbo(torch.randn(20_000, 2, 3, generator=g).double()))
    assert elbo == pytest.approx(grid[2], abs=5 * log_weights(scale).std() / 20_000**0.5 + 0.05)
    assert grid[2] > max(grid[0], grid[4])
    assert grid[2] > max(grid) - 0.05


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_labels_have_laplace_predictions(outputs: int) -> None:
    """The gradient of the posterior is 0 at the mean weights, and training rows are predicted."""
    net, (x, _) = network(outputs), rows()
    y = torch.bucketize(x[:, 0] + x[:, 1], torch.tensor([0.0, 1.0])[: max(outputs, 2) - 1])
    run = pyrodrop.last_layer(net, (x, y))
    weights = run.guide.mean()
    with torch.no_grad():
        phi = torch.tanh(net[0](x)).double()
        logits = phi @ weights["3.weight"].double().T + weights["3.bias"].double()
    p, target = (logits.sigmoid(), y[:, None].double()) if outputs == 1 else (
        logits.softmax(1), torch.nn.functional.one_hot(y, outputs).double())  # fmt: skip
    slope = (target - p).T @ phi - weights["3.weight"] / run.model.priors["3.weight"].scale ** 2
    assert float(slope.abs().max()) < 1e-3
    density = run.predict(x, 300).log_density(y[:, None].float() if outputs == 1 else y).mean()
    assert float(density) > -0.3


def test_it_is_saved_and_compared_as_a_fit(tmp_path: Path) -> None:
    x, y = rows()
    run = pyrodrop.last_layer(network(), (x, y[:, 0]))
    again = pyrodrop.Fit.load(run.save(tmp_path / "last.safetensors"), model=run.model)
    torch.testing.assert_close(again.predict(x, 20).mean, run.predict(x, 20).mean)
    assert "(exact)" in str(run.elbo())
    assert "ExactLastLayer(Point)" in repr(run)
    assert pyrodrop.compare({"a": run, "b": again}, (x, y)).rows["a"]["log_density"] is not None


def loader_of(x: Tensor, y: Tensor, size: int) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), size, shuffle=True)


@pytest.mark.parametrize("size", [3, 40])  # fewer rows than features, and all
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loader_has_the_posterior_of_its_rows(size: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """Noise, scales and predictions are those of the tensors, from a file that has no rows."""
    net, (x, y) = network(2).to(dtype), rows(2)
    whole = pyrodrop.last_layer(net, (x.to(dtype), y.double()))
    run = pyrodrop.last_layer(net, loader_of(x.to(dtype), y.double(), size))
    assert run.settings["num_data"] == 40
    priors = {name: pyrodrop.priors.Gaussian(float(run.model.priors[name].scale)) for name in ("3.weight", "3.bias")}
    torch.testing.assert_close(run.model.likelihood.precision, whole.model.likelihood.precision, rtol=1e-5, atol=0)
    assert priors["3.weight"].scale == pytest.approx(whole.model.priors["3.weight"].scale, rel=1e-5)
    want = whole.predict(x.to(dtype), 50, seed=1).f
    torch.testing.assert_close(run.predict(x.to(dtype), 50, seed=1).f, want, rtol=1e-4, atol=1e-4)
    stored = run.stored()
    assert all(40 not in tensor.shape for tensor in stored.tensors.values())
    model = pyrodrop.models.from_module(
        network(2).to(dtype).eval(), {"3.weight": priors["3.weight"], "*": None}, pyrodrop.likelihoods.Gaussian([1.0, 1.0]),
        bias_prior={"3.bias": priors["3.bias"], "*": None},
    )  # fmt: skip
    again = pyrodrop.Fit.load(run.save(tmp_path / "sums"), model=model)
    torch.testing.assert_close(again.predict(x.to(dtype), 50, seed=1).f, run.predict(x.to(dtype), 50, seed=1).f)
    with pytest.raises(ValueError, match="needs the rows; got a guide without rows"):
        run.guide.left_out({})


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.layer(x)  # type: ignore[no-any-return]


def test_a_layer_without_a_bias_is_not_centred() -> None:
    """Its noise has to explain what the features do not of a y far from 0."""
    torch.manual_seed(0)
    net, (x, y) = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1, bias=False)), rows()
    run = pyrodrop.last_layer(net, (x, y))
    assert list(run.model.priors) == ["2.weight"]
    with torch.no_grad():
        phi = torch.tanh(net[0](x)).double()
    left = y.double() - phi @ torch.linalg.lstsq(phi, y.double()).solution
    assert float(run.model.likelihood.precision) ** -0.5 > 0.9 * float(left.square().mean().sqrt())


X, Y = rows()
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "labels from a loader": (lambda: network(2), loader_of(X, torch.arange(40) % 2, 9), "needs tensors .x, labels."),
    "far from zero": (network, (X, Y.double() + 1e7), "rounds its values"),
    "labels of one output": (network, (X, torch.arange(40)), "must lie in 0 ... 1"),
    "labels out of range": (lambda: network(2), (X, torch.arange(40) % 3), "must lie in 0 ... 1"),
    "one label": (lambda: network(2), (X, torch.zeros(40).long()), "and vary"),
    "columns": (network, (X, Y.expand(-1, 3)), r"y must be \[N, 1\] .*got shape"),
    "missing": (network, (X, Y.clone().index_fill_(0, torch.tensor(2), torch.nan)), "y must be finite"),
    "constant": (network, (X, torch.ones(40)), "vary in each column"),
    "one loader of a constant": (network, loader_of(X, 0.1 * torch.ones(40, 1), 7), "vary in each column"),
    "two rows": (network, (X[:2], Y[:2]), "at least 3 rows"),
    "scaled": (Scaled, (X, Y), "returns the output of a torch.nn.Linear"),
    "no layer": (nn.Tanh, (X, Y), "returns the output of a torch.nn.Linear"),
    "tokens": (network, (X[:, None].expand(-1, 4, -1), Y), "one vector per row"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    make, rows, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        pyrodrop.last_layer(make(), rows)
    with pytest.raises(TypeError, match="net must be a torch.nn.Module"):
        pyrodrop.last_layer("net", rows)  # type: ignore[arg-type]


def test_labels_as_real_numbers_are_said(caplog: pytest.LogCaptureFixture) -> None:
    pyrodrop.last_layer(network(), (X, (X[:, :1] > 0).float()))
    assert "class labels must have an integer dtype" in caplog.text
