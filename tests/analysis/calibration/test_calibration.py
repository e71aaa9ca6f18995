"""Simulation-based calibration: on a regression whose posterior is known, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, schedules
from pyrodrop.analysis import SBC, sbc, sbc_of_draws
from pyrodrop.analysis.calibration.fits import problem_of
from pyrodrop.analysis.calibration.sbc import _PRIOR as PRIOR
from pyrodrop.analysis.calibration.simulate import simulate
from pyrodrop.analysis.calibration.starts import NewStarts
from pyrodrop.data import Dataset
from pyrodrop.scaling import Standardize
from pyrodrop.training.settings import Settings
from pyrodrop.training.stacked import loss_of
from tests.pyrodrop.networks.test_starts import restart

N, D, TAU = 20, 3, 4.0


def design(orthogonal: bool = True) -> Tensor:
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
    if orthogonal:
        return torch.linalg.qr(x)[0] * math.sqrt(N)
    return x @ torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.3, 0.3], [0.0, 0.0, 0.3]])  # three columns that are nearly one


def regression(prior: Any = None, likelihood: Any = None, bias: bool = False, **options: Any) -> models.NetworkModel:
    torch.manual_seed(0)
    return models.from_module(
        nn.Linear(D, 1, bias=bias),
        prior=prior or priors.Gaussian(),
        likelihood=likelihood or likelihoods.Gaussian(TAU),
        **options,
    )


def closed_form(scale: float = 1.0, shift: float = 0.0) -> Any:
    """Draws from N(m + shift s, scale C), where N(m, C) is the exact posterior and s its standard deviations."""

    def draw(x: Tensor, y: Tensor, num_draws: int, seed: int) -> dict[str, Tensor]:
        covariance = torch.linalg.inv(TAU * x.T @ x + torch.eye(D))
        mean = covariance @ (TAU * x.T @ y[:, 0]) + shift * covariance.diag().sqrt()
        noise = torch.randn(num_draws, D, generator=torch.Generator().manual_seed(seed))
        return {"weight": (mean + noise @ torch.linalg.cholesky(scale * covariance).T)[:, None]}

    return draw


def calibrated(scale: float = 1.0, shift: float = 0.0, **options: Any) -> SBC:
    points = torch.eye(D)  # f at them are the weights
    asked: dict[str, Any] = {"points": points, "count": 300, "num_draws": 99, **options}
    return sbc_of_draws(regression(), closed_form(scale, shift), design(), **asked)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_the_exact_posterior_passes(seed: int) -> None:
    result = calibrated(seed=seed)
    assert result.calibrated
    assert result.verdict.startswith("no miscalibration found (p = ")
    assert result.problems == {}


def test_half_the_variance_is_too_narrow() -> None:
    result = calibrated(0.5)
    assert not result.calibrated
    assert all(result.problems[f"f[{p}]"] == "too narrow (U-shape)" for p in range(D))
    assert "fit the data better than the truth" in result.problems["log_likelihood"]
    assert str(result).startswith(
        "not calibrated (p < 1e-10, 4 quantities together, 300 data sets): f[0], f[1], f[2]: too"
    )


def test_twice_the_variance_is_too_wide() -> None:
    result = calibrated(2.0)
    assert not result.calibrated
    assert all(result.problems[f"f[{p}]"] == "too wide (hump)" for p in range(D))
    assert "fit the data worse than the truth" in result.problems["log_likelihood"]


@pytest.mark.few(1)
@pytest.mark.parametrize(("shift", "words"), [(0.5, "biased, too high"), (-0.5, "biased, too low")])
def test_a_shifted_mean_is_biased(shift: float, words: str) -> None:
    result = calibrated(shift=shift)
    assert not result.calibrated
    assert all(result.problems[f"f[{p}]"] == words for p in range(D))


def test_the_prior_passes_for_functions_and_fails_for_the_log_likelihood() -> None:
    """A posterior that ignores the data: only a quantity that depends on the data shows it."""

    def draw(x: Tensor, y: Tensor, num_draws: int, seed: int) -> dict[str, Tensor]:
        return {"weight": torch.randn(num_draws, 1, D, generator=torch.Generator().manual_seed(seed))}

    result = sbc_of_draws(regression(), draw, design(), count=200, num_draws=49)
    assert list(result.problems) == ["log_likelihood"]


def test_ranks_are_those_of_a_direct_loop() -> None:
    """Ranks of every quantity, by a loop over data sets and draws in double precision."""
    count, num_draws, x = 12, 9, design()
    points = torch.randn(2, D, generator=torch.Generator().manual_seed(1))
    draw = closed_form()
    result = sbc_of_draws(regression(), draw, x, points=points, count=count, num_draws=num_draws, seed=5)
    data = simulate(regression(), x, count, 5 + PRIOR)
    assert data.y.shape == (count, N, 1)
    for r in range(count):
        truth, y = data.weights["weight"][r].double().numpy(), data.y[r].double().numpy()
        drawn = draw(x, data.y[r], num_draws, 5 + r)["weight"].double().numpy()
        for p, point in enumerate(points.double().numpy()):
            rank = sum(float(point @ w[0]) < float(point @ truth[0]) for w in drawn)
            assert int(result.ranks[f"f[{p}]"][r]) == rank
        known = [stats.norm.logpdf(y[:, 0], x.double().numpy() @ w[0], TAU**-0.5).sum() for w in [truth, *drawn]]
        assert int(result.ranks["log_likelihood"][r]) == sum(value < known[0] for value in known[1:])


def test_simulated_data_have_the_joint_distribution() -> None:
    """Of y: covariance x x' + 1 / tau; of weights and y: covariance x."""
    x, count = design(), 20_000
    data = simulate(regression(), x, count, 0)
    y, w = data.y[:, :, 0].double(), data.weights["weight"][:, 0].double()
    want = (x @ x.T + torch.eye(N) / TAU).double()
    size = (want.diag()[:, None] * want.diag() + want**2).div(count).sqrt()  # standard errors
    assert float(((y.T @ y / count - want) / size).abs().max()) < 4.5
    cross = (y.T @ w / count - x.double()) / (2 * want.diag()[:, None] / count).sqrt()
    assert float(cross.abs().max()) < 4.5


