"""Data trees, held-out densities, LOO and comparisons of networks of any input and output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.analysis.comparison.held_out import kfold, log_density
from pyrodrop.analysis.comparison.loo import loo
from pyrodrop.likelihoods import Likelihood
from pyrodrop.scaling import Standardize

N, PRECISION = 6, 4.0


class Counts(Likelihood):
    def forward(self, output: Tensor, targets: Standardize) -> Any:
        return dist.Poisson(output.squeeze(-1).exp())


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.last((self.words(ids) * mask[..., None]).sum(1))


class Graph(nn.Module):
    """Its nodes see each other, and it takes all of them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 3)
        self.register_buffer("edges", (torch.eye(N) + torch.eye(N).roll(1, 0)) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.edges @ self.first(x)))


def of_labels(f: Tensor, y: Tensor) -> Tensor:
    return -F.cross_entropy(f.flatten(0, 1).movedim(-1, 1), y.repeat(len(f), *(1,) * (y.dim() - 1)), reduction="none")


def of_normal(f: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.Normal(f, PRECISION**-0.5).log_prob(y)


def of_counts(f: Tensor, y: Tensor) -> Tensor:
    return torch.distributions.Poisson(f.exp()).log_prob(y)


def gaussian() -> Likelihood:
    return likelihoods.Gaussian(PRECISION)


def image() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Flatten(1, 2), nn.Tanh())


torch.manual_seed(0)
WORDS = {"ids": torch.randint(9, (N, 5)), "mask": torch.ones(N, 5)}
LABELS = torch.arange(N) % 3
# network, x, y, likelihood, density of the parts of y, dimensions of f and of y behind obs_id, variables of x
CASES: dict[str, tuple[Callable[[], nn.Module], Any, Tensor, Any, Any, tuple[str, ...], tuple[str, ...], Any]] = {
    "images": (image, torch.randn(N, 1, 4, 3), torch.randn(N, 4, 3), gaussian, of_normal,
               ("f_dim_0", "f_dim_1"), ("y_dim_0", "y_dim_1"), {"x": ("x_dim_0", "x_dim_1", "x_dim_2")}),
    "labels_of_tokens": (lambda: nn.Linear(2, 3), torch.randn(N, 4, 2), torch.randint(3, (N, 4)), likelihoods.Categorical,
                         of_labels, ("f_dim_0", "f_dim_1"), ("target",), {"x": ("x_dim_0", "x_dim_1")}),
    "counts": (lambda: nn.Linear(2, 1), torch.randn(N, 2), torch.arange(N), Counts, of_counts, (), (), {"x": ("feature",)}),
    "by_name": (Words, WORDS, LABELS, likelihoods.Categorical, of_labels, ("output",), (),
                {"x_ids": ("x_ids_dim_0",), "x_mask": ("x_mask_dim_0",)}),
    "a_pair": (Words, tuple(WORDS.values()), LABELS, likelihoods.Categorical, of_labels, ("output",), (),
               {"x_0": ("x_0_dim_0",), "x_1": ("x_1_dim_0",)}),
    "graph": (Graph, torch.randn(N, 2), LABELS, likelihoods.Categorical, of_labels, ("output",), (), {"x": ("feature",)}),
}  # fmt: skip


def made(name: str, guide: Any = lambda m: guides.MeanField(m, 0.1)) -> tuple[pyrodrop.Fit, data.Dataset]:
    build, x, y, likelihood, *_ = CASES[name]
    torch.manual_seed(1)
    model = models.from_module(build(), prior=priors.Gaussian(), likelihood=likelihood())
    dataset = data.Dataset(x, y)
    return pyrodrop.Fit(model, guide(model), dataset, torch.zeros(1, 3), {}), dataset


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_a_tree_has_a_dimension_for_every_axis(name: str, tmp_path: Path) -> None:
    """And one log likelihood per example: the sum over its parts, computed from the tree's own f."""
    *_, density, of_f, of_y, variables = CASES[name]
    fit, train = made(name)
    tree = pyrodrop.to_arviz(fit, train, train.x, num_samples=40, log_likelihood=True)
    assert tree["posterior"]["f"].dims == ("chain", "draw", "obs_id", *of_f)
    assert tree["predictions"]["f"].dims == ("chain", "draw", "pred_id", *of_f)
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "obs_id", *of_y)
    assert tree["observed_data"]["y"].dims == ("obs_id", *of_y)
    for variable, dims in variables.items():
        assert tree["constant_data"][variable].dims == ("obs_id", *dims)
        assert tree["predictions_constant_data"][variable].dims == ("pred_id", *dims)
    f, got = (
        torch.tensor(tree[group][value].values[0]) for group, value in (("posterior", "f"), ("log_likelihood", "y"))
    )
    torch.testing.assert_close(got, density(f, train.y).reshape(40, N, -1).sum(-1), rtol=1e-4, atol=1e-4)
    tree.to_netcdf(tmp_path / "tree.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "tree.nc", engine="h5netcdf") as read:
        assert read["posterior"]["f"].equals(tree["posterior"]["f"])
    assert loo(fit, train, 60, force=True).pointwise[0].shape == (N,)


@pytest.mark.parametrize("name", CASES)
def test_held_out_densities_are_those_of_the_prediction(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of the data as in one; a graph is never cut."""
    fit, train = made(name)
    whole = log_density(fit, train, 30)
    monkeypatch.setattr("pyrodrop.analysis.comparison.held_out._ROWS", 4)
    torch.testing.assert_close(log_density(fit, train, 30), whole)
    torch.testing.assert_close(fit.predict(train.x, 30).log_density(train.y).double(), whole)
    table = pyrodrop.compare({"one": fit, "other": made(name, guides.Point)[0]}, train, num_samples=30)
    assert table.rows["one"]["log_density"] == pytest.approx(float(whole.mean()), rel=1e-6)


def test_the_points_of_a_test_set_have_the_form_of_the_training_data() -> None:
    fit, train = made("a_pair")
    alone = pyrodrop.to_arviz(fit, train, train.x, num_samples=5)
    paired = pyrodrop.to_arviz(fit, train, (train.x, train.y), num_samples=5)
    assert "y_observed" not in alone["predictions_constant_data"]
    assert "y_observed" in paired["predictions_constant_data"]
    assert alone["predictions"]["f"].equals(paired["predictions"]["f"])
    with pytest.raises(ValueError, match=r"form of the training data's x, x_0, x_1; got x_ids, x_mask"):
        pyrodrop.to_arviz(fit, train, WORDS, num_samples=5)


def test_a_graph_has_no_folds() -> None:
    fit, train = made("graph")
    with pytest.raises(ValueError, match="kfold leaves out rows of the data.*as in a graph"):
        kfold(fit.model, fit.guide, train, 3, steps=1)
