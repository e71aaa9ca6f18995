"""Predictions and ELBOs of networks of any input and output: against one weight after the other in plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import poisson
from torch import Tensor, nn

import pyrodrop
from pyrodrop import data, guides, likelihoods, metrics, models, priors
from pyrodrop.checks import mapped
from pyrodrop.likelihoods import Likelihood, elements
from pyrodrop.training.elbo import elbo_terms
from tests.small import Counts, Heavy, tokens

pytestmark = pytest.mark.usefixtures("float64")
N, PRECISION = 7, 4.0


class Words(nn.Module):
    """Mean of the words that a mask keeps, of two tensors [N, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        kept = torch.tanh(self.words(ids)) * mask[..., None]
        return self.last(kept.sum(1) / mask.sum(1, keepdim=True))


class Graph(nn.Module):
    """A graph of N nodes with fixed edges: it takes all of its nodes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 3)
        edges = (torch.rand(N, N, generator=torch.Generator().manual_seed(5)) < 0.4).double() + torch.eye(N)
        self.register_buffer("edges", edges / edges.sum(1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.edges @ self.first(x)))


class Image(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 1, 3, padding=1), nn.Flatten(1, 2))


class Normalised(nn.Sequential):
    """With running statistics that are not those of any batch at hand."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
        self[1].running_mean.copy_(torch.tensor([0.3, -0.2, 0.1, 0.5]))
        self[1].running_var.copy_(torch.tensor([0.4, 2.0, 1.0, 0.2]))


def of_normal(f: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.Normal(f, PRECISION**-0.5).log_prob(y.reshape(f.shape)).flatten(1).sum(1)


def of_labels(f: Tensor, y: Tensor) -> Tensor:
    return -F.cross_entropy(f.movedim(-1, 1), y, reduction="none").reshape(len(y), -1).sum(1)


def of_counts(f: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.Poisson(f[..., 0].exp()).log_prob(y)


@dataclass
class Case:
    net: Callable[[], nn.Module]
    x: Any
    y: Tensor
    likelihood: Callable[[], Likelihood]
    density: Callable[[Tensor, Tensor], Tensor]  # ln p(y_n | f_n), [N], from the network's outputs


def gaussian() -> Likelihood:
    return likelihoods.Gaussian(PRECISION)


def cases() -> dict[str, Case]:
    g = torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    label = lambda most, *shape: torch.randint(most, shape, generator=g)  # noqa: E731
    ids, mask = label(9, N, 5), (torch.rand(N, 5, generator=g) < 0.7).double()
    mask[:, 0] = 1
    categorical = likelihoods.Categorical
    return {
        "images": Case(Image, normal(N, 1, 4, 3), normal(N, 4, 3), gaussian, of_normal),
        "one_token": Case(lambda: tokens(2), normal(N, 1, 3), normal(N, 1, 2), gaussian, of_normal),
        "tokens": Case(lambda: tokens(2), normal(N, 4, 3), normal(N, 4, 2), gaussian, of_normal),
        "labels_of_tokens": Case(lambda: tokens(3), normal(N, 4, 3), label(3, N, 4), categorical, of_labels),
        "counts": Case(lambda: tokens(1), normal(N, 3), label(6, N), Counts, of_counts),
        "a_pair": Case(Words, (ids, mask), label(3, N), categorical, of_labels),
        "by_name": Case(Words, {"mask": mask, "ids": ids}, label(3, N), categorical, of_labels),
        "graph": Case(Graph, normal(N, 2), label(3, N), categorical, of_labels),
        "batch_norm": Case(Normalised, normal(N, 3), normal(N, 2), gaussian, of_normal),
    }


NAMES = list(cases())
GUIDES: dict[str, Callable[[Any], Any]] = {
    "bernoulli": lambda m: guides.BernoulliDropout(m, 0.3),
    "mean_field": lambda m: guides.MeanField(m, 0.3),
}


def made(name: str, guide: str = "bernoulli") -> tuple[nn.Module, pyrodrop.Fit, Case]:
    """The plain network, a fit of it as it is, and the case. The model is in training mode, as networks are built."""
    case = cases()[name]
    torch.manual_seed(2)
    net = case.net().double()
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=case.likelihood()).double()
    posterior = GUIDES[guide](model).double()
    fit = pyrodrop.Fit(model, posterior, data.Dataset(case.x, case.y), torch.zeros(1, 3), {})
    return net.eval(), fit, case


@pytest.mark.parametrize("name", NAMES)
def test_the_mixture_is_that_of_its_functions(name: str) -> None:
    """Density, mean, variance and draws of y, from the functions drawn, in torch.distributions."""
    _, fit, case = made(name)
    prediction, y = fit.predict(case.x, 200, seed=1), case.y
    f = prediction.f.log() if name == "counts" else prediction.f
    density = torch.stack([case.density(draw, y) for draw in f])
    torch.testing.assert_close(prediction.log_density(y), density.logsumexp(0) - math.log(200))
    assert prediction.log_density(y).shape == (N,)
    if y.is_floating_point():
        mean, variance = f.mean(0), f.var(0, correction=0) + 1 / PRECISION
    elif name == "counts":
        rate = f[..., 0].exp()
        mean, variance = rate.mean(0), rate.mean(0) + rate.var(0, correction=0)
    else:
        mean = f.softmax(-1).mean(0)
        variance = mean * (1 - mean)
    torch.testing.assert_close(prediction.mean, mean)
    torch.testing.assert_close(prediction.variance, variance)
    torch.testing.assert_close(prediction.spread, prediction.f.std(0, correction=0))
    assert prediction.y.shape == (200, *y.shape)
    if y.is_floating_point():
        normal = torch.distributions.Normal(f, PRECISION**-0.5)
        torch.testing.assert_close(prediction.cdf(y), normal.cdf(y).mean(0))
        assert prediction.cdf(y).shape == y.shape
    elif isinstance(elements(prediction.distribution), dist.Poisson):
        means = elements(prediction.distribution).mean.numpy()
        torch.testing.assert_close(prediction.cdf(y), torch.as_tensor(poisson.cdf(y.numpy(), means).mean(0)))
    else:
        with pytest.raises(TypeError, match="cdf needs real observations"):
            prediction.cdf(y)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "graph"])