def test_hyperparameters_are_drawn_with_the_weights() -> None:
    """Under a variance ~ InverseGamma(3, 2) the weights are Student t with 6 degrees of freedom and scale sqrt(2 / 3)."""
    model = regression(priors.ARD("weight", dist.InverseGamma(3.0, 2.0)))
    w = simulate(model, design(), 2000, 0).weights["weight"].flatten().double().numpy()
    assert stats.kstest(w, stats.t(6, scale=math.sqrt(2 / 3)).cdf).pvalue > 0.01


def test_the_simulated_likelihood_is_the_models() -> None:
    """Class labels at the frequencies of the softmax."""
    net = nn.Linear(1, 3, bias=False)
    model = models.from_module(net, prior=priors.Gaussian(1e-6), likelihood=likelihoods.Categorical())
    y = simulate(model, torch.ones(5, 1), 400, 0).y
    assert y.shape == (400, 5)
    assert stats.chisquare(torch.bincount(y.flatten())).pvalue > 0.01


# ---------------------------------------------------------------------------------------------------- trained guides


def trained(make: Any, x: Tensor, **options: Any) -> SBC:
    asked: dict[str, Any] = {"count": 200, "num_draws": 99, "steps": 300, "lr": 3e-2, "progress": False, **options}
    return sbc(regression(), make, x, **asked)


