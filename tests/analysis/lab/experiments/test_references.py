"""Stored reference posteriors: what they say is what the job makes, and their draws give the stored numbers."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.spatial import cKDTree

import pyrodrop
from pyrodrop.analysis.lab.experiments.references import PROBLEMS, load, posteriors
from pyrodrop.analysis.lab.experiments.references.experiment import SIZES, drawn, recipe, with_precision
from pyrodrop.analysis.lab.experiments.references.places import line, places
from pyrodrop.analysis.lab.experiments.references.spreads import PLACES, spread_ratios
from pyrodrop.analysis.lab.experiments.references.stored import FOLDER, LEARNED, facts
from pyrodrop.analysis.lab.experiments.references.table import distance_table
from pyrodrop.data import Dataset
from pyrodrop.prediction.prediction import Prediction

STORED = sorted(path.stem for path in FOLDER.glob("*.json"))
WITH_LEARNED = [(FOLDER, name) for name in STORED] + [
    (FOLDER / LEARNED, path.stem) for path in sorted((FOLDER / LEARNED).glob("*.json"))
]
MOST_R_HAT = 1.01


def data_of(name: str, request: pytest.FixtureRequest) -> tuple[Dataset, Dataset]:
    """Training and test part, with the stored y where it was drawn; skips without the files."""
    if name != "co2":  # comes with the package
        request.getfixturevalue("data_folder")
    train, test = PROBLEMS[name].data()
    y = facts(name)["y"]
    return train, test if y is None else Dataset(test.x, torch.tensor(y)[:, None])


# The stored files


@pytest.mark.few(2)
@pytest.mark.unshifted  # the inputs and y of two problems are drawn
@pytest.mark.parametrize(("folder", "name"), WITH_LEARNED)
def test_recipe_is_that_of_the_job(folder: Path, name: str, request: pytest.FixtureRequest) -> None:
    data_of(name, request)
    content, problem = facts(name, folder), PROBLEMS[name]
    if content["learned_precisions"] is not None:
        problem = with_precision(problem, content["learned_precisions"])
    assert (content["learned_precisions"] is not None) == (folder.name == LEARNED)
    assert content["recipe"] == recipe(problem, SIZES["default"], 0, *problem.data())
    assert content["sampler"]["data_fingerprint"] == problem.data()[0].fingerprint
    for key in ("chains", "draws", "tune"):
        assert content["sampler"][key] == getattr(problem, key)


@pytest.mark.parametrize(("folder", "name"), WITH_LEARNED)
def test_chains_have_mixed(folder: Path, name: str) -> None:
    """A reference is stricter than a user's run, whose R-hat may be 1.05."""
    found = facts(name, folder)["diagnostics"]
    assert found["r_hat_f"] <= MOST_R_HAT
    assert found["problems"] == []


@pytest.mark.few(2)
@pytest.mark.parametrize("name", STORED)
def test_stored_draws_give_the_stored_log_density(name: str, request: pytest.FixtureRequest) -> None:
    """By a forward pass of our own: mean over draws of the density of y, in plain torch."""
    train, test = data_of(name, request)
    content, sampled, problem = facts(name), load(name), PROBLEMS[name]
    w = {site: values.flatten(0, 1).double() for site, values in sampled.samples.items()}
    x = test.x.double() if train.inputs is None else (test.x.double() - train.inputs.loc) / train.inputs.scale
    hidden = torch.einsum("sij,nj->sni", w["layers.0.weight"], x) + w["layers.0.bias"][:, None]
    hidden = hidden.tanh() if problem.activation == "tanh" else hidden.relu()
    f = torch.einsum("sij,snj->sni", w["layers.1.weight"], hidden) + w["layers.1.bias"][:, None]
    if name == "mnist":
        each = f.log_softmax(-1).gather(-1, test.y[None, :, None].expand(len(f), -1, 1))[..., 0]
    else:
        f = f if train.targets is None else f * train.targets.scale + train.targets.loc
        precision = float(content["recipe"]["likelihood"].split("=")[1].rstrip(")"))
        sd = torch.tensor(float(problem.likelihood().precision) ** -0.5, dtype=torch.float64)
        assert precision == pytest.approx(float(sd) ** -2, rel=1e-4)
        each = torch.distributions.Normal(f[..., 0], sd).log_prob(test.y[:, 0].double())
    assert len(f) == content["stored"]["draws"] == content["recipe"]["sampler"]["kept"]
    found = float((each.logsumexp(0) - math.log(len(f))).mean())
    assert found == pytest.approx(content["stored"]["log_density"], rel=1e-4, abs=1e-4)
    # a subset of the draws behind the table
    assert found == pytest.approx(
        next(row["log_density"] for row in content["rows"] if row["method"] == "reference"), rel=0.05, abs=0.1
    )


