"""The critiques: every closed form against an independent computation, and the page at the size of a test."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy.integrate import quad
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import multivariate_normal, norm
from torch import nn

import pyrodrop
from pyrodrop import cli, guides, likelihoods, models, priors
from pyrodrop.analysis.experiments.critiques import (
    experiment,
    foong,
    le_folgoc,
    one_weight,
    osband,
    quasi_kl,
    two_weights,
)
from pyrodrop.analysis.experiments.critiques import log_uniform_evidence as log_uniform
from pyrodrop.analysis.experiments.critiques.hron_prior import HIGH, SEPARABLE, SIGNED
from pyrodrop.analysis.experiments.experiment import Experiment
from pyrodrop.distributions import TruncatedLogUniform

QUICK = ("hron_prior", "hron_quasi_kl", "le_folgoc")
LONGER = ("osband", "verdoja", "foong", "wenzel", "balabanov")  # these train or sample many networks


# Osband: one weight


def test_exact_spread_of_one_weight_by_quadrature() -> None:
    for n in (1, 10, 100):
        end = 8 / math.sqrt(n + 1)
        mean = n / (n + 1)

        def density(w: float, n: int = n, mean: float = mean) -> float:
            return math.exp(-n * ((1 - w) ** 2 - (1 - mean) ** 2) / 2 - (w**2 - mean**2) / 2)

        mass, first, second = (
            quad(lambda w, k=k: w**k * density(w), mean - end, mean + end)[0]
            for k in (0, 1, 2)  # type: ignore[misc]
        )
        assert one_weight.exact_sd(n) == pytest.approx(math.sqrt(second / mass - (first / mass) ** 2), rel=1e-6)


@pytest.mark.parametrize("penalty", ["decay", "elbo"])
@pytest.mark.parametrize("n", [1, 10, 100])
def test_dropout_of_one_weight_is_the_minimum_over_both_masks(n: int, penalty: Any) -> None:
    """The loss is written out over z = 0 and z = 1, as `nn.Dropout` (which divides by 1 - r) or as the ELBO has it."""
    r = 0.1

    def loss(m: float) -> float:
        fit = sum(p * n * (1 - z * m) ** 2 / 2 for z, p in ((1, 1 - r), (0, r)))
        return fit + (((1 - r) * m) ** 2 / 2 if penalty == "decay" else (1 - r) * m**2 / 2)

    m = minimize_scalar(loss, bounds=(0, 2), method="bounded", options={"xatol": 1e-10}).x
    mean, sd = one_weight.dropout(n, r, penalty)
    assert mean == pytest.approx((1 - r) * m, rel=1e-6)
    assert sd == pytest.approx(math.sqrt((1 - r) * r) * m, rel=1e-6)
    assert sd / mean == pytest.approx(math.sqrt(r / (1 - r)))


def test_published_spreads_of_one_weight() -> None:
    table = osband.weight_table()
    assert [f"{v:.3f}" for v in table["dropout, rate .1, weight decay"].values()] == [
        "0.158",
        "0.275",
        "0.297",
        "0.300",
    ]
    assert [f"{v:.3f}" for v in table["exact"].values()] == ["0.707", "0.302", "0.100", "0.032"]


def test_learned_rate_of_one_weight_maximises_the_elbo() -> None:
    """Over m and r at once; minus the ELBO at theta = 0 contains -H(r)."""
    n = 3

    def loss(values: np.ndarray) -> float:
        m, r = values[0], 1 / (1 + math.exp(-values[1]))
        entropy = -r * math.log(r) - (1 - r) * math.log(1 - r)
        return n * ((1 - r) * (1 - m) ** 2 + r) / 2 + (1 - r) * m**2 / 2 - entropy

    found = minimize(loss, np.array([0.5, 0.0]), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    assert one_weight.learned_rate(n) == pytest.approx(1 / (1 + math.exp(-found[1])), rel=1e-5)


@pytest.mark.parametrize("alpha", [1 / 9, None])
def test_gaussian_noise_of_one_weight(alpha: float | None) -> None:
    """The fixed alpha by a search over m; the learned alpha gives the exact posterior."""
    n = 5

    def loss(m: float, a: float) -> float:
        v = a * m**2
        return n * ((1 - m) ** 2 + v) / 2 + (m**2 + v) / 2 - math.log(v) / 2  # the last is minus q's entropy

    if alpha is not None:
        m = minimize_scalar(lambda m: loss(m, alpha), bounds=(0.01, 2), method="bounded", options={"xatol": 1e-10}).x
        assert one_weight.gaussian_noise(n, alpha) == pytest.approx((m, math.sqrt(alpha) * m), rel=1e-6)
        return
    found = minimize(lambda v: loss(v[0], math.exp(v[1])), [1.0, 0.0], method="Nelder-Mead", options={"fatol": 1e-13}).x
    assert found[0] * math.exp(found[1] / 2) == pytest.approx(one_weight.exact_sd(n), rel=1e-4)


def test_a_fit_of_one_weight_has_the_spread_of_the_elbo() -> None:
    """`pyrodrop.fit` on the same problem: 10 observations of mean 1."""
    model = models.from_module(nn.Linear(1, 1, bias=False), priors.Gaussian(1.0), likelihoods.Gaussian(1.0))
    y = 1 + torch.linspace(-1, 1, 10)[:, None]
    guide = guides.BernoulliDropout(model, 0.1)
    data, schedule = (torch.ones(10, 1), y), pyrodrop.schedules.cosine(800)
    options: dict[str, Any] = {"estimator": "local", "engine": "traced", "progress": False, "lr_schedule": schedule}
    fit = pyrodrop.fit(model, guide, data, steps=800, lr=0.02, **options)
    loc = float(fit.guide.posterior("weight").loc.detach())
    assert loc * 0.3 == pytest.approx(one_weight.dropout(10, 0.1, "elbo")[1], rel=0.03)


def test_copies_with_a_share_of_the_precision_are_the_same_posterior() -> None:
    data = osband.sample(10, 0)
    problems = ((osband.network(), data), (osband.network(copies=4), osband.repeated(data, 4)))
    values = [{name: torch.randn(w.shape) for name, w in osband.network().weight_sites().items()} for _ in range(2)]
    once, often = (
        [float(poutine.trace(poutine.condition(model, one)).get_trace(own.x, own.y).log_prob_sum()) for one in values]
        for model, own in problems
    )
    assert often[1] - often[0] == pytest.approx(once[1] - once[0], rel=1e-4)
    assert abs(once[1] - once[0]) > 1


# Hron: the prior


def test_evidence_is_the_mean_likelihood_of_prior_draws() -> None:
    low = -8.0
    prior = TruncatedLogUniform(low, HIGH)
    torch.manual_seed(0)
    w = prior.sample((200_000,)).double().numpy()
    values = np.prod(1 / (1 + np.exp(-np.outer(w, SIGNED))), 1)
    se = values.std() / math.sqrt(len(values))
    assert log_uniform.evidence(SIGNED, low, HIGH) == pytest.approx(values.mean(), abs=4 * se)
    near = (values * (np.abs(w) < 0.05)).mean() / values.mean()
    assert log_uniform.near_zero(SIGNED, low, HIGH, 0.05) == pytest.approx(near, abs=0.01)


@pytest.mark.parametrize("low", [-5.0, -50.0, -600.0])
def test_evidence_grows_by_the_likelihood_at_its_lower_end(low: float) -> None:
    """dZ / d(-low) = L(e^low) + L(-e^low), from 2 L(0) = 1/16 for five observations as low falls."""
    grown = log_uniform.unnormalised(SIGNED, low - 1, HIGH) - log_uniform.unnormalised(SIGNED, low, HIGH)
    between = quad(
        lambda u: sum(np.prod([1 / (1 + math.exp(-a * s * math.exp(u))) for a in SIGNED]) for s in (1, -1)),
        low - 1,
        low,
    )[0]
    assert grown == pytest.approx(between, rel=1e-5)
    if low < -40:
        assert grown == pytest.approx(1 / 16, rel=1e-6)


def test_separable_data_add_growth_at_the_upper_end() -> None:
    upper = [log_uniform.unnormalised(SEPARABLE, -5.0, high) for high in (6.0, 9.0)]
    assert upper[1] - upper[0] == pytest.approx(3, rel=1e-4)
    bounded = [log_uniform.unnormalised(SIGNED, -5.0, high) for high in (6.0, 9.0)]
    assert bounded[1] == pytest.approx(bounded[0], rel=1e-4)


def test_gaussian_prior_and_variational_dropout_by_grids() -> None:
    w = np.linspace(-8, 8, 1_600_001)
    density = np.exp(-(w**2) / 2) * np.prod([1 / (1 + np.exp(-a * w)) for a in SIGNED], 0)
    expected = density[np.abs(w) < 0.1].sum() / density.sum()
    assert log_uniform.near_zero_gaussian(SIGNED, 1.0, 0.1) == pytest.approx(expected, rel=1e-3)

    def objective(m: float, sd: float) -> float:
        """E[ln L] - KL by a grid, with the KL divergence from 1/|w| as E[ln q(w) |w|] up to a constant."""
        z = np.linspace(-8, 8, 40_000)  # no point at w = 0
        own = norm.pdf(z)
        own /= own.sum()
        v = m + sd * z
        terms = -sum(np.logaddexp(0, -a * v) for a in SIGNED) - norm.logpdf(v, m, sd) - np.log(np.abs(v))
        return float((own * terms).sum())

    m, sd = log_uniform.variational(SIGNED)
    best = objective(m, sd)
    for dm, ds in ((0.05, 0), (-0.05, 0), (0, 0.05), (0, -0.05)):
        assert objective(m + dm, sd + ds) < best


# Hron: the quasi-KL divergence


def test_quasi_kl_is_the_limit_of_divergences_with_a_full_matrix() -> None:
    """By the textbook formula for two Gaussians, at every rank."""
    covariance = np.array([[2.0, 0.6, 0.1], [0.6, 1.0, 0.3], [0.1, 0.3, 0.5]])
    for rank in (1, 2):
        vectors, values = np.linalg.eigh(covariance)[1][:, -rank:], np.linalg.eigvalsh(covariance)[-rank:]
        tau = 1e-9
        own = vectors @ np.diag(values) @ vectors.T + tau * np.eye(3)
        kl = (np.trace(np.linalg.solve(covariance, own)) - 3) / 2
        kl += (np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(own)[1]) / 2
        assert quasi_kl.minimum(covariance, rank) == pytest.approx(kl + (3 - rank) / 2 * math.log(tau), abs=1e-6)
        found, angle = quasi_kl.optimised(covariance, rank, 1e-8, seed=1)
        assert found == pytest.approx(quasi_kl.minimum(covariance, rank), abs=1e-6)
        assert angle < 1e-4


@pytest.mark.parametrize("theta", [0.5, 0.05])
def test_divergence_of_dropout_by_quadrature(theta: float) -> None:
    m, rate, scale = 0.8, 0.3, 1.5

    def integrand(w: float) -> float:
        q = (1 - rate) * norm.pdf(w, m, theta) + rate * norm.pdf(w, 0, theta)
        return q * (math.log(q) - norm.logpdf(w, 0, scale)) if q > 0 else 0.0

    kl = quad(integrand, -10 * theta, m + 10 * theta, points=[0, m], limit=400)[0]
    assert quasi_kl.dropout_kl(m, rate, theta, scale) == pytest.approx(kl, abs=1e-6)
    if theta < 0.1:
        finite = kl + math.log(2 * math.pi * math.e * theta**2) / 2
        assert quasi_kl.dropout_limit(m, rate, scale) == pytest.approx(finite, abs=2e-3)


# Le Folgoc: two weights


def test_two_weights_against_a_grid() -> None:
    x, y = two_weights.sample(6, 3)
    w = np.linspace(-4, 5, 451)
    grid = np.stack(np.meshgrid(w, w, indexing="ij"), -1).reshape(-1, 2)
    logs = norm.logpdf(y, grid @ x.T, two_weights.NOISE).sum(1) + norm.logpdf(grid).sum(1)
    mass = np.exp(logs - logs.max())
    area = (w[1] - w[0]) ** 2
    assert two_weights.log_evidence(x, y) == pytest.approx(logs.max() + math.log(mass.sum() * area), abs=1e-3)
    mass /= mass.sum()
    posterior = two_weights.exact(x, y)
    np.testing.assert_allclose(posterior.mean, mass @ grid, atol=1e-3)
    np.testing.assert_allclose(posterior.covariance, np.cov(grid.T, aweights=mass, ddof=0), atol=1e-3)

    rate, theta, m = 0.2, 0.3, np.array([0.9, 0.6])
    q = sum(
        a * b * multivariate_normal((i * m[0], j * m[1]), theta**2 * np.eye(2)).pdf(grid)
        for i, a in ((1, 1 - rate), (0, rate)) for j, b in ((1, 1 - rate), (0, rate))
    )  # fmt: skip
    expected = float((q * (logs - np.log(q))).sum() * area)
    assert two_weights.elbo(x, y, m, theta, rate) == pytest.approx(expected, abs=1e-3)


def test_dropout_of_two_weights_is_optimal() -> None:
    """Against a search over the loss written out over the four masks."""
    x, y = two_weights.sample(10, 0)
    r = 0.3

    def loss(m: np.ndarray) -> float:
        total = (1 - r) * float(m @ m) / 2
        for i, a in ((1, 1 - r), (0, r)):
            for j, b in ((1, 1 - r), (0, r)):
                total += a * b * float(((y - x @ (m * [i, j])) ** 2).sum()) / (2 * two_weights.NOISE**2)
        return total

    best = minimize(loss, np.zeros(2), tol=1e-12).x
    distribution = two_weights.dropout(x, y, r)
    np.testing.assert_allclose(distribution.means[0], best, atol=1e-5)
    assert distribution.log_density(two_weights.TRUE) == -math.inf
    assert distribution.weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(distribution.total, np.diag(r * (1 - r) * best**2), atol=1e-5)


def test_factorised_is_optimal_and_low_rank_is_learned() -> None:
    x, y = two_weights.sample(10, 0)
    posterior = two_weights.exact(x, y)

    def gap(logs: np.ndarray) -> float:
        q = two_weights.Mixture(np.ones(1), posterior.means, np.diag(np.exp(logs)))
        return two_weights.divergence(q, posterior)

    best = minimize(gap, np.zeros(2), tol=1e-12)
    factorised = two_weights.factorised(x, y)
    np.testing.assert_allclose(np.diag(factorised.covariance), np.exp(best.x), rtol=1e-4)
    distribution = [torch.distributions.MultivariateNormal(*(torch.tensor(v) for v in (q.mean, q.covariance)))
           for q in (factorised, posterior)]  # fmt: skip
    assert two_weights.divergence(factorised, posterior) == pytest.approx(
        float(torch.distributions.kl_divergence(*distribution))
    )
    low_rank = le_folgoc.trained_low_rank(x, y, 800, 0)
    assert two_weights.divergence(low_rank, posterior) < best.fun / 5


def test_modes_are_counted() -> None:
    masks = np.array([[1.0, 1.0], [0.0, 0.0]])
    apart = two_weights.Mixture(np.array([0.5, 0.5]), masks, 0.01 * np.eye(2))
    near = two_weights.Mixture(np.array([0.5, 0.5]), masks, 4.0 * np.eye(2))
    atoms = two_weights.Mixture(np.array([0.5, 0.5]), masks, np.zeros((2, 2)))
    point = np.array([1.0, 0.5])
    assert [two_weights.modes(distribution, point) for distribution in (apart, near, atoms)] == [2, 1, 2]


# The rest


def test_published_slice_is_that_of_the_file(data_folder: Path) -> None:
    t, sd = foong.published_slice()
    own = np.loadtxt(data_folder / "foong2020" / "hmc_1hl_slice.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(np.interp(t.numpy(), own[:, 0], own[:, 4]), sd.numpy(), atol=2e-4)
    assert float(sd.max()) == pytest.approx(1.014, abs=0.02)


def test_origin_is_two_clusters(data_folder: Path) -> None:
    split = pyrodrop.data.foong2020()
    assert split.train.x.shape == (100, 2)
    assert split.train.y.shape == (100, 1)
    x = split.train.x
    torch.testing.assert_close(x[:50].mean(0), torch.ones(2), atol=0.1, rtol=0)
    torch.testing.assert_close(x[50:].mean(0), -torch.ones(2), atol=0.1, rtol=0)
    assert not split.truth
    assert float((split.test.x[:, 0] - split.test.x[:, 1]).abs().max()) == 0


def test_origin_must_be_where_the_folder_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYRODROP_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="origin_x.txt of Foong et al"):
        pyrodrop.data.foong2020()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("critiques")
    made = {
        name: experiment._timed(name, device=torch.device("cpu"), progress=False, size="quick", seed=0)
        for name in QUICK
    }
    patch = pytest.MonkeyPatch()
    patch.setattr(Experiment, "measure", lambda _, function, names, cells, **__: {name: made[name] for name in names})
    content = experiment.run(preset="quick", panels=list(QUICK), out=folder, quiet=True)
    patch.undo()
    return folder, content


@pytest.mark.more
def test_the_page_has_every_panel(page: tuple[Path, dict[str, Any]]) -> None:
    folder, content = page
    text = (folder / "page.html").read_text()
    assert json.loads((folder / "results.json").read_text()) == content
    for name, panel in content["panels"].items():
        assert f'id="{name}"' in text
        assert panel["link"] in text
        assert panel["facts"]
        assert panel["helps"]
        assert 2 <= panel["shown"].count(". ") + 1 <= 5
        assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert text.count("data:image/png;base64,") == len(QUICK)


def test_closed_form_facts_hold(page: tuple[Path, dict[str, Any]]) -> None:
    facts = {name: panel["facts"] for name, panel in page[1]["panels"].items()}
    assert all(facts["hron_prior"].values())
    assert all(facts["hron_quasi_kl"].values())


@pytest.mark.slow
@pytest.mark.parametrize("name", LONGER)
def test_longer_panels_at_the_size_of_a_test(name: str, data_folder: Path) -> None:
    panel, seconds = experiment._timed(name, device=torch.device("cpu"), progress=False, size="quick", seed=0)
    assert seconds > 0
    assert panel.figure[:4] == b"\x89PNG"
    json.dumps(panel.content, allow_nan=False)


def test_unknown_panels_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "critiques", "--panels", "osbant", "--out", str(tmp_path)]) == 2
    assert "no panel is called 'osbant'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="panels needs at least one"):
        experiment.run(panels=[], out=tmp_path)