def test_a_guide_that_has_the_posterior_passes() -> None:
    """With orthogonal columns the posterior is a mean field."""
    result = trained(guides.MeanField, design(), steps=400, lr=0.1, lr_schedule=schedules.cosine(400))
    assert result.calibrated, result.verdict
    assert list(result.ranks) == [*(f"f[{p}]" for p in range(5)), "log_likelihood"]
    assert result.settings["guide"] == "MeanField"
    assert result.settings["steps"] == 400


def test_a_fit_is_the_fit_alone() -> None:
    """The ranks of fits of the last data set: of draws of `pyrodrop.fit` with its seed. Memory is for one at a time."""
    x, count = design(), 3
    result = trained(guides.MeanField, x, count=count, steps=40, num_draws=400, seed=7, memory=1)
    data = simulate(regression(), x, count, 7 + PRIOR)
    start = restart(model := regression(), guides.MeanField(model), 9)
    fit = pyrodrop.fit(*start, (x, data.y[2]), steps=40, lr=3e-2, seed=9, progress=False)
    f = fit.predict(x[:1], 4000).f.flatten()
    truth = float(x[0] @ data.weights["weight"][2, 0])
    share = float((f < truth).double().mean())
    assert abs(float(result.ranks["f[0]"][2]) / 400 - share) < 4 * math.sqrt(0.25 / 400 + 0.25 / 4000)


@pytest.mark.parametrize(
    "make",
    [
        guides.MeanField,
        guides.LowRank,
        lambda m: guides.VariationalDropout(m, "B", "weight"),
        lambda m: guides.BernoulliDropout(m, 0.2),
    ],
)
def test_new_starts_are_those_of_restart(make: Any) -> None:
    """Every parameter of every fit, against those of a restart with its seed."""
    torch.manual_seed(0)
    prior, x = priors.Gaussian(), design()
    model = models.MLP([D, 4, 1], "tanh", prior=prior, bias_prior=prior, likelihood=likelihoods.Gaussian(TAU))
    guide, settings = make(model), Settings(steps=1, device="cpu")
    before = {name: value.clone() for name, value in parameters(guide).items()}
    problem = problem_of(model, guide, x, torch.zeros(N, 1), settings)
    loss = loss_of(problem, settings)
    starts = NewStarts(model, guide).stacked(problem, loss, range(3, 6))
    for r in range(3):
        want = parameters(restart(model, guide, 3 + r)[1])
        assert sorted(starts) == sorted(want)
        assert all(torch.equal(value[r], want[name]) for name, value in starts.items())
    weights = starts["loc.layers.0.weight"]
    assert not torch.allclose(weights[0], weights[1], atol=1e-2)
    for own in (guide, problem.guide):
        assert all(torch.equal(value, before[name]) for name, value in parameters(own).items())


def parameters(guide: nn.Module) -> dict[str, Tensor]:
    return {name.removesuffix("_unconstrained"): value.detach() for name, value in guide.named_parameters()}


