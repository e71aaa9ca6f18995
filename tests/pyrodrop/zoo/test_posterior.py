"""Exact posteriors for other packages: the log density by NumPy and SciPy alone, and the draws of the files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import arviz_stats
import numpy as np
import pytest
import torch
from scipy import stats

import pyrodrop
from pyrodrop import zoo

NAMES = [name.removeprefix("exact/") for name in zoo.names("exact/*") if "." not in name]
G = {"tanh": np.tanh, "relu": lambda h: np.maximum(h, 0)}
TABLES = {  # widths, activation, scale of the prior times the root of a layer's width, precision of y
    "co2": ([1, 20, 1], "tanh", 4.0, 0.25),
    "mnist": ([49, 16, 10], "tanh", 5.0, None),
    "foong": ([2, 50, 1], "relu", 4.0, 100.0),
    "yacht": ([6, 50, 1], "relu", 2.0, 0.541869562034),
    "boston": ([13, 50, 1], "relu", 2.0, 0.159707652696),
    "energy": ([8, 50, 1], "relu", 2.0, 0.427114830213),
}


def theirs(name: str, w: np.ndarray[Any, Any]) -> float:
    """The log density of a flat vector, from the data in their own units."""
    widths, activation, scale, precision = TABLES[name]
    train, _ = zoo.PROBLEMS[name].data()
    x, y = train.x.double().numpy(), train.y.double().numpy()
    loc, size = 0.0, 1.0
    if name not in ("mnist", "foong"):
        spread = x.std(0)
        x = (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)
        loc, size = y.mean(), y.std()
    total, h, first = 0.0, x, 0
    for layer, (ins, outs) in enumerate(itertools.pairwise(widths)):
        weight = w[first : first + outs * ins].reshape(outs, ins)
        bias = w[first + outs * ins : first + outs * ins + outs]
        first += outs * ins + outs
        total += stats.norm(0, scale / ins**0.5).logpdf(weight).sum() + stats.norm(0, 1).logpdf(bias).sum()
        h = (G[activation](h) if layer else h) @ weight.T + bias
    assert first == len(w)
    if precision is None:
        p = np.exp(h - h.max(1, keepdims=True))
        return float(total + np.log((p / p.sum(1, keepdims=True))[np.arange(len(y)), y.astype(int)]).sum())
    return float(total + stats.norm(loc + size * h, precision**-0.5).logpdf(y).sum())


@pytest.fixture(autouse=True)
def only_with_its_data(request: pytest.FixtureRequest) -> None:
    """Skip a case whose data would be downloaded; the package has those of co2."""
    if "name" in request.fixturenames and request.getfixturevalue("name") != "co2":
        request.getfixturevalue("data_folder")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_the_log_density_is_that_of_the_network_written_out(name: str) -> None:
    target, random = zoo.problem(name), np.random.default_rng(0)
    w = random.normal(0, 0.5, (3, target.num_weights))
    ours = target.log_density(w)
    np.testing.assert_allclose(ours, [theirs(name, each) for each in w], rtol=3e-6)
    assert torch.equal(target.potential(target.by_name(w)), -ours)


@pytest.mark.parametrize("name", ["co2", "mnist"])
def test_the_log_density_can_be_differentiated_and_batched(name: str) -> None:
    target = zoo.problem(f"exact/{name}")
    torch.manual_seed(0)
    w = 0.3 * torch.randn(2, 2, target.num_weights, dtype=torch.float64)
    step = 1e-6 * torch.randn(target.num_weights, dtype=torch.float64)
    slope = torch.func.grad(target.log_density)(w[0, 1]) @ step
    change = (target.log_density(w[0, 1] + step) - target.log_density(w[0, 1] - step)) / 2
    assert float(slope) == pytest.approx(float(change), rel=1e-6)
    torch.testing.assert_close(target.log_density(w)[1, 0], target.log_density(w[1, 0]))
    assert target.log_density(w.float()).dtype == torch.float32


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_draws_are_those_of_the_sampler(name: str) -> None:
    """Their log densities are those that the chains had, and f is what the loaded draws predict."""
    target, loaded = zoo.problem(name), zoo.load(f"exact/{name}")
    assert isinstance(loaded, pyrodrop.Sampled)
    draws = {site: values.double() for site, values in loaded.samples.items()}
    torch.testing.assert_close(target.log_density(draws), loaded.stats["lp"].double(), atol=2e-3, rtol=0)
    f = target.f(loaded.samples).flatten(0, 1)
    torch.testing.assert_close(f, loaded.predict(target.test.x, len(f)).f, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("data_folder")
def test_moments_have_their_monte_carlo_errors() -> None:
    """Against ArviZ, whose estimates of effective sample sizes differ somewhat, and by the differences of chains."""
    target = zoo.problem("yacht")
    f = target.f(target.sampled.samples).double().numpy()[..., 0]
    moments = target.moments()
    for key, method in (("mean", "mean"), ("sd", "sd")):  # ours, and ArviZ's
        value, error = (numbers[:, 0].numpy() for numbers in moments[key])
        np.testing.assert_allclose(value, getattr(np, key.replace("sd", "std"))(f, (0, 1)), rtol=0.01)
        its = [arviz_stats.base.array_stats.mcse(f[..., point], method=method) for point in range(f.shape[-1])]
        np.testing.assert_allclose(error, its, rtol=0.35)
        assert np.mean(error / its) == pytest.approx(1, abs=0.15)
    assert float(moments["log_likelihood"][1]) < 0.5
    p, error = zoo.problem("mnist").moments()["mean"]
    torch.testing.assert_close(p.sum(-1), torch.ones(500, dtype=torch.float64))
    assert bool((error.square() < p * (1 - p) / 20).all())  # of at least 20 draws


def test_draws_are_written_as_posteriordb_has_them(tmp_path: Path) -> None:
    target = zoo.problem("co2")
    path = tmp_path / "co2.json"
    path.write_text(json.dumps(target.to_json()))
    chains = json.loads(path.read_text())
    assert [len(chain) for chain in chains] == [target.num_weights] * 16
    samples = target.sampled.samples
    assert chains[3]["layers.1.weight[1,20]"] == samples["layers.1.weight"][3, :, 0, 19].tolist()
    assert chains[0]["layers.0.bias[7]"] == samples["layers.0.bias"][0, :, 6].tolist()
    assert list(chains[0])[:2] == ["layers.0.weight[1,1]", "layers.0.weight[2,1]"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(60), r"weights must be \[..., 61\]; got shape \[60\]"),
        (torch.zeros(61, dtype=torch.int64), "must be real numbers.*of torch.int64"),
        ("w", "weights must be a tensor, a NumPy array.*got the str 'w'"),
        ({"layers.0.weight": torch.zeros(20, 1)}, "weights must have the names layers.0.weight, layers.0.bias.*; got l"),
        ({"layers.0.bias": torch.zeros(19)}, r"weights\['layers.0.bias'\] must be real numbers \[..., 20\].*shape \[19\]"),
    ],
)  # fmt: skip
def test_weights_of_another_shape_are_refused(weights: Any, message: str) -> None:
    target = zoo.problem("co2")
    if isinstance(weights, dict) and "layers.0.weight" not in weights:
        weights = target.by_name(torch.zeros(61)) | weights
    for function in (target.log_density, target.f):
        with pytest.raises((TypeError, ValueError), match=message):
            function(weights)
    with pytest.raises(ValueError, match="no exact posterior is called 'fong'.*did you mean 'foong'"):
        zoo.problem("fong")
