"""Observations of any shape, one distribution per example: against plain torch, weight by weight."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from torch import Tensor, nn
from torch.distributions.transforms import ExpTransform
from torch.func import functional_call

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.likelihoods import aligned, per_row
from pyrodrop.scaling import Standardize
from tests.small import Counts, tokens

pytestmark = pytest.mark.usefixtures("float64")
N = 7


def normal(f: Tensor, y: Tensor) -> Tensor:
    """ln p(y_n | f_n) at precision 4, summed over all elements of an example."""
    return torch.distributions.Normal(f, 0.5).log_prob(y).flatten(1).sum(1)


def labels(f: Tensor, y: Tensor) -> Tensor:
    return -F.cross_entropy(f.movedim(-1, 1), y, reduction="none").reshape(len(y), -1).sum(1)


def counts(f: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.Poisson(f.squeeze(-1).exp()).log_prob(y)


def image_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 1, 3, padding=1), nn.Flatten(1, 2))


torch.manual_seed(1)
# name: network, x, y, likelihood, log density of each example given the network's outputs
CASES: dict[str, tuple[Any, Tensor, Tensor, Any, Any]] = {
    "images": (image_net, torch.randn(N, 1, 4, 5), torch.randn(N, 4, 5), likelihoods.Gaussian, normal),
    **{
        f"{t}_tokens": (lambda: tokens(2), torch.randn(N, t, 3), torch.randn(N, t, 2), likelihoods.Gaussian, normal)
        for t in (1, 2, 6)
    },
    "labels_of_tokens": (
        lambda: tokens(3), torch.randn(N, 4, 3), torch.randint(3, (N, 4)), likelihoods.Categorical, labels,
    ),
    "labels_of_one_token": (
        lambda: tokens(3), torch.randn(N, 1, 3), torch.randint(3, (N, 1)), likelihoods.Categorical, labels,
    ),
    "counts": (lambda: tokens(1), torch.randn(N, 3), torch.randint(9, (N,)), Counts, counts),
}  # fmt: skip


def made(case: str) -> tuple[Any, Any, Tensor, Tensor, Any]:
    build, x, y, likelihood, density = CASES[case]
    likelihood = likelihood(4.0) if likelihood is likelihoods.Gaussian else likelihood()
    x, y = x.double(), y.double() if y.is_floating_point() else y
    net = build().double()
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihood).double()
    return net, model, x, y, density


@pytest.mark.parametrize("case", CASES)
def test_the_model_scores_every_example_once(case: str) -> None:
    """The likelihood of the model's trace, for its initial weights, is that of plain torch: [N] terms."""
    net, model, x, y, density = made(case)
    model.check(pyrodrop.data.Dataset(x, y))
    weights = model.weight_sites()
    trace = poutine.trace(poutine.condition(model, data=weights)).get_trace(x, y)
    trace.compute_log_prob()
    got = trace.nodes["y"]["log_prob"]
    assert got.shape == (N,)
    torch.testing.assert_close(got.detach(), density(functional_call(net, weights, (x,)), y).detach())


def test_what_belongs_to_one_example_is_summed() -> None:
    distribution = dist.Normal(torch.randn(2, 5, 3, 4), 1.0)
    assert per_row(distribution, 4) is distribution
    got = per_row(distribution.to_event(1), 2)
    assert (got.batch_shape, got.event_shape) == ((2, 5), (3, 4))
    y = torch.randn(5, 3, 4)
    torch.testing.assert_close(got.log_prob(aligned(y, got)), distribution.log_prob(y).sum((-1, -2)))
    categories = per_row(dist.Categorical(logits=torch.randn(5, 3, 6)), 1)
    assert (categories.batch_shape, categories.event_shape) == ((5,), (3,))


def test_shapes_that_do_not_fit_are_refused_and_never_broadcast() -> None:
    with pytest.raises(ValueError, match=r"must have a batch dimension for the examples.*output.unsqueeze\(-1\)"):
        per_row(dist.Normal(torch.zeros(4), 1.0).to_event(1), 1)
    with pytest.raises(TypeError, match=r"a distribution of pyro.distributions.*got a Normal of torch.distributions"):
        per_row(torch.distributions.Normal(torch.zeros(4), 1.0), 1)  # type: ignore[arg-type]
    distribution = dist.Normal(torch.zeros(4, 1), 1.0).to_event(1)
    assert aligned(torch.zeros(4), distribution).shape == (4, 1)
    for y, wrong in ((torch.zeros(4, 1), dist.Normal(torch.zeros(4), 1.0)), (torch.zeros(1, 4), distribution)):
        with pytest.raises(ValueError, match="y must have the shape"):
            aligned(y, wrong)


def test_observations_of_any_shape_in_their_own_units() -> None:
    """f = scale network(x) + loc, part by part of an image."""
    torch.manual_seed(2)
    net, _, x, y, _ = made("images")
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0)).double()
    y = 3 + y * torch.rand(4, 5)
    dataset = pyrodrop.data.Dataset(x, y).standardized()
    model.standardize(dataset)
    fit = pyrodrop.Fit(model, guides.Point(model).double(), dataset, torch.zeros(1, 3), {})
    with torch.no_grad():
        want = net((x - x.mean(0)) / x.std(0, correction=0)) * y.std(0, correction=0) + y.mean(0)
    torch.testing.assert_close(fit.predict(x, 3).f[1], want)
    torch.testing.assert_close(fit.predict(x, 3).log_density(y), normal(want, y))


class LogNormal(likelihoods.Likelihood):
    """Positive observations, of a distribution that keeps its parameters in another."""

    def forward(self, output: Tensor, targets: Standardize) -> Any:
        return dist.LogNormal(output, torch.tensor(0.5)).to_event(1)


class Mixed(likelihoods.Likelihood):
    """A mixture per example."""

    def forward(self, output: Tensor, targets: Standardize) -> Any:
        parts = dist.Normal(torch.stack([output, -output], -1), 1.0)
        return dist.MixtureSameFamily(dist.Categorical(logits=torch.zeros_like(parts.loc)), parts)


class Transformed(likelihoods.Likelihood):
    """Positive observations, of a distribution that is not made of parameters."""

    def forward(self, output: Tensor, targets: Standardize) -> Any:
        return dist.TransformedDistribution(dist.Normal(output, 0.5), [ExpTransform()]).to_event(1)


@pytest.mark.parametrize("likelihood", [LogNormal, Mixed, Counts, Transformed])
def test_an_own_likelihood_predicts(likelihood: Any) -> None:
    """With any distribution of Pyro: densities from the drawn functions; replicates predict as a mixture or are refused."""
    torch.manual_seed(2)
    net = tokens(1).double()
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihood()).double()
    x, y = torch.randn(N, 3), torch.arange(1.0, N + 1)
    fit = pyrodrop.Fit(model, guides.BernoulliDropout(model, 0.3).double(), None, torch.zeros(1, 3), {})
    prediction = fit.predict(x, 30)
    raw = prediction.f.log() if likelihood is Counts else prediction.f
    target = y if likelihood is Counts else y[:, None]
    each = torch.stack([likelihood()(f, Standardize()).log_prob(target).reshape(N) for f in raw])
    torch.testing.assert_close(prediction.log_density(y), each.logsumexp(0) - torch.tensor(30.0).log())
    pair = pyrodrop.Replicates([fit, fit])
    if likelihood is Transformed:
        with pytest.raises(TypeError, match="predict with each fit by itself"):
            pair.predict(x, 20)
    else:
        assert pair.predict(x, 20).log_density(y).shape == (N,)