def test_a_start_that_cannot_be_new_is_refused() -> None:
    class Buffered(guides.MeanField):
        def __init__(self, model: Any) -> None:
            super().__init__(model)
            self.register_buffer("anchor", torch.zeros(D))

        def restart(self, model: Any) -> None:
            super().restart(model)
            self.anchor = torch.randn(D)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(D, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.scale

    asked: dict[str, Any] = {"count": 4, "steps": 2, "num_draws": 2, "progress": False}
    with pytest.raises(ValueError, match="restart of Buffered changes anchor, which .* starts='model'"):
        sbc(regression(), Buffered, design(), **asked)
    model = models.from_module(Scaled(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(TAU))
    with pytest.raises(ValueError, match=r"reset_parameters\(\), which these modules do not have: .* starts='model'"):
        sbc(model, guides.MeanField, design(), **asked)
    assert sbc(model, guides.MeanField, design(), starts="model", **asked).count == 4


def test_class_labels_and_several_outputs() -> None:
    net = nn.Linear(2, 3, bias=False)
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Categorical())
    x = torch.randn(15, 2, generator=torch.Generator().manual_seed(0))
    result = sbc(model, guides.MeanField, x, points=x[:2], count=8, steps=20, num_draws=9, progress=False)
    names = [f"f[{p}, {d}]" for p in range(2) for d in range(3)]
    assert list(result.ranks) == [*names, "log_likelihood"]
    assert all(int(ranks.min()) >= 0 and int(ranks.max()) <= 9 for ranks in result.ranks.values())


def test_a_fit_that_diverges_is_counted() -> None:
    result = trained(lambda m: guides.MeanField(m), design(), count=6, steps=60, lr=1e-2)
    failed = SBC(result.ranks, result.num_draws, failed=2)
    assert failed.verdict.endswith("; 2 fits failed and are not counted")
    with pytest.raises(FloatingPointError, match="stopped being finite"):
        trained(guides.MeanField, design(), count=2, steps=200, lr=1e30)


# -------------------------------------------------------------------------------------------------------- the result


def test_a_result_is_saved_whole(tmp_path: Path) -> None:
    result = calibrated(count=20)
    path = result.save(tmp_path / "sbc.json")
    again = SBC.load(path)
    assert again.p_values == result.p_values
    assert again.verdict == result.verdict == json.loads(path.read_text())["verdict"]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a result of simulation-based calibration"):
        SBC.load(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ({"f": [0, 3], "g": [1]}, "equally many whole ranks from 0 to 3"),
        ({"f": [0, 4]}, "equally many whole ranks from 0 to 3"),
        ({"f": [-1, 0]}, "equally many whole ranks from 0 to 3"),
        ({"f": [0.5, 0]}, "equally many whole ranks from 0 to 3"),
        ({}, "equally many whole ranks from 0 to 3"),
        ({"f": ["0"]}, "a list of finite numbers as ranks.f"),
        ([0], "an object as ranks"),
    ],
)
def test_a_result_that_cannot_be_is_not_loaded(ranks: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "sbc.json"
    path.write_text(json.dumps({"ranks": ranks, "num_draws": 3, "seed": 0}))
    with pytest.raises(ValueError, match=f"sbc.json must have {said}"):
        SBC.load(path)


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.filterwarnings("ignore:the log-uniform prior is improper")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: regression(priors.LogUniform()), "the prior of 'weight' is improper .*Use a proper prior"),
        (lambda: regression(priors.ARD("weight")), "variances that follow the posterior .*give it a hyperprior"),
        (lambda: regression(likelihood=likelihoods.Gaussian(1.0, learned=True)), "learned parameters without a prior"),
        (lambda: regression(bias=True), "bias would be trained without a prior, as point estimates: give them one"),
        (
            lambda: models.from_module(
                nn.Sequential(
                    nn.Linear(D, 4, bias=False), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1, bias=False)
                ),
                prior=priors.Gaussian(),
                likelihood=likelihoods.Gaussian(1.0),
            ),
            "normalises over the minibatch .BatchNorm.",
        ),
    ],
)
def test_a_model_without_a_joint_distribution_is_refused(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sbc(model(), guides.MeanField, design(), count=4, steps=2)


@pytest.mark.more
def test_a_standardisation_of_the_model_is_the_same_for_all_data() -> None:
    """The posterior is a mean field in the units of y too: y = 10 + 2 x w + noise of precision tau."""
    x, model = design(), regression()
    model.standardize(Dataset(x, torch.zeros(N, 1), targets=Standardize(loc=10.0, scale=2.0)))
    y = simulate(model, x, 4000, 0).y[:, :, 0]
    assert torch.allclose(y.mean(0), torch.tensor(10.0), atol=0.3)
    assert torch.allclose(y.var(0), 4 * x.square().sum(1) + 1 / TAU, rtol=0.12)
    schedule = schedules.cosine(400)
    result = sbc(
        model, guides.MeanField, x, count=300, num_draws=99, steps=400, lr=0.1, lr_schedule=schedule, progress=False
    )
    assert result.calibrated, result.verdict
