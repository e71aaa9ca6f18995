"""Moments without draws: running, in closed form, and of points with noise of their own."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.distributions import BernoulliMixture, InputUnits, RelaxedBernoulliMixture
from pyrodrop.prediction.closed_form import _some_rows
from pyrodrop.prediction.moments import RunningMoments
from pyrodrop.reparam.marginal import _plain_dropout
from pyrodrop.scaling import Standardize

pytestmark = pytest.mark.usefixtures("float64")
K, RATE, TAU = 6, 0.3, 4.0


def one_hidden(guide: Callable[[Any], Any] | None = None, likelihood: Any = None, outputs: int = 2) -> pyrodrop.Fit:
    """Two inputs, K hidden units that are dropped, x and y standardised."""
    net = nn.Sequential(nn.Linear(2, K), nn.Tanh(), nn.Linear(K, outputs))
    model = models.from_module(
        net, prior=priors.Gaussian(), likelihood=likelihood or likelihoods.Gaussian(TAU)
    ).double()
    model.inputs, model.targets = Standardize(0.3, 1.7), Standardize(torch.tensor([5.0]), torch.tensor([3.0]))
    chosen = (guide or (lambda m: guides.BernoulliDropout(m, RATE, mask_input=False)))(model).double()
    return pyrodrop.Fit(model, chosen, None, torch.zeros(1, 3), {})


def enumerated(fit: pyrodrop.Fit, x: Tensor) -> tuple[Tensor, Tensor]:
    """Every function of the masks of the hidden units in the units of y, and the masks' probabilities."""
    loc, free = fit.guide.loc, fit.model.free  # type: ignore[attr-defined]
    hidden = torch.tanh((x - 0.3) / 1.7 @ loc["0.weight"].T + free["0.bias"])
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=K)))
    f = 3 * ((masks[:, None, :] * hidden) @ loc["2.weight"].T + free["2.bias"]) + 5
    kept = masks.sum(1)
    return f.detach(), ((1 - RATE) ** kept * RATE ** (K - kept))[:, None, None]


def test_the_closed_form_is_that_of_all_masks() -> None:
    """E and Var of the docstring's equations, as sums over the 2^K masks, in the units of y."""
    fit, x = one_hidden(), torch.randn(7, 2)
    f, p = enumerated(fit, x)
    mean = (p * f).sum(0)
    spread = (p * (f - mean) ** 2).sum(0)
    got = fit.predict(x, method="analytic")
    torch.testing.assert_close(got.mean, mean)
    torch.testing.assert_close(got.spread**2, spread)
    torch.testing.assert_close(got.variance, spread + 1 / TAU)
    torch.testing.assert_close(got.sd, (spread + 1 / TAU).sqrt())
    assert (got.num_samples, got.joint) == (None, True)
    one_by_one = torch.cat([pyrodrop.predict(fit, row, method="analytic").mean for row in x.split(1)])
    torch.testing.assert_close(one_by_one, mean)


def test_the_closed_form_of_deep_features_and_of_products_by_hand() -> None:
    """Noise in the last layer alone, below it two layers without; the layer is a function, in chunks of a point."""

    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 3), nn.Linear(3, K), nn.Linear(K, 1)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.tanh(self.b(torch.tanh(self.a(x)))), self.c.weight, self.c.bias)

    model = models.from_module(ByHand(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)).double()
    guide = guides.BernoulliDropout(model, {"c.*": 0.4, "*": 0.0}).double()
    fit, x = pyrodrop.Fit(model, guide, None, torch.zeros(1, 3), {}), torch.randn(5, 2)
    got, drawn = fit.predict(x, method="analytic"), fit.predict(x, 40_000).f
    assert float(((drawn.mean(0) - got.mean) / got.spread).abs().max()) < 4 / 200
    torch.testing.assert_close(drawn.var(0), got.spread**2, rtol=0.04, atol=0)