# Models and data


def test_priors_have_the_scales_of_the_recipe() -> None:
    """Foong et al. (2020): w ~ N(0, 4^2 / fan-in), b ~ N(0, 1), noise sd .1."""
    model = PROBLEMS["foong"].model()
    sites = pyro.poutine.trace(model).get_trace(torch.zeros(3, 2)).nodes
    for site, want in {
        "layers.0.weight": 4 / math.sqrt(2), "layers.1.weight": 4 / math.sqrt(50), "layers.0.bias": 1, "layers.1.bias": 1,
    }.items():  # fmt: skip
        torch.testing.assert_close(sites[site]["fn"].stddev, torch.full_like(sites[site]["value"], want))
    assert model(torch.zeros(3, 2)).shape == (3, 1)
    assert float(model.likelihood.precision.rsqrt()) == pytest.approx(0.1)  # type: ignore[union-attr,operator]


# The table


@dataclasses.dataclass
class Slope:
    """f = a x with one of the slopes per sample, in turn."""

    slopes: tuple[float, ...]

    def predict(self, x: torch.Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
        a = torch.tensor(self.slopes).repeat(-(-num_samples // len(self.slopes)))[:num_samples, None, None]
        return Prediction(f=a * x, distribution=dist.Normal(a * x, 0.5).to_event(1), seed=seed)


class Several(list[Slope]):
    def predict(self, x: torch.Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
        return Slope(tuple(s for one in self for s in one.slopes)).predict(x, num_samples, seed=seed)


def test_single_fits_are_averaged_and_ensembles_are_mixtures() -> None:
    """Of a reference at -1 and 1: W_2 of a point at 1 is sqrt(2) |x|, at 0 |x|, of a pair at -1 and 1 zero."""
    x = torch.tensor([[-1.0], [0.5], [2.0]])
    fits: Any = {"pair": Several([Slope((-1.0,)), Slope((1.0,))]), "centre": Several([Slope((0.0,)), Slope((1.0,))])}
    data = Dataset(x, x)
    table = distance_table(fits, data, data, Slope((-1.0, 1.0)), num_samples=100, seed=0)
    rows, size = table.comparison.rows, float(x.abs().mean())
    assert next(iter(rows)) == "ensemble pair"
    assert rows["ensemble pair"]["wasserstein"] == 0
    assert rows["pair"]["wasserstein"] == pytest.approx(math.sqrt(2) * size, rel=1e-5)
    assert rows["centre"]["wasserstein"] == pytest.approx((1 + math.sqrt(2)) / 2 * size, rel=1e-5)
    assert [row["wasserstein"] for row in table.members["centre"]] == [
        pytest.approx(size, rel=1e-5),
        pytest.approx(math.sqrt(2) * size, rel=1e-5),
    ]
    for place in PLACES:  # of slopes -1 and 1 the sd is |x|, of 0 and 1 |x| / 2, of one slope 0
        assert [rows[name][place] for name in ("pair", "ensemble pair")] == [0, pytest.approx(1)]
        assert rows["ensemble centre"][place] == pytest.approx(0.5)
    assert table.comparison.reference["at"] == pytest.approx(1)  # type: ignore[index]
    assert rows["centre"]["rmse"] == pytest.approx((math.sqrt(5.25 / 3) + 0) / 2)  # of the means 0 and x
    assert rows["pair"]["sign_probability"] is None
    assert rows["ensemble centre"]["sign_probability"] is not None
    assert rows["pair"]["correlation"] is None
    assert not any("pair/0" in note for note in table.comparison.notes)
    stored = table.rows("published", "x", {name: [{"elbo": -1.0}, {"elbo": -2.0}] for name in fits})
    assert [row["elbo"] for row in stored if row["method"] == "pair" and "seed" in row] == [-1, -2]
    [centre] = [row for row in stored if row["method"] == "ensemble centre"]
    assert (centre["at"], centre["at lowest"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert {row["method"] for row in stored} == {*rows, "reference"}


@dataclasses.dataclass
class Constant:
    """f = a at all points with a ~ N(1, 2^2); noise of standard deviation 3."""

    chains: int = 40
    draws: int = 100

    def predict(self, x: torch.Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
        a = 1 + 2 * torch.randn(num_samples, 1, 1, generator=torch.Generator().manual_seed(seed))
        f = a.expand(-1, len(x), 1)
        return Prediction(f=f, distribution=dist.Normal(f, 3.0).to_event(1), seed=seed)


def test_drawn_observations_have_the_predictive_distribution() -> None:
    """One draw per point: independent over points although f is constant; standard errors are 3.6 / sqrt(N)."""
    count = 4000
    y = drawn(Constant(), torch.zeros(count, 1), seed=3)  # type: ignore[arg-type]
    assert y.shape == (count, 1)
    sd = math.sqrt(13)
    assert float(y.mean()) == pytest.approx(1, abs=4 * sd / math.sqrt(count) + 4 * 2 / math.sqrt(4000))
    assert float(y.std()) == pytest.approx(sd, rel=0.08)
    assert abs(float(torch.corrcoef(torch.stack((y[:-1, 0], y[1:, 0])))[0, 1])) < 4 / math.sqrt(count)


# The job


def test_the_places_of_two_clusters() -> None:
    """At the rows, midpoints of pairs in the gap, and three times as far from the mean, the farthest half."""
    torch.manual_seed(0)
    x = torch.cat((torch.randn(90, 2), 20 + torch.randn(60, 2))) * torch.tensor([1.0, 100.0])
    found = places(Dataset(x, x[:, :1]))
    scaled, tree = x.double() / x.double().std(0), cKDTree(x.double() / x.double().std(0))
    assert {name: len(points) for name, points in found.items()} == {"at": 100, "between": 100, "away": 75}
    assert {tuple(row) for row in found["at"].tolist()} <= {tuple(row) for row in x.tolist()}
    pairs = ((x[:, None].double() + x[None].double()) / 2).reshape(-1, 2)
    assert torch.cdist(found["between"].double(), pairs).amin(1).max() < 1e-3
    gap = tree.query(found["between"].double() / x.double().std(0))[0]
    assert gap.min() > 0.5 * (scaled[90:].mean(0) - scaled[:90].mean(0)).norm() - 0.3
    stretched = 3 * x - 2 * x.mean(0)
    far = tree.query(stretched.double() / x.double().std(0))[0]
    torch.testing.assert_close(
        found["away"].sort(0).values, stretched[torch.tensor(far).argsort(descending=True)[:75]].sort(0).values
    )


def test_the_line_is_the_first_principal_direction() -> None:
    """By the eigenvectors of the correlation matrix; a column that does not vary keeps its value."""
    torch.manual_seed(0)
    x = torch.randn(300, 3) @ torch.randn(3, 3) * torch.tensor([1.0, 1e3, 1e-2]) + 5
    x = torch.cat((x, torch.full((300, 1), 7.0)), 1)
    t, points, data = line(Dataset(x, x[:, :1]))
    z = ((x - x.mean(0)) / x.std(0))[:, :3].double().numpy()
    direction = np.linalg.eigh(np.corrcoef(z.T))[1][:, -1]
    score = z @ direction
    for end, own in ((-1, score.min()), (1, score.max())):
        [row] = (points[torch.isclose(t, torch.tensor(float(end), dtype=t.dtype))] - x.mean(0)) / x.std(0)
        options = [own * direction, (score.min() + score.max() - own) * direction]  # the sign of a direction is free
        assert min(np.abs(row[:3].numpy() - option).max() for option in options) < 1e-3
    assert points[:, 3].eq(7).all()
    assert [float(t.min()), float(t.max())] == [-3, 3]
    torch.testing.assert_close(points[0] + points[-1], 2 * points[len(t) // 2])
    assert data.abs().max() <= 1
    digits = line(Dataset(x, torch.tensor([4] * 3 + [1] * 297)))
    ends = [digits.x[int((digits.t - end).abs().argmin())] for end in (-1, 1)]
    torch.testing.assert_close(torch.stack(ends), x[[0, 3]], rtol=1e-4, atol=1e-3)


def test_ratios_along_the_line_are_those_of_the_functions() -> None:
    """Slopes -1 and 1 have sd |x| sqrt(n / (n - 1)), 0 and 1 half of it; at x = 0 there is none."""
    x = torch.linspace(-2, 2, 41)[:, None]
    found = spread_ratios(
        {"one": Several([Slope((0.0, 1.0)), Slope((3.0,))])}, Dataset(x, x), Slope((-1.0, 1.0)), num_samples=50, seed=0  # type: ignore[dict-item]
    )  # fmt: skip
    t = np.array(found["line"]["t"])
    ratio = np.array(found["line"]["one"], dtype=float)
    assert np.isnan(ratio[t == 0]).all()
    np.testing.assert_allclose(ratio[t != 0], 0.25, rtol=1e-3)
    np.testing.assert_allclose(found["line"]["exact"], np.abs(2 * t) * math.sqrt(50 / 49), rtol=1e-3)
    one = found["places"]["one"]["at"]
    assert [one["lowest"], one["highest"]] == [0, pytest.approx(0.5)]


@pytest.mark.more
def test_a_learned_precision_is_one_over_the_mean_square_of_the_residuals() -> None:
    """At the largest ELBO, N / precision is the mean over q of the sum of squares."""
    problem = PROBLEMS["co2"]
    train = problem.data()[0]
    training: Any = {"steps": 800, "engine": "traced", "seed": 0}
    found = posteriors.learned_precisions(problem, train, members=2, **training)
    assert float(with_precision(problem, [*found, 1e9]).likelihood().precision) == pytest.approx(max(found))  # type: ignore[arg-type]
    learned = dataclasses.replace(problem, likelihood=lambda: pyrodrop.likelihoods.Gaussian(0.25, learned=True)).model()
    [fit] = posteriors.trained("mean field", learned, train, members=1, **training)
    squares = (fit.predict(train.x, 2000).f - train.y).square().mean()
    assert found[0] * float(squares) == pytest.approx(1, abs=0.1)
    with pytest.raises(
        ValueError, match="precision must be 'published' where there is no Gaussian noise; got 'learned'"
    ):
        posteriors.learned_precisions(PROBLEMS["mnist"], train, members=1, steps=1, engine="traced", seed=0)


def test_the_spread_between_two_clusters_is_the_published_one() -> None:
    """Within a quarter of the sd of f that Foong et al. (2020) published for their HMC, everywhere on the slice."""
    published = json.loads((FOLDER.parent / "foong2020.json").read_text())
    t = torch.tensor(published["t"])
    x = (t / 2**0.5)[:, None].expand(-1, 2).contiguous()
    ratio = load("foong").predict(x, 640).spread[:, 0] / torch.tensor(published["sd"])
    assert 0.75 < float(ratio.min()) < float(ratio.max()) < 1.25
    assert abs(float(ratio.log().mean())) < 0.1
