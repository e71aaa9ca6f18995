"""Stored reference posteriors: what they say is what the job makes, and their draws give the stored numbers."""

from __future__ import annotations

import dataclasses
import json
import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyrodrop.analysis.lab.experiments.references import PROBLEMS, load
from pyrodrop.analysis.lab.experiments.references.experiment import SIZES, drawn, recipe
from pyrodrop.analysis.lab.experiments.references.stored import FOLDER, facts
from pyrodrop.data import Dataset
from pyrodrop.prediction.prediction import Prediction

STORED = sorted(path.stem for path in FOLDER.glob("*.json"))
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
@pytest.mark.parametrize("name", STORED)
def test_recipe_is_that_of_the_job(name: str, request: pytest.FixtureRequest) -> None:
    data_of(name, request)
    content, problem = facts(name), PROBLEMS[name]
    assert content["recipe"] == recipe(problem, SIZES["default"], 0, *problem.data())
    assert content["sampler"]["data_fingerprint"] == problem.data()[0].fingerprint
    for key in ("chains", "draws", "tune"):
        assert content["sampler"][key] == getattr(problem, key)


@pytest.mark.parametrize("name", STORED)
def test_chains_have_mixed(name: str) -> None:
    """A reference is stricter than a user's run, whose R-hat may be 1.05."""
    found = facts(name)["diagnostics"]
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


def test_the_spread_between_two_clusters_is_the_published_one() -> None:
    """Within a quarter of the sd of f that Foong et al. (2020) published for their HMC, everywhere on the slice."""
    published = json.loads((FOLDER.parent / "foong2020.json").read_text())
    t = torch.tensor(published["t"])
    x = (t / 2**0.5)[:, None].expand(-1, 2).contiguous()
    ratio = load("foong").predict(x, 640).spread[:, 0] / torch.tensor(published["sd"])
    assert 0.75 < float(ratio.min()) < float(ratio.max()) < 1.25
    assert abs(float(ratio.log().mean())) < 0.1
