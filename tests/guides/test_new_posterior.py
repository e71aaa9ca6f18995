"""A posterior that the package does not know, from one class and its guide: no list of the package is changed for it.

UniformScales   W = M diag(s), s_k ~ U(1 - a, 1 + a), a learned      scales by input unit, no density over weights
WideNormal      W = M + sigma E                                       independent normals, with a density
LaplaceWeights  w_ij ~ Laplace(m_ij, b)                               no noise form
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pyro.distributions import Laplace, Normal, TorchDistribution
from torch import Tensor

import pyrodrop
from pyrodrop import guides, models
from pyrodrop.distributions import ConstantLeftOut, InputUnits, NoiseForm, WeightDistribution
from pyrodrop.divergences import Convention, pair
from pyrodrop.guides import RateKind
from pyrodrop.modules import ParameterTree
from pyrodrop.reparam import STRATEGIES
from tests import small
from tests.small import normal

X, Y = normal(20, 3, seed=1), torch.linspace(-1, 1, 20)[:, None]


class UniformScales(WeightDistribution):
    """W = M diag(s) with a uniform scale for every input unit."""

    def __init__(self, loc: Tensor, a: Tensor, units: InputUnits, event_dim: int | None = None) -> None:
        self.a = a
        super().__init__(loc, event_dim=event_dim, per="input", units=units)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def noise_form(self) -> NoiseForm | None:
        return NoiseForm(lambda: self.loc, self.scales) if self.columns else None

    @property
    def constant_left_out(self) -> ConstantLeftOut:
        return ConstantLeftOut(self.noise_shape.numel(), "units")

    def scales(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return 1 + self.a * (2 * torch.rand(shape, dtype=dtype) - 1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.batch_shape + self.noise_shape
        return self.over_units(self.scales(shape, self.loc.dtype)) * self.loc


@pair(UniformScales, Normal, Convention("up_to_constant", "a new posterior's own constant"))
def _kl(q: UniformScales, p: Any) -> Tensor:
    moment = q.loc**2 * (1 + q.a**2 / 3)
    expected = q.total_weights((moment / p.scale**2 + torch.log(2 * math.pi * p.scale**2)) / 2)
    return expected - q.noise_shape.numel() * torch.log(2 * q.a)


class WideNormal(WeightDistribution):
    """W = M + sigma E."""

    def __init__(self, loc: Tensor, sigma: Tensor, event_dim: int | None = None) -> None:
        self.sigma = sigma
        super().__init__(loc, event_dim=event_dim)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def noise_form(self) -> NoiseForm:
        return NoiseForm(lambda: self.loc, variance=lambda: (self.sigma**2).expand(self.event_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        loc = self.loc.expand(torch.Size(sample_shape) + self.loc.shape)
        return loc + self.sigma * torch.randn_like(loc)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.total_weights(Normal(self.loc, self.sigma).log_prob(value))


class LaplaceWeights(WideNormal):
    """w_ij ~ Laplace(m_ij, b), b = sigma."""

    @property
    def noise_form(self) -> None:  # type: ignore[override]
        return None

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return Laplace(self.loc, self.sigma).rsample(torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.total_weights(Laplace(self.loc, self.sigma).log_prob(value))


class UniformGuide(guides.Guide):
    """UniformScales on matrices and a normal for each vector, such as a bias."""

    rate_kind = RateKind("half_width", "half the width of the uniform noise", learned=True)

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.loc = ParameterTree(model.weight_sites())
        self.raw = ParameterTree({name: torch.zeros(()) for name in self.sites})

    def posterior(self, name: str) -> TorchDistribution:
        loc, a = self.loc[name], torch.sigmoid(self.raw[name])
        return UniformScales(loc, a, self.units[name]) if loc.dim() > 1 else WideNormal(loc, a)

    def rates(self) -> dict[str, Tensor]:
        return {n: torch.sigmoid(self.raw[n]).detach() for n in self.sites if self.loc[n].dim() > 1}


class ScaleGuide(guides.Guide):
    """One of the other two."""

    kind: type[WideNormal] = WideNormal

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.loc = ParameterTree(model.weight_sites())
        self.raw = ParameterTree({name: torch.full((), -2.0) for name in self.sites})

    def posterior(self, name: str) -> TorchDistribution:
        return self.kind(self.loc[name], self.raw[name].exp())


class LaplaceGuide(ScaleGuide):
    kind = LaplaceWeights


REFUSED = {
    (LaplaceGuide, "local"): "the local estimator needs a posterior with a noise_form.*got LaplaceWeights",
}


def mlp(width: int = 6) -> models.NetworkModel:
    return small.mlp(3, width, 1, activation="tanh", precision=10.0)


def fitted(make: Any, model: models.NetworkModel | None = None, **settings: Any) -> pyrodrop.Fit:
    model = model or mlp()
    return pyrodrop.fit(model, make(model), (X, Y), **{"steps": 60, "lr": 0.02, "progress": False} | settings)


@pytest.mark.few(2)
@pytest.mark.parametrize("estimator", STRATEGIES)
@pytest.mark.parametrize("make", [UniformGuide, ScaleGuide, LaplaceGuide])
def test_a_new_posterior_trains_or_is_refused_by_name(make: Any, estimator: str) -> None:
    """The loss falls, rates learn, and the ELBO has the value that the guide's own KL divergence implies."""
    if (make, estimator) in REFUSED:
        with pytest.raises(ValueError, match=f"(?s){REFUSED[make, estimator]}"):
            fitted(make, estimator=estimator, steps=1)
        return
    fit = fitted(make, estimator=estimator)
    assert float(fit.losses[-15:].mean()) < float(fit.losses[:15].mean())
    elbo = fit.elbo(20)
    assert math.isfinite(elbo.value)
    assert elbo.convention.kind == ("up_to_constant" if make is UniformGuide else "exact")
    start = make(mlp()).raw
    assert all(float((fit.guide.raw[name] - start[name]).detach().abs()) > 1e-3 for name in fit.guide.sites)  # type: ignore[attr-defined]