@pytest.mark.parametrize(
    ("guide", "likelihood", "message"),
    [
        (
            lambda m: guides.BernoulliDropout(m, 0.2, mask_input=True),
            None,
            r"last layer only; got dropout at \['0.weight', '2.weight'\]",
        ),
        (
            lambda m: guides.BernoulliDropout(m, {"0.*": 0.2, "*": 0.0}),
            None,
            "got dropout at '0.weight', which is not this layer",
        ),
        (lambda m: guides.BernoulliDropout(m, 0.2, mask_input=False, theta=0.1), None, "theta = 0; got .* theta=0.1"),
        (guides.MeanField, None, "dropout at theta = 0; got .*Independent"),
        (lambda m: guides.ConcreteDropout(m, mask_input=False), None, "got .*RelaxedBernoulliMixture"),
        (guides.Point, None, "got dropout at none"),
        (None, likelihoods.Categorical(), "needs a Gaussian likelihood; got Categorical"),
    ],
)
def test_no_closed_form_is_said(guide: Any, likelihood: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_hidden(guide, likelihood).predict(torch.randn(3, 2), method="analytic")


def test_no_closed_form_elsewhere() -> None:
    fit = one_hidden(lambda m: guides.Ensemble(m, guides.Point, 2))
    with pytest.raises(TypeError, match=r"a guide with a method posterior\(name\); got Ensemble"):
        fit.predict(torch.randn(3, 2), method="analytic")
    net = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 4), nn.Flatten())
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)).double()
    conv = pyrodrop.Fit(model, guides.BernoulliDropout(model, 0.2).double(), None, torch.zeros(1, 3), {})
    with pytest.raises(ValueError, match="input of a convolution"):
        conv.predict(torch.randn(3, 4), method="analytic")


def test_rows_of_the_closed_form_come_in_parts_unless_they_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrodrop.prediction.closed_form._POINTS", 17)
    x = torch.randn(5, 3)
    for model, sizes in [
        (SimpleNamespace(mixes_examples=lambda x: True), [5]),
        (SimpleNamespace(mixes_examples=lambda x: False), [2, 2, 1]),
    ]:
        samples = list(_some_rows(model, x, 8))
        assert [len(rows) for rows in samples] == sizes
        assert torch.equal(torch.cat(samples), x)
    assert [len(rows) for rows in _some_rows(model, x, 100)] == [1] * 5


def test_chunks_merge_to_the_moments_of_all() -> None:
    """Uneven chunks of draws and points, about an offset at which raw squares lose every digit."""
    draws = torch.randn(50, 7, 2) * torch.tensor([1e-3, 1.0]) + 1e8
    running = RunningMoments(7)
    for a, b in ((0, 1), (1, 20), (20, 50)):
        for c, d in ((0, 4), (4, 7)):
            running.add(c, dist.Normal(draws[a:b, c:d], 0.0, validate_args=False).to_event(1), draws[a:b, c:d])
    got = running.result(draws, joint=True)
    torch.testing.assert_close(got.mean, draws.mean(0), rtol=1e-14, atol=0)
    for variance in (got.variance, got.spread**2):
        torch.testing.assert_close(variance, draws.var(0, correction=0), rtol=1e-4, atol=0)  # draws have 8 digits
    raw = (draws**2).mean(0) - draws.mean(0) ** 2
    assert not torch.allclose(raw, got.variance, rtol=0.5)


def test_a_function_that_is_not_the_mean_has_a_spread_of_its_own() -> None:
    """f and E[y | f] agree in one tile and differ in the next: each keeps its own."""
    running, f = RunningMoments(2), torch.randn(6, 2, 1)
    mean = torch.cat([f[:3], f[3:] * 2])
    for rows in (slice(0, 3), slice(3, 6)):
        running.add(0, dist.Normal(mean[rows], 1.0).to_event(1), f[rows])
    got = running.result(f, joint=True)
    torch.testing.assert_close(got.spread, f.std(0, correction=0))
    torch.testing.assert_close(got.variance, mean.var(0, correction=0) + 1)


MARGINAL: dict[str, Callable[[Any], Any]] = {
    "bernoulli": lambda m: guides.BernoulliDropout(m, RATE, mask_input=False),
    "inputs": lambda m: guides.BernoulliDropout(m, 0.5, mask_input=True),
    "theta": lambda m: guides.BernoulliDropout(m, RATE, theta=0.2),
    "concrete": lambda m: guides.ConcreteDropout(m, drop_rate=RATE),
    "type_a": lambda m: guides.GaussianDropout(m, "A", 0.4),
    "type_b": lambda m: guides.GaussianDropout(m, "B", 0.4),
    "mean_field": lambda m: guides.MeanField(m, 0.3),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("guide", MARGINAL)
def test_marginals_have_the_distribution_of_each_point_and_nothing_in_common(guide: str) -> None:
    """Mean and second moment at each point as of joint draws, 4.5 s.e.; equal points correlate 1 jointly and 0 alone."""
    fit, x, T = one_hidden(MARGINAL[guide]), torch.randn(3, 2), 20_000
    joint, alone = fit.predict(torch.cat([x, x]), T), fit.predict(torch.cat([x, x]), T, joint=False)
    assert (joint.joint, alone.joint) == (True, False)
    for power in (1, 2):
        a, b = ((p.f - joint.f.mean(0)) ** power for p in (joint, alone))
        se = ((a.var(0) + b.var(0)) / T).sqrt()
        assert float(((a.mean(0) - b.mean(0)) / se).abs().max()) < 4.5
    for prediction, want, within in ((joint, 1.0, 1e-9), (alone, 0.0, 4.5 / T**0.5)):
        first, second = prediction.f[:, :3, 0].T, prediction.f[:, 3:, 0].T
        pairs = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(first, second, strict=True)])
        assert float((pairs - want).abs().max()) < within
    moments = fit.predict(x, 50, keep="moments", joint=False)
    assert moments.joint is False


