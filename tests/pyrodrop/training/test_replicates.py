"""Many fits at once: from the same random numbers each is the fit alone, whatever it differs in; a failing one fails alone.

The random numbers of replicates are independent, and in distribution those of the fits alone.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.lab.networks.alone import drawn_as_alone
from pyrodrop.data import Dataset
from pyrodrop.training.replicates import _shares
from tests.pyrodrop.networks.test_starts import restart
from tests.small import Heavy

X = torch.randn(100, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin() + 0.1 * X[:, 1:2]
SETTINGS: dict[str, Any] = {"steps": 60, "batch_size": 32, "lr": 1e-2, "estimator": "local", "progress": False}


def network(scale: float = 1.0, precision: float = 4.0, learned: bool = False, width: int = 8) -> models.NetworkModel:
    likelihood = likelihoods.Gaussian(precision, learned=learned)
    return models.MLP([3, width, 1], prior=priors.Gaussian(scale), likelihood=likelihood)


def values(fit: pyrodrop.Fit) -> Tensor:
    return torch.cat([p.detach().flatten() for p in (*fit.guide.parameters(), *fit.model.parameters())])  # type: ignore[attr-defined]


def assert_equal(one: pyrodrop.Fit, alone: pyrodrop.Fit) -> None:
    torch.testing.assert_close(values(one), values(alone), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(one.history, alone.history, rtol=1e-4, atol=1e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["traced", "compiled"])
def test_a_replicate_is_the_fit_alone(engine: str) -> None:
    """Noise and minibatches of their own, the last of an epoch smaller."""
    model = network(learned=True)
    guide = guides.BernoulliDropout(model, 0.2)
    with drawn_as_alone(5, 6, 7):
        many = pyrodrop.fit_replicates(model, guide, (X, Y), count=3, seed=5, engine=engine, **SETTINGS)
    assert len(many) == 3
    assert many[0].settings["engine"] == engine
    for r, one in enumerate(many):
        alone = pyrodrop.fit(model, guide, (X, Y), seed=5 + r, engine="pyro", **SETTINGS)
        assert_equal(one, alone)
    assert not torch.allclose(values(many[0]), values(many[1]), atol=1e-2)


def chi_squared(counts: Tensor, of: int, probability: float) -> float:
    """The p-value of independent binomial numbers, by their normal limit."""
    errors = (counts - of * probability) / (of * probability * (1 - probability)) ** 0.5
    return float(stats.chi2.sf(float((errors**2).sum()), len(counts)))


@pytest.mark.parametrize("engine", ["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_rows_and_masks_are_independent_with_rates_of_their_own(engine: str) -> None:
    """One row of ten is not 0: nll says in which of the two minibatches of an epoch it is, and whether its unit is kept."""
    count, epochs, x = 24, 100, torch.eye(10)[:, :1]
    model = models.from_module(nn.Linear(1, 1, bias=False), priors.Gaussian(), likelihoods.Gaussian(4.0))
    own, rates = [model] * count, [0.3, 0.6]
    posteriors = [guides.BernoulliDropout(model, rates[r % 2]) for r in range(count)]
    options: dict[str, Any] = {"count": count, "steps": 2 * epochs, "batch_size": 5, "lr": 1e-6, "engine": engine}
    many = pyrodrop.fit_replicates(own, posteriors, (x, 10 * x), **options)
    assert many[0].settings["engine"] == engine
    nll = torch.stack([fit.history[:, 0] for fit in many]).unflatten(1, (epochs, 2))
    present, dropped = nll > nll.min() + 1, (nll.amax(2) - nll.min() - 400).abs() < 1e-3  # 4 / 2 * 10^2 * 10 / 5
    assert bool((present.sum(2) == 1).all())
    for axis, number in ((0, count), (1, epochs)):
        assert chi_squared(present[..., 0].sum(axis), number, 0.5) > 1e-5
        for kind, rate in enumerate(rates):
            of_rate = dropped[kind::2]
            assert chi_squared(of_rate.sum(axis), of_rate.shape[axis], rate) > 1e-5
    again = pyrodrop.fit_replicates(own, posteriors, (x, 10 * x), **options)
    assert all(torch.equal(one.history, other.history) for one, other in zip(many, again, strict=True))


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_normal_noise_is_independent(engine: str) -> None:
    """nll of y = 0 at x = 1 is 2 (m + s e)^2 up to a constant: its correlations have the standard error 1 / sqrt(steps)."""
    count, steps = 10, 400
    model = models.from_module(nn.Linear(1, 1, bias=False), priors.Gaussian(), likelihoods.Gaussian(4.0))
    guide = guides.MeanField(model, init_scale=0.5)
    data = (torch.ones(1, 1), torch.zeros(1, 1))
    many = pyrodrop.fit_replicates(model, guide, data, count=count, steps=steps, lr=1e-6, engine=engine)
    nll = torch.stack([fit.history[:, 0] for fit in many]).double()
    pairs = nll.corrcoef()[*torch.triu_indices(count, count, 1)]
    assert float(pairs.abs().max()) < 4.5 / steps**0.5
    lagged = torch.stack([own.unfold(0, steps - 1, 1).corrcoef()[0, 1] for own in nll])
    assert float(lagged.abs().max()) < 4.5 / steps**0.5
    m, s = (float(p) for p in (next(iter(guide.mean().values())), 0.5))
    roots = 2 * (m**2 + s**2)  # the mean of 2 (m + s e)^2
    constant = 0.5 * torch.log(torch.tensor(2 * torch.pi / 4.0)).item()
    error = float(nll.std()) / nll.numel() ** 0.5
    assert abs(float(nll.mean()) - constant - roots) < 4.5 * error


def test_the_data_of_every_replicate_are_checked() -> None:
    """Whose network, which is the same, is examined once."""
    model = models.MLP([3, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Poisson())
    sets = [Dataset(X, torch.full((len(X), 1), value)) for value in (1.0, 2.0, -3.0)]
    with pytest.raises(ValueError, match="y .*-3"):
        pyrodrop.fit_replicates(model, guides.Point(model), sets, count=3, steps=2)


def test_replicates_differ_in_data_rate_precision_and_prior() -> None:
    parts = [network(0.5 + r, 4.0 * (r + 1)) for r in range(3)]
    posteriors = [guides.BernoulliDropout(m, 0.1 * (r + 1)) for r, m in enumerate(parts)]
    sets = [Dataset(X + r, Y * (r + 1)).standardized() for r in range(3)]
    with drawn_as_alone(0, 1, 2):
        many = pyrodrop.fit_replicates(tuple(parts), posteriors, sets, count=3, engine="traced", **SETTINGS)
    for r, one in enumerate(many):
        assert_equal(one, pyrodrop.fit(parts[r], posteriors[r], sets[r], seed=r, engine="pyro", **SETTINGS))
        assert one.guide.rates()["layers.1.weight"] == pytest.approx(0.1 * (r + 1))
        assert float(one.model.likelihood.precision) == 4.0 * (r + 1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda m: guides.GaussianDropout(m, "B", alpha=0.25),
        lambda m: guides.VariationalDropout(m, "B", "weight"),
        guides.SparseDropout,
        guides.ConcreteDropout,
        lambda m: guides.DropConnect(m, 0.2),
    ],
    ids=["GaussianDropout", "VariationalDropout", "SparseDropout", "ConcreteDropout", "DropConnect"],
)
def test_other_posteriors_too(make: Any) -> None:
    model = network()
    guide = make(model)
    settings = SETTINGS | {"steps": 10, "estimator": "shared"}
    with drawn_as_alone(0, 1):
        many = pyrodrop.fit_replicates(model, guide, (X, Y), count=2, engine="traced", **settings)
    for r, one in enumerate(many):
        alone = pyrodrop.fit(model, guide, (X, Y), seed=r, engine="pyro", **settings)
        assert_equal(one, alone)


@pytest.mark.unshifted  # the seed decides in which minibatch the row is
@pytest.mark.parametrize("engine", ["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_a_failing_replicate_stops_alone(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    """One target of the second data set is so large that its gradient overflows, whenever its row is drawn."""
    parts = [network(), network(), network()]
    posteriors = [guides.BernoulliDropout(m, 0.2) for m in parts]
    broken = Y.clone()
    broken[7] = 1e30
    sets = [Dataset(X, Y), Dataset(X, broken), Dataset(X, Y)]
    settings = SETTINGS | {"steps": 8}
    with caplog.at_level(logging.WARNING, "pyrodrop"), drawn_as_alone(2, 3, 4):
        many = pyrodrop.fit_replicates(parts, posteriors, sets, count=3, engine=engine, seed=2, **settings)
    assert list(many.failed) == [1]
    assert f"replicate 1 stopped at step {many.failed[1]}" in caplog.text
    assert 0 < many.failed[1] < 4  # an epoch has four minibatches, and in this one the row is not in the first
    before = pyrodrop.fit(
        parts[1], posteriors[1], sets[1], seed=3, engine="pyro", **settings | {"steps": many.failed[1]}
    )
    torch.testing.assert_close(values(many[1]), values(before), rtol=1e-5, atol=1e-6)
    for r in (0, 2):
        assert_equal(many[r], pyrodrop.fit(parts[r], posteriors[r], sets[r], seed=2 + r, engine="pyro", **settings))
    assert many.predict(X[:5], 10).f.shape == (10, 5, 1)  # of the two that did not fail


def test_a_small_memory_trains_in_turns(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise to the same result; with it the stacks draw other numbers."""
    model = network()
    settings: dict[str, Any] = SETTINGS | {"steps": 6, "engine": "traced", "batch_size": None, "count": 5}
    at_once = pyrodrop.fit_replicates(model, guides.Point(model), (X, Y), **settings)
    monkeypatch.setattr("pyrodrop.training.stacked.available", lambda device: 60_000)
    with caplog.at_level(logging.INFO, "pyrodrop"):
        in_turn = pyrodrop.fit_replicates(model, guides.Point(model), (X, Y), **settings)
        noisy = pyrodrop.fit_replicates(model, guides.BernoulliDropout(model, 0.5), (X, Y), **settings)
    assert "of 5 replicates at a time" in caplog.text
    assert in_turn[0].settings["replicates"] < 5
    for one, two in zip(at_once, in_turn, strict=True):
        assert_equal(one, two)
    assert len({float(fit.losses[0]) for fit in noisy}) == 5


