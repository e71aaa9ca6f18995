"""Bad calls of distributions over weights, priors and guides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import distributions, guides, priors
from pyrodrop.distributions import InputUnits

from .judge import Table, assert_refused, table
from .shared import dropout_network, model, sparse

LOC, ZERO, SHAPE, MASK = torch.ones(3, 2), torch.zeros(2), (3, 2), torch.ones(3, 2) > 0
PLAIN = model(bias_prior=None)
NAMES = "there are layers.0.weight, layers.1.weight"


def each(build: Callable[[Any], Any], refused: dict[str, Any]) -> list[tuple[Callable[[], Any], str]]:
    """A call for each message with a value that is refused so."""
    return [(lambda value=value: build(value), message) for message, value in refused.items()]


WEIGHTS: dict[str, Callable[..., Any]] = {
    "BernoulliMixture": lambda loc=LOC, rate=0.5, **more: distributions.BernoulliMixture(loc, rate, **more),
    "RelaxedBernoulliMixture": lambda loc=LOC, rate=ZERO, **more: distributions.RelaxedBernoulliMixture(
        loc, rate, temperature=0.1, **more
    ),
    "CorrelatedNormal": lambda loc=LOC, rate=0.0, **more: distributions.CorrelatedNormal(loc, rate, **more),
    "MultiplicativeNormal": lambda loc=LOC, rate=0.0, **more: distributions.MultiplicativeNormal(loc, rate, **more),
    "CutNormal": lambda loc=LOC, rate=0.0, **more: distributions.CutNormal(loc, rate, threshold=3.0, **more),
}
RATE = r"drop_rate is the probability of dropping an input unit and must lie in \[0, 1\); got"
RATES = {
    f"{RATE} nan": math.nan, f"{RATE} 1.0": 1.0, f"{RATE} -0.1": -0.1,
    f"{RATE} rates from 0.5 to 1": torch.tensor([0.5, 1.0]),
    "must be a tensor of real numbers; got .*complex": torch.tensor(1j), f"{RATE} True": True,
}  # fmt: skip


def of_positive(value: Any) -> Any:
    return priors.ARD(hyperprior=value)


WEIGHT_ROWS: Table = {
    f"distributions.{name}": [
        (lambda make=make: make(torch.ones(3, 2).long()), "loc is the location of a weight and must be"),
        (lambda make=make: make([[1.0, 1.0]] * 3), "loc is the location of a weight and must be"),
        (lambda make=make: make(torch.tensor(1.0)), "loc must be a weight with at least one dimension; got shape"),
        (lambda make=make: make(rate=torch.full((5,), 0.5)), r"must broadcast to .*; got shape \[5\]"),
    ]
    for name, make in WEIGHTS.items()
}
REFUSED: Table = {
    **WEIGHT_ROWS,
    "distributions.units": [
        (lambda: WEIGHTS["BernoulliMixture"](units=InputUnits(2)), "units must fit the weight: .*got InputUnits"),
        (lambda: InputUnits(groups=2, size=2), "size of the input units must be at least 1, and 1 for grouped"),
    ],
    "distributions.rates": [
        *each(lambda rate: WEIGHTS["BernoulliMixture"](rate=rate), RATES),
        *each(lambda rate: guides.BernoulliDropout(PLAIN, drop_rate=rate), RATES),
    ],
    "priors.Gaussian": [
        (lambda: priors.Gaussian(2.0, length_scale=2.0), "takes its scale or its length_scale .*not both; got"),
        *each(
            lambda scale: priors.Gaussian(scale),
            {"scale is .*got True": True, "got the str": "x", "got 0": 0.0, "got inf": 10**400, "got nan": math.nan},
        ),
    ],
    "priors.ARD": each(
        of_positive,
        {
            "positive and of scalar shape, .*got a Normal": dist.Normal(0.0, 1.0),
            "positive and of scalar shape, .*got a StudentT": dist.StudentT(3.0),
            "positive and of scalar shape, .*got a Uniform": dist.Uniform(-1.0, 1.0),
            "positive and of scalar shape, .*got a Poisson": dist.Poisson(1.0),
            r"distribution of a scalar; got shape \(2,\)": dist.HalfCauchy(1.0).expand((2,)),
            r"scalar; got shape \(2,\)$": dist.InverseGamma(torch.ones(2), 1.0).to_event(1),
            "hyperprior must be the distribution .*got": torch.distributions.HalfCauchy(1.0),
        },
    ),
    "guides.Guide": [
        *each(
            lambda of: guides.MeanField(of),
            {
                r"needs a model with the methods weight_sites\(\) and hyper_sites.*got the class": pyrodrop.models.MLP,
                r"needs a model with .*got a Sequential": dropout_network(),
                r"needs a model with .*got a Point": guides.Point(PLAIN),
            },
        ),
        (
            lambda: guides.MeanField(PLAIN).restart(model(2, 4, 1, bias_prior=None)),
            "latent sites of the model, .*another model",
        ),
    ],
    "guides.by name": [
        *each(
            lambda rate: guides.BernoulliDropout(PLAIN, drop_rate=rate),
            {
                f"drop_rate: no parameter is called 'nothing'; {NAMES}": {"nothing": 0.1, "*": 0.1},
                "drop_rate must have a value for every parameter": {"layers.0.*": 0.1},
                "drop_rate: the keys must be patterns": {0: 0.1},
                "drop_rate .*got an empty mapping": {},
                "drop_rate .*must lie.*got 1": {"*": 1.0},
                "drop_rate .*must lie.*got None": {"*": None},
            },
        ),
        (lambda: guides.GaussianDropout(PLAIN, alpha=1.0, drop_rate=0.5), "takes alpha or drop_rate, one of them; got"),
        (lambda: guides.GaussianDropout(PLAIN, drop_rate=0.0), r"alpha is the variance .*rate / \(1 - rate\)"),
    ],
    "guides.bounds": [
        (lambda: sparse().keep_mask(9.0), r"threshold is a bound on log alpha, which lies in \[-8, 8\]; got 9"),
    ],
    "guides.makers": [
        (lambda: guides.Ensemble(PLAIN, lambda of: None, 2), "guide must return a Guide, .*got"),
    ],
}


@pytest.mark.few(30)
@table(REFUSED)
@pytest.mark.filterwarnings("ignore:the log-uniform prior is improper")
def test_a_refusal(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


@pytest.mark.parametrize(("scale", "value"), [(np.float32(0.5), 0.5), (torch.tensor(0.5), 0.5), (3, 3.0), (None, 1.0)])
def test_forms_of_a_scale(scale: Any, value: float) -> None:
    assert priors.Gaussian(scale).expand(3).base_dist.scale.allclose(torch.tensor(value))


@pytest.mark.parametrize(
    "hyperprior", [dist.HalfCauchy(0.1), dist.HalfNormal(0.1), dist.LogNormal(0.0, 1.0), dist.Gamma(1.0, 1.0)]
)
def test_positive_hyperpriors(hyperprior: Any) -> None:
    assert type(hyperprior).__name__ in priors.ARD(hyperprior=hyperprior).describe()


def test_forms_of_a_rate() -> None:
    assert guides.BernoulliDropout(PLAIN, drop_rate={"layers.0.*": 0.25, "*": 0.0}).rates() == {"layers.0.weight": 0.25}
    assert guides.BernoulliDropout(PLAIN, drop_rate=0).rates() == {}
    assert set(guides.BernoulliDropout(PLAIN, drop_rate=torch.tensor(0.5)).rates().values()) == {0.5}
    assert list(guides.BernoulliDropout(PLAIN, mask_input=False).rates()) == ["layers.1.weight"]
    assert "max_alpha=inf" in guides.VariationalDropout(PLAIN, max_alpha=math.inf).describe()
    assert bool((distributions.BernoulliMixture(LOC, torch.tensor([0.0, 0.5])).rsample()[:, 0] == 1).all())
    assert InputUnits(0).count(torch.Size((4, 2))) == 4