def test_masks_of_random_bits_are_for_one_rate_of_dropping_units() -> None:
    w, half = torch.ones(2, 3), torch.tensor(0.5)
    assert _plain_dropout(BernoulliMixture(w, 0.5))
    assert _plain_dropout(BernoulliMixture(w, half))
    for other in (
        BernoulliMixture(w, 0.0),
        BernoulliMixture(w, 0.5, 0.1),
        BernoulliMixture(w, torch.tensor([0.1, 0.5, 0.9])),
        BernoulliMixture(w, 0.5, per="weight"),
        BernoulliMixture(w, 0.5, units=InputUnits(None)),
        RelaxedBernoulliMixture(w, half),
        dist.Normal(w, 1.0).to_event(2),
    ):
        assert not _plain_dropout(other)


def test_marginals_of_a_convolution() -> None:
    """A channel of one image is dropped whole, at all of its places, and apart from other images' and draws'."""
    net = nn.Sequential(nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.Flatten())
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Categorical()).double()
    fit = pyrodrop.Fit(model, guides.BernoulliDropout(model, 0.5).double(), None, torch.zeros(1, 3), {})
    f = fit.predict(torch.ones(4, 3, 2, 2), 2000, joint=False).f.reshape(2000, 4, 3, 4)
    kept = f != 0
    assert torch.equal(kept, kept[..., :1].expand_as(kept))
    shares = kept[..., 0].double().reshape(2000, -1)
    assert float((shares.mean(0) - 0.5).abs().max()) < 4.5 * 0.5 / 2000**0.5
    between_images = torch.corrcoef(shares[:, ::3].T) - torch.eye(4)
    assert float(between_images.abs().max()) < 4.5 / 2000**0.5


@pytest.mark.parametrize(
    ("guide", "error", "message"),
    [
        (lambda m: guides.Ensemble(m, guides.Point, 2), TypeError, "joint=False needs a guide .* got Ensemble"),
        (
            guides.from_noise(
                lambda m, e: m + e, lambda m: dist.Normal(0.0, 1.0).expand(m.shape), regularizer=torch.sum
            ),
            ValueError,
            "joint=False .* needs a posterior with a noise_form .*; got Pushforward for '0.weight'",
        ),
    ],
)
def test_no_marginals_is_said(guide: Any, error: type[Exception], message: str) -> None:
    fit = one_hidden(guide)
    with pytest.raises(error, match=message):
        fit.predict(torch.randn(3, 2), 5, joint=False)
    assert fit.predict(torch.randn(3, 2), 5).f.shape == (5, 3, 2)


MEMORY = """
import re, sys, torch, pyrodrop
from pathlib import Path
from pyrodrop import guides, likelihoods, models, priors
torch.set_num_threads(1)
def peak():  # since the process began: ru_maxrss would begin with that of the process that started it
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
model = models.MLP([13, 50, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
fit = pyrodrop.Fit(model, guides.BernoulliDropout(model, 0.5, mask_input=False), None, torch.zeros(1, 3), {})
x = torch.randn(int(sys.argv[1]), 13)
fit.predict(x[:100], 10, keep="moments")
before = peak()
fit.predict(x, int(sys.argv[2]), keep="moments")
print(peak() - before)
"""


@pytest.mark.more
@pytest.mark.parametrize(
    ("points", "draws", "limit"),
    [
        (200_000, 200, 1e8),  # the draws alone would be 1.6e8 bytes
        pytest.param(1_000_000, 1_000, 1e9, marks=pytest.mark.slow),  # and here 4e9
    ],
)
def test_moments_take_memory_of_the_points_alone(points: int, draws: int, limit: float) -> None:
    """Peak resident memory of a process of its own, in bytes above what it had before."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", MEMORY, str(points), str(draws)], capture_output=True, text=True, check=True
    )
    assert 0 <= float(done.stdout) < limit