def test_predictions_of_a_new_posterior() -> None:
    """Its scales are put on the inputs, with the distribution of whole weights; without a noise form whole weights are."""
    fit = fitted(UniformGuide)
    draws = fit.predict(X, 4000).f
    posteriors = {name: fit.guide.posterior(name) for name in fit.model.weight_sites()}  # type: ignore[attr-defined]
    with torch.no_grad(), fit.as_trained():
        f = fit.model.outputs({name: q.expand((4000,)).sample() for name, q in posteriors.items()}, X)  # type: ignore[attr-defined]
    torch.testing.assert_close(f.mean(0), draws.mean(0), atol=0.05, rtol=0)
    torch.testing.assert_close(f.std(0), draws.std(0), atol=0.05, rtol=0.1)
    assert fitted(LaplaceGuide, steps=1).predict(X, 5).f.shape == (5, len(X), 1)


def test_the_data_tree_has_a_new_posteriors_rates_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = fitted(UniformGuide, steps=5)
    tree = pyrodrop.to_arviz(fit, (X, Y), num_samples=30, weights=True)
    rates = tree["posterior"]["half_width"]
    assert rates.attrs["long_name"] == "half the width of the uniform noise"
    np.testing.assert_allclose(rates[0, 0], [float(rate) for rate in fit.guide.rates().values()])  # type: ignore[attr-defined]
    assert tree.attrs["khat_missing"].endswith("a new posterior's own constant")
    monkeypatch.setattr(UniformGuide, "rate_kind", RateKind("half_width", "half the width", learned=False))
    tree = pyrodrop.to_arviz(fit, (X, Y), num_samples=3)
    assert "half_width" in tree["constant_data"]
    assert "half_width" not in tree["posterior"]


def test_elbos_of_a_new_posterior_compare_where_its_constants_are_equal() -> None:
    """It counts input units: two fits of 3 + 6 units compare, one of 3 + 7 does not, nor does another convention."""
    fits = {"one": fitted(UniformGuide, steps=5), "two": fitted(UniformGuide, steps=9)}
    assert set(pyrodrop.compare(fits, by="elbo").rows) == {"one", "two"}
    fits["two"] = fitted(UniformGuide, mlp(7), steps=2)
    with pytest.raises(ValueError, match="of 9 units.*of 10 units"):
        pyrodrop.compare(fits, by="elbo")
    fits["two"] = fitted(ScaleGuide, steps=2)
    with pytest.raises(ValueError, match="'one' is up_to_constant.*'two' exact"):
        pyrodrop.compare(fits, by="elbo")
