"""Whatever arguments a constructor gets, it makes an object that does what it documents, or it refuses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine

from pyrodrop import distributions, divergences, guides, likelihoods, models, priors, schedules
from pyrodrop.scaling import Standardize

from .harness import refusal_is_ours
from .parts import model

pytestmark = pytest.mark.filterwarnings("ignore:the log-uniform prior is improper")
few = settings(max_examples=25, deadline=None, derandomize=True, database=None)

ODD = st.sampled_from([None, True, "1", "", 1j, [1.0], (), {}, math.nan, math.inf, -math.inf, torch.ones(2), 10**400])
"""Values that are rarely right; floats and whole numbers below are sometimes."""
REAL = st.one_of(st.floats(), st.floats(-5, 5), st.floats(0.001, 0.999), st.integers(-3, 3), ODD)
FLAG = st.one_of(st.booleans(), st.booleans(), ODD)
COUNT = st.one_of(st.integers(-1, 4), st.integers(1, 4), ODD)
WORDS = st.sampled_from(
    [
        "A",
        "B",
        "layer",
        "input",
        "weight",
        "output",
        "exact",
        "kingma",
        "molchanov",
        "relu",
        "tanh",
        "",
        "x",
        None,
        3,
        True,
    ]
)
NAMES = st.sampled_from(["*", "layers.0.*", "layers.1.weight", "x"])
PATTERNS = st.dictionaries(NAMES, st.one_of(st.floats(0, 0.9), REAL), max_size=3)
PAIR = st.one_of(st.tuples(REAL, REAL), st.tuples(st.floats(-9, 0), st.floats(0, 9)), ODD)
SHAPE = st.sampled_from([(), (2,), (3, 2), (1, 2), (2, 3), (0,), (3, 1)])
TENSOR = st.one_of(
    SHAPE.map(lambda shape: torch.randn(shape, generator=torch.Generator().manual_seed(1))),
    st.just(torch.full((3, 2), math.nan)),
    st.sampled_from([torch.int64, torch.complex64, torch.bool]).map(lambda dtype: torch.ones(3, 2, dtype=dtype)),
    st.just(torch.linspace(-1, 1, 6).reshape(3, 2)),
    ODD,
)
LOG_ALPHA = st.one_of(st.floats(-20, 20), st.just(torch.zeros(2)), TENSOR)


def made(make: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """The object, or None if the constructor refuses the arguments with an error of its own."""
    try:
        return make(**arguments)
    except (ValueError, TypeError) as error:
        if not refusal_is_ours(error):
            raise
        return None


def of(**arguments: Any) -> Any:
    """Some of these arguments, the others at their defaults."""
    return st.fixed_dictionaries({}, optional=arguments)


HYPERPRIORS = st.sampled_from([dist.HalfCauchy(1.0), dist.Normal(0.0, 1.0), dist.Gamma(2.0, 1.0)])
PRIORS: dict[Any, Any] = {
    priors.Gaussian: of(scale=REAL),
    priors.Laplace: of(scale=REAL),
    priors.StudentT: of(df=REAL, scale=REAL),
    priors.ScaleMixture: of(wide=REAL, narrow=REAL, mix=REAL),
    priors.SpikeAndSlab: of(slab=REAL, spike=REAL, mix=REAL),
    priors.Horseshoe: of(scale=REAL, group=WORDS),
    priors.LogUniform: of(kl=WORDS),
    priors.TruncatedLogUniform: of(low=REAL, high=REAL),
    priors.ARD: of(group=WORDS, hyperprior=HYPERPRIORS),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", PRIORS, ids=lambda kind: kind.__name__)
def test_the_density_of_a_prior_is_finite_on_its_support(kind: Any) -> None:
    @few
    @given(PRIORS[kind])
    def check(arguments: dict[str, Any]) -> None:
        prior = made(kind, arguments)
        if prior is None:
            return
        assert prior.describe().startswith(kind.__name__.replace("SpikeAndSlab", "Sp"))
        like = torch.tensor([[0.3, -0.7]])
        with poutine.trace() as scales:
            distribution = prior.for_site("w", like)
        assert distribution.event_shape == (1, 2)
        assert all(bool((site["value"] > 0).all()) for site in scales.trace.nodes.values() if site["type"] == "sample")
        value = like if kind is not priors.TruncatedLogUniform else like.sign() * math.exp((prior.low + prior.high) / 2)
        if not isinstance(distribution, distributions.PooledNormal):
            assert bool(distribution.log_prob(value).isfinite()), (arguments, distribution.log_prob(value))

    check()


@few
@given(of(precision=REAL, learned=FLAG))
def test_the_density_of_y_is_finite_under_a_gaussian_likelihood(arguments: dict[str, Any]) -> None:
    likelihood = made(likelihoods.Gaussian, arguments)
    if likelihood is not None:
        distribution = likelihood(torch.zeros(2, 1), Standardize())
        assert bool(distribution.log_prob(torch.ones(2, 1)).isfinite().all())
        assert likelihood.describe().startswith("Gaussian(precision=")


MEMBERS = st.sampled_from([guides.Point, guides.MeanField, None, "Point", lambda of: None])
GUIDES: dict[Any, Any] = {
    guides.BernoulliDropout: of(drop_rate=st.one_of(REAL, PATTERNS), mask_input=FLAG, theta=REAL, per=WORDS),
    guides.DropConnect: of(drop_rate=st.one_of(REAL, PATTERNS), theta=REAL),
    guides.ConcreteDropout: of(rates=WORDS, drop_rate=st.one_of(REAL, PATTERNS), temperature=REAL, mask_input=FLAG),
    guides.GaussianDropout: of(kind=WORDS, alpha=st.one_of(REAL, PATTERNS), drop_rate=st.one_of(REAL, PATTERNS)),
    guides.VariationalDropout: of(kind=WORDS, rates=WORDS, max_alpha=REAL, kl_scale=REAL, drop_rate=REAL),
    guides.LogNormalDropout: of(log_scale=REAL, low=REAL, high=REAL),
    guides.MeanField: of(init_scale=REAL),
    guides.LowRank: of(rank=COUNT, init_scale=REAL),
    guides.SparseDropout: of(log_variance=REAL, cut=REAL, log_alpha_range=PAIR),
    guides.ARDDropout: of(log_variance=REAL, cut=REAL, log_alpha_range=PAIR),
    guides.Ensemble: of(guide=MEMBERS, members=COUNT),
    guides.Point: of(),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", GUIDES, ids=lambda kind: kind.__name__)
def test_draws_and_divergences_of_a_guide_are_finite(kind: Any) -> None:
    of_weights = model()

    @settings(few, max_examples=15)
    @given(GUIDES[kind])
    def check(arguments: dict[str, Any]) -> None:
        needed = {"model": of_weights} | ({"guide": guides.Point} if kind is guides.Ensemble else {})
        guide = made(kind, needed | arguments)
        if guide is None:
            return
        assert guide.describe()
        drawn = guide.draw(2)
        assert all(bool(values.isfinite().all()) for values in drawn.values()), arguments
        for member in guide.members if isinstance(guide, guides.Ensemble) else [guide]:
            for name, weight in of_weights.weight_sites().items():
                q = member.posterior(name)
                try:
                    value = divergences.divergence(q, priors.Gaussian().for_site(name, weight), q.rsample)
                except divergences.NoDivergence:
                    continue
                assert bool(value.isfinite()), (arguments, name, value)

    check()


WIDTHS = st.one_of(st.lists(COUNT, max_size=4), st.lists(st.integers(1, 3), min_size=2, max_size=3), ODD)


@few
@given(WIDTHS, of(activation=WORDS, input_gain=REAL))
def test_a_network_maps_rows_to_rows(widths: Any, arguments: dict[str, Any]) -> None:
    parts = {"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian(1.0)}
    network = made(models.MLP, {"widths": widths, **parts, **arguments})
    if network is not None:
        f = network(torch.zeros(4, widths[0]))
        assert f.shape == (4, widths[-1])
        assert bool(f.isfinite().all())


DISTRIBUTIONS: dict[Any, Any] = {
    distributions.BernoulliMixture: of(drop_rate=st.one_of(REAL, TENSOR), theta=REAL, per=WORDS, event_dim=COUNT),
    distributions.RelaxedBernoulliMixture: of(logit=TENSOR, temperature=REAL, per=WORDS),
    distributions.CorrelatedNormal: of(log_alpha=LOG_ALPHA, event_dim=COUNT),
    distributions.MultiplicativeNormal: of(log_alpha=LOG_ALPHA, event_dim=COUNT),
    distributions.CutNormal: of(log_alpha=LOG_ALPHA, threshold=REAL),
    distributions.LowRankNormal: of(factor=TENSOR, diagonal=TENSOR),
    distributions.PrunedNormal: of(log_alpha=TENSOR, keep=TENSOR),
}
NEEDED: dict[Any, dict[str, Any]] = {
    distributions.BernoulliMixture: {"drop_rate": 0.5},
    distributions.RelaxedBernoulliMixture: {"logit": torch.zeros(2)},
    distributions.LowRankNormal: {"factor": torch.ones(6, 1), "diagonal": torch.ones(6)},
    distributions.PrunedNormal: {"log_alpha": torch.zeros(3, 2), "keep": torch.ones(3, 2, dtype=torch.bool)},
    distributions.CutNormal: {"log_alpha": 0.0, "threshold": 0.0},
}


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", DISTRIBUTIONS, ids=lambda kind: kind.__name__)
def test_samples_of_a_distribution_are_finite_and_have_a_density(kind: Any) -> None:
    @few
    @given(st.one_of(st.just(torch.linspace(-1, 1, 6).reshape(3, 2)), TENSOR), DISTRIBUTIONS[kind])
    def check(loc: Any, arguments: dict[str, Any]) -> None:
        distribution = made(kind, {"loc": loc, **NEEDED.get(kind, {"log_alpha": 0.0}), **arguments})
        if distribution is None:
            return
        draw = distribution.rsample()
        assert draw.shape == distribution.batch_shape + distribution.event_shape
        assert bool(draw.isfinite().all())
        assert distribution.mean.shape == draw.shape
        if kind not in (distributions.CorrelatedNormal, distributions.PrunedNormal):
            density = distribution.log_prob(draw)
            assert density.shape == distribution.batch_shape
            assert bool(density.isfinite().all()), (loc, arguments, density)

    check()


@few
@given(of(epochs=REAL, start=REAL, after=REAL), of(increment=REAL), of(steps=st.one_of(COUNT, st.integers(1, 10**18))))
def test_schedules_stay_between_0_and_1(
    linear: dict[str, Any], staircase: dict[str, Any], cosine: dict[str, Any]
) -> None:
    for schedule in (made(schedules.linear, {"epochs": 3, **linear}), made(schedules.staircase, staircase)):
        if schedule is not None:
            weights = [schedule(epoch) for epoch in (0, 0.5, 1, 3, 1e9)]
            assert all(0 <= weight <= 1 for weight in weights), (schedule, weights)
            assert weights == sorted(weights)
            assert str(schedule).startswith(("linear(", "staircase("))
    factor = made(schedules.cosine, {"steps": 3, **cosine})
    if factor is not None:
        factors = [factor(step) for step in (0, 1, factor.steps, factor.steps + 1)]
        assert all(-1e-9 <= value <= 1 for value in factors)
        assert factors == sorted(factors, reverse=True)