def test_a_point_is_predicted_alone_as_in_company(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above all behind BatchNorm; and whatever the tiles that x is cut into."""
    _, fit, case = made(name)
    whole = fit.predict(case.x, 20, seed=4).f
    alone = fit.predict(mapped(lambda value: value[2:3], case.x), 20, seed=4).f
    torch.testing.assert_close(alone[:, 0], whole[:, 2])
    monkeypatch.setattr("pyrodrop.prediction.draws._TILE_BYTES", {"cpu": 1})
    torch.testing.assert_close(fit.predict(case.x, 20, seed=4).f, whole)


def test_a_graph_is_predicted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never cut into rows, whatever the tiles; and refused with other nodes than its own."""
    _, fit, case = made("graph")
    whole = fit.predict(case.x, 20, seed=4).f
    monkeypatch.setattr("pyrodrop.prediction.draws._TILE_BYTES", {"cpu": 1})
    torch.testing.assert_close(fit.predict(case.x, 20, seed=4).f, whole)
    with pytest.raises(ValueError, match="all of its examples at once"):
        fit.predict(case.x[:3], 20)
    with pytest.raises(ValueError, match="all of its examples at once"):
        fit.elbo(2, data=(case.x[:3], case.y[:3]))


@pytest.mark.few(1)
@pytest.mark.parametrize("prior", ["student", "ard"])
def test_a_divergence_that_a_draw_changes_is_evaluated_for_each(prior: str) -> None:
    """By Monte Carlo under a prior without a closed form, and under a latent scale: means over draws, 4.5 s.e."""
    count = 150
    torch.manual_seed(3)
    chosen = Heavy() if prior == "student" else priors.ARD("weight", hyperprior=dist.InverseGamma(3.0, 2.0))
    model = models.from_module(tokens(1), prior=chosen, likelihood=gaussian()).double()
    guide = guides.MeanField(model, 0.3).double()
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    elbo = pyrodrop.Fit(model, guide, data.Dataset(x, y), torch.zeros(1, 3), {}).elbo(count)
    with torch.no_grad():
        each = torch.stack([elbo_terms(model.eval(), guide, x, y).kl for _ in range(count)])
    assert float(each.std()) > 0
    assert abs(elbo.kl - float(each.mean())) < 4.5 * float(each.std()) * math.sqrt(2 / count)


def test_scores_of_observations_of_any_shape() -> None:
    _, fit, case = made("images")
    prediction = fit.predict(case.x, 50)
    scores = metrics.regression_scores(prediction, case.y)
    flat = pyrodrop.Prediction(
        f=prediction.f.flatten(2), distribution=dist.Normal(prediction.f.flatten(2), PRECISION**-0.5).to_event(1)
    )
    want = metrics.regression_scores(flat, case.y.flatten(1))
    for name in ("log_density", "rmse", "coverage_50", "sharpness"):
        assert scores[name] == pytest.approx(want[name], rel=1e-9)
    _, fit, case = made("labels_of_tokens")
    prediction = fit.predict(case.x, 50)
    with pytest.raises(TypeError, match=r"one label per example.*\[7, 4\].*flatten"):
        metrics.accuracy(prediction, case.y)
    parts = metrics.accuracy(prediction.f.softmax(-1).flatten(1, -2), case.y.flatten())
    assert parts == float((prediction.mean.argmax(-1) == case.y).double().mean())
    with pytest.raises(ValueError, match="class labels must be whole numbers"):
        prediction.log_density(case.y.double())