def test_an_ensemble_is_the_equal_mixture_of_its_members() -> None:
    model = network(learned=True)
    many = pyrodrop.fit_replicates(
        model, guides.Point(model), (X, Y), count=3, starts="new", **SETTINGS | {"steps": 20}
    )
    mixture = many.predict(X[:6], 3)
    members = torch.stack([one.predict(X[:6], 1).f[0] for one in many])
    torch.testing.assert_close(mixture.f, members)
    torch.testing.assert_close(mixture.mean, members.mean(0))
    noise = torch.stack([1 / one.model.likelihood.precision.detach() for one in many]).mean()
    torch.testing.assert_close(mixture.variance, noise + members.var(0, correction=0))


def test_every_component_of_a_mixture_has_a_draw() -> None:
    """Weights times 200, to one draw; five networks of weight .0002 together have one, and none those of weight 0."""
    weights = [0.13] * 5 + [0.06996] * 5 + [0.00004] * 5 + [0.0] * 2
    shares = _shares(weights, 200)
    assert (sum(shares[10:15]), shares[15:]) == (1, [0, 0])
    assert sum(shares[:5]) == pytest.approx(130, abs=1)
    assert max(shares[:5]) - min(shares[:5]) <= 1
    assert sum(shares) == 200
    assert _shares([0.2, 0.5, 0.3], 2) == [0, 1, 1]
    assert _shares([0.94, 0.01, 0.02, 0.005, 0.025], 10) == [10, 0, 0, 0, 0], "of few draws, the mean would be theirs"


