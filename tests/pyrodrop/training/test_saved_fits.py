"""Files of fits and of draws: what another model, another guide, an older version or damage makes of them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.data import Dataset
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.parts import differences, made_of
from pyrodrop.sampling.sampled import Sampled
from tests.guides.test_guides import PRIORS
from tests.pyrodrop.prediction.test_module import LIKELIHOODS

X = torch.linspace(-1, 1, 20)[:, None]
DATA = Dataset(X, X**2).standardized()


def model_of(
    activation: Any = "relu", prior: Any = None, bias_prior: Any = None, likelihood: Any = None, dtype: Any = None
) -> Any:
    torch.manual_seed(0)
    model = models.MLP(
        [1, 4, 1],
        activation,
        prior=prior or priors.Gaussian(),
        bias_prior=bias_prior,
        likelihood=likelihood or likelihoods.Gaussian(10.0, learned=True),
    )
    return model.to(dtype) if dtype else model


def pair(guide: Callable[[Any], Any] = guides.BernoulliDropout, **options: Any) -> tuple[Any, Any]:
    model = model_of(**options)
    own = guide(model)
    return model, own.to(options["dtype"]) if "dtype" in options else own


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pyrodrop.fit(*pair(), DATA, steps=2, engine="pyro").save(tmp_path_factory.mktemp("fit") / "fit")


@pytest.fixture(scope="module")
def draws(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sampled = pyrodrop.sample(
        model_of(likelihood=likelihoods.Gaussian(10.0)), DATA, chains=4, draws=4, tune=100, engine="traced", max_steps=2,
        dtype=torch.float64,
    )  # fmt: skip
    return sampled.save(tmp_path_factory.mktemp("draws") / "draws")


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"activation": "tanh"}, "model.activation is relu there and tanh here"),
    "kind of prior": ({"prior": priors.ARD()}, r"priors.*Gaussian there and .*ARD here"),
    "likelihood": ({"likelihood": likelihoods.HeteroscedasticGaussian()}, "does not belong to this MLP"),
    "guide": ({"guide": guides.Point}, "does not belong to this Point: drop_rate is unexpected"),
    "dtype": ({"dtype": torch.float64}, "has dtype torch.float32, expected torch.float64"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_a_fit_is_not_read_into_another_model_or_guide(what: str, saved: Path) -> None:
    options, words = OTHERS[what]
    model, guide = pair(**options)
    before = [copy.deepcopy(part.state_dict()) for part in (model, guide)]
    with pytest.raises(ValueError, match=f"{saved}.*{words}"):
        pyrodrop.Fit.load(saved, model, guide)
    for old, part in zip(before, (model, guide), strict=True):
        assert all(torch.equal(value, old[name]) for name, value in part.state_dict().items())


def test_a_fit_takes_the_rates_and_precisions_of_the_file(saved: Path) -> None:
    """They are tensors, which the file restores: a model that differs in them alone becomes the saved one."""
    model = model_of(likelihood=likelihoods.Gaussian(3.0, learned=True))
    loaded = pyrodrop.Fit.load(saved, model, guides.BernoulliDropout(model, 0.1), device="cpu")
    want = pyrodrop.Fit.load(saved, *pair(), device="cpu")
    assert loaded.guide.describe() == want.guide.describe()  # type: ignore[attr-defined]
    assert torch.equal(loaded.predict(X, 5).f, want.predict(X, 5).f)


def test_every_prior_and_likelihood_is_made_from_the_file(tmp_path: Path) -> None:
    likelihood = likelihoods.Gaussian([1.0, 4.0])
    named = [
        prior for name, prior in PRIORS.items() if ", " not in name and name != "of a user"
    ]  # others have a distribution of Pyro
    made = [models.MLP([2, 3, 2], prior=prior, likelihood=likelihood) for prior in named]
    made += [models.MLP([2, 3, k], prior=priors.Gaussian(), likelihood=each) for each, k, _ in LIKELIHOODS.values()]
    for model in made:
        run = pyrodrop.Fit(model, guides.Point(model), None, torch.zeros(0, 3), {})
        again = pyrodrop.Fit.load(run.save(tmp_path / "fit")).model
        assert repr(again) == repr(model)
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def test_every_guide_is_read_back(tmp_path: Path) -> None:
    """What training finds out about a model or a guide is no difference."""
    made: list[Callable[[Any], Any]] = [
        guides.MeanField, guides.Point, guides.SparseDropout, guides.ARDDropout, guides.LowRank, guides.ConcreteDropout,
        guides.VariationalDropout, guides.DropConnect,
        lambda model: guides.GaussianDropout(model, drop_rate=0.2), guides.LogNormalDropout,
        lambda model: guides.Ensemble(model, guides.Point, members=2),
        guides.from_noise(lambda w, e: w * e, lambda w: torch.distributions.Normal(1.0, 0.1), regularizer=torch.sum),
    ]  # fmt: skip
    for number, guide in enumerate(made):
        model, own = pair(guide, prior=priors.LogUniform() if guide is guides.SparseDropout else None)
        fit = pyrodrop.Fit(model, own, DATA, torch.zeros(1, 3), {})
        fit.model.check(DATA)  # type: ignore[attr-defined]
        fit.elbo(2) if number < 8 else None
        loaded = pyrodrop.Fit.load(
            fit.save(tmp_path / "fit"), *pair(guide, prior=model.priors["layers.0.weight"]), device="cpu"
        )
        assert torch.equal(loaded.predict(X, 3).f, fit.predict(X, 3).f)


def test_files_of_older_versions_are_compared_by_names_and_shapes(saved: Path, draws: Path, tmp_path: Path) -> None:
    """As the posteriors that come with the package."""
    for number, path in enumerate((saved, draws)):
        tensors, about = read_tensors(path)
        old = tmp_path / f"{number}"
        write_tensors(old, tensors, {"kind": about["kind"], "settings": about["settings"]})
        if path is saved:
            pyrodrop.Fit.load(old, *pair(activation="tanh"))
        else:
            Sampled.load(old, model_of("tanh", likelihood=likelihoods.Gaussian(10.0)))


def test_headers_and_tensors_of_another_form_are_refused(saved: Path, draws: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"

    def refused(path: Path, words: str, more: dict[str, Any], **change: Any) -> None:
        tensors, about = read_tensors(path)
        about.pop("format")
        given = {name: value for name, value in {**tensors, **more}.items() if value is not None}
        write_tensors(file, given, {**about, **change})
        read: Callable[[], Any] = functools.partial(pyrodrop.Fit.load, file, *pair())
        if path is draws:
            read = functools.partial(Sampled.load, file, model_of(likelihood=likelihoods.Gaussian(10.0)))
        with pytest.raises(ValueError, match=f"{file}.*{words}"):
            read()

    for path in (saved, draws):
        for settings in (None, [], "text", 3):
            refused(path, "must have an object as settings; it has", {}, settings=settings)
        for name, value in {"likelihood_power": "1", "noise_by_row": "w", "data_fingerprint": 3}.items():
            refused(path, f"must have a.* as settings.{name}; it has", {}, settings={name: value})
        refused(path, "is damaged: it must say which columns", {}, settings={"columns": 3})
    refused(saved, "no file of Fit.save: it is one of 'sampled': Sampled.load reads it", {}, kind="sampled")
    refused(draws, "no file of Sampled.save: it is one of 'fit': Fit.load reads it", {}, kind="fit")
    for history in (None, torch.zeros(3), torch.zeros(3, 2), torch.zeros(3, 3, dtype=torch.long)):
        refused(saved, "must have a history, with three numbers", {"history": history})
    for made in ({}, [], {"model": {}}, {"model": 3, "guide": {}}):
        refused(saved, "does not say what the model and the guide was made of", {}, made_with=made)
    for made in ({"part": 3}, {"part": "pyrodrop.models.MLP", "arguments": 3}, {"now": []}):
        refused(saved, "of another model or guide", {}, made_with={"model": made, "guide": made})
    refused(saved, "has shape", {"model.likelihood.precision_unconstrained": torch.zeros(1, 2)})
    refused(saved, "loc.layers.0.weight_unconstrained is missing", {"guide.loc.layers.0.weight_unconstrained": None})
    refused(draws, "not whole", {"stats.lp": torch.zeros(4, 4, 1)})
    refused(draws, "not whole", {"stats.lp": None})
    refused(draws, "of one dtype", {"samples.layers.0.weight": torch.zeros(4, 4, 4, 1, dtype=torch.long)})
    other = {"samples.layers.0.weight": None, "samples.layers.2.weight": torch.zeros(4, 4, 4, 1).double()}
    refused(draws, "has draws of sites with the shapes .*; the model's are", other)


class Net(nn.Module):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self.inner, self.between = nn.Linear(1, 1), nn.LeakyReLU(slope)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.between(self.inner(x))  # type: ignore[no-any-return]


class Other(Net):
    pass


def test_a_network_of_a_user_is_known_by_its_layers() -> None:
    def words(net: nn.Module) -> dict[str, str]:
        return made_of(models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0)), "model")

    assert differences(words(Net(0.1)), words(Net(0.2))) == [
        "model.network.between is LeakyReLU(negative_slope=0.1) there and LeakyReLU(negative_slope=0.2) here"
    ]
    assert differences(words(Net(0.1)), words(Other(0.1))) == ["model.network is Net there and Other here"]
    assert differences(words(Net(0.1)), words(Net(0.1).eval())) == []


def test_arguments_that_were_left_out_and_seeds_do_not_count() -> None:
    def words(**more: Any) -> dict[str, str]:
        return made_of(models.MLP([1, 3, 1], prior=priors.ARD(), likelihood=likelihoods.Gaussian(1), **more), "model")

    assert words() == words(activation="relu", bias_prior=None, seed=3)
    assert words() != words(bias_prior=priors.ARD())
