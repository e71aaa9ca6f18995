"""Distributions of the same class with other parameters, against the constructor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyrodrop.distributions.rebuilt import rebuilt

torch.manual_seed(0)
A, B = torch.randn(4, 3), torch.randn(2, 3)
TRIL = torch.linalg.cholesky(torch.eye(3) + 0.3)
# By name: what makes a distribution from its location, logits or the like, [N, 3].
MAKERS: dict[str, Callable[[Tensor], Any]] = {
    "Normal": lambda v: dist.Normal(v, v.exp()),
    "Normal with one scale": lambda v: dist.Normal(v, 0.5),
    "StudentT": lambda v: dist.StudentT(3.0, v, 2.0),
    "LogNormal": lambda v: dist.LogNormal(v, 0.5),  # keeps its parameters in a base distribution
    "Categorical by logits": lambda v: dist.Categorical(logits=v),
    "Categorical by probs": lambda v: dist.Categorical(probs=v.softmax(-1)),
    "Bernoulli": lambda v: dist.Bernoulli(logits=v),
    "NegativeBinomial": lambda v: dist.NegativeBinomial(3.0, logits=v),
    "Poisson": lambda v: dist.Poisson(v.exp(), is_sparse=True),
    "MultivariateNormal": lambda v: dist.MultivariateNormal(v, scale_tril=TRIL),
    "Independent": lambda v: dist.Normal(v, v.exp()).to_event(1),
    "Independent of Independent": lambda v: dist.Normal(v, 1.0).to_event(1).to_event(1),
    "ZeroInflatedPoisson": lambda v: dist.ZeroInflatedPoisson(v.exp(), gate_logits=-v),
    "BetaBinomial": lambda v: dist.BetaBinomial(v.exp(), 2.0, 3),
    "MixtureSameFamily": lambda v: dist.MixtureSameFamily(
        dist.Categorical(torch.arange(1.0, 4).expand_as(v)), dist.Normal(v, 1.0)
    ).to_event(1),
    "torch's Independent": lambda v: torch.distributions.Independent(torch.distributions.Normal(v, v.exp()), 1),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[Tensor], Any]:
    return MAKERS[request.param]


def same(got: Any, want: Any) -> None:
    """Type, shapes, and a draw with its log density agree to the bit."""
    assert type(got) is type(want)
    assert (got.batch_shape, got.event_shape) == (want.batch_shape, want.event_shape)
    draws = []
    for each in (got, want):
        torch.manual_seed(1)
        draws.append(each.sample())
    torch.testing.assert_close(*draws, rtol=0, atol=0)
    torch.testing.assert_close(got.log_prob(draws[1]), want.log_prob(draws[1]), rtol=0, atol=1e-6)


def test_parameters_joined_along_the_rows(make: Callable[[Tensor], Any]) -> None:
    got = rebuilt(lambda *values: torch.cat(values), make(A), make(B))
    same(got, make(torch.cat([A, B])))


def test_some_rows_of_each_parameter(make: Callable[[Tensor], Any]) -> None:
    """Also once the distribution has computed its other parameters, such as probabilities from logits."""
    used = make(A)
    for name in ("probs", "logits", "covariance_matrix", "precision_matrix", "mean"):
        getattr(getattr(used, "base_dist", used), name, None)
    same(rebuilt(lambda value: value[1:3], used), make(A[1:3]))


def test_weights_that_all_rows_share_are_those_of_every_row() -> None:
    shared = dist.MixtureSameFamily(dist.Categorical(torch.arange(1.0, 4)), dist.Normal(A, 1.0))
    logs = (shared.component_distribution.log_prob(torch.zeros(4, 1)) + (torch.arange(1.0, 4) / 6).log()).logsumexp(1)
    joined = rebuilt(lambda *values: torch.cat(values), shared, shared)
    torch.testing.assert_close(joined.log_prob(torch.zeros(8)), logs.repeat(2))


SIGMOID = dist.TransformedDistribution(dist.Normal(A, 1.0), [torch.distributions.transforms.SigmoidTransform()])


@pytest.mark.parametrize(
    ("distributions", "message"),
    [
        ([SIGMOID], "TransformedDistribution is not made of parameters alone.*parameters that its arg_constraints"),
        ([dist.AffineBeta(A.exp(), A.exp(), 0.0, 2.0)], "AffineBeta is not made of concentration1, .*, scale alone"),
        ([dist.Normal(A, 1.0), dist.StudentT(3.0, A)], "must be of one type to become one; got Normal, StudentT"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(distributions: list[Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        rebuilt(lambda *values: torch.cat(values), *distributions)


class Tabled(dist.Normal):
    """A user's distribution with an argument of its own, which may be a tensor."""

    def __init__(
        self, loc: Tensor, scale: Tensor, table: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        self.table = table
        super().__init__(loc, scale, validate_args=validate_args)


def test_a_tensor_that_is_no_parameter_is_not_carried_along() -> None:
    """The tensor may have rows of its own, unlike None."""
    assert rebuilt(lambda value: value[:2], Tabled(A, A.exp())).batch_shape == (2, 3)
    with pytest.raises(TypeError, match="Tabled is not made of loc, scale alone"):
        rebuilt(lambda value: value[:2], Tabled(A, A.exp(), torch.ones(4)))