def test_what_replicates_cannot_differ_in_is_refused() -> None:
    """A scale that is no tensor: the stacked loss would be replicate 0's."""
    parts = [models.MLP([3, 8, 1], prior=Heavy(scale), likelihood=likelihoods.Gaussian(4.0)) for scale in (0.1, 0.2)]
    with pytest.raises(ValueError, match="replicate 1 differs from replicate 0 in more than replicates may"):
        pyrodrop.fit_replicates(parts, [guides.MeanField(m) for m in parts], (X, Y), count=2, **SETTINGS)


class Counts(nn.Module):
    """Takes a number out of its weight, which torch.vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(X.shape[1], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * float(self.inner.weight.sum() < 1e6)


def test_a_network_that_cannot_be_mapped_is_refused() -> None:
    model = models.from_module(Counts(), priors.Gaussian(), likelihoods.Gaussian(1.0))
    model.check(pyrodrop.data.Dataset(X, Y))
    with pytest.raises(ValueError, match="run the network for many weights at once"):
        pyrodrop.fit_replicates(model, guides.MeanField(model), (X, Y), count=2, steps=2)


def test_a_stack_in_which_all_fail_leaves_the_others() -> None:
    """Its losses are NaN from that step on."""
    own = [network(width=width) for width in (4, 6, 4)]
    posteriors = [guides.BernoulliDropout(m, 0.2) for m in own]
    settings: dict[str, Any] = SETTINGS | {"count": 3, "steps": 8, "engine": "traced"}
    many = pyrodrop.fit_replicates(own, posteriors, [(X, Y), (X, Y * 1e30), (X, Y)], **settings)
    assert many.failed == {1: 0}
    assert bool(many[1].history.isnan().all())
    assert bool(many[0].history.isfinite().all())
    with pytest.raises(FloatingPointError, match="All 3 replicates failed"):
        pyrodrop.fit_replicates(own, posteriors, (X, Y * 1e30), **settings)


def test_networks_of_different_widths_priors_and_data_are_the_fits_alone() -> None:
    """A grid is one call; results are in the order of the arguments, from starts of their own. Without noise."""
    own = [network(width=4), network(width=6), network(width=4)]
    own.append(models.MLP([3, 4, 1], prior=Heavy(), likelihood=likelihoods.Gaussian(4.0)))
    sets: list[Any] = [(X, Y), (X[:20], Y[:20]), (X, Y), (X, Y)]
    options: dict[str, Any] = SETTINGS | {"steps": 5, "batch_size": None}
    many = pyrodrop.fit_replicates(
        own, [guides.Point(m) for m in own], sets, count=4, starts="new", seed=5, engine="traced", **options
    )
    assert [one.settings["replicates"] for one in many] == [2, 1, 2, 1]
    assert [len(one.guide.mean()["layers.0.weight"]) for one in many] == [4, 6, 4, 4]
    for r, one in enumerate(many):
        started = restart(own[r], guides.Point(own[r]), 5 + r)
        assert_equal(one, pyrodrop.fit(*started, sets[r], seed=5 + r, engine="pyro", **options))
        assert one.settings["seed"] == 5 + r
