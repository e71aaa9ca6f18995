"""Bad calls of likelihoods, models and the standardisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyrodrop import likelihoods, models, priors
from pyrodrop.scaling import Standardize

from .judge import Table, assert_refused, table

ONE = dist.Normal(torch.zeros(4, 1), 1.0).to_event(1)
POSITIVE = dist.Exponential(torch.ones(4, 1)).to_event(1)
DISPERSED = {"NegativeBinomial": "dispersion", "StudentT": "scale"}


def brought(net: Any = None, **changed: Any) -> Any:
    parts = {"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian(1.0), **changed}
    return models.from_module(nn.Linear(2, 1) if net is None else net, **parts)


def mlp(widths: Any = (2, 3, 1), activation: Any = "relu", of: Any = models.MLP, **changed: Any) -> Any:
    return of(widths, activation, **{"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian(1.0), **changed})


REFUSED: Table = {
    **{
        f"likelihoods.{name}": [
            (
                lambda name=name, p=parameter, v=value: getattr(likelihoods, name)(**{p: v}),
                f"{parameter} (is|must).*got",
            )
            for value in (0.0, -1.0, 1e300, math.nan, True, "networks")
        ]
        for name, parameter in DISPERSED.items()
    },
    "likelihoods.HeteroscedasticGaussian": [
        (lambda: likelihoods.HeteroscedasticGaussian()(torch.zeros(2, 3), Standardize()), r"output must have 2 D"),
    ],
    "likelihoods.shapes": [
        *(
            (
                lambda shape=shape: likelihoods.aligned(torch.zeros(shape), ONE),
                f"y must have the shape .*got .*{message}",
            )
            for shape, message in (((1, 4), "1, 4"), ((4, 1, 1), "4, 1, 1"), ((3,), "3"))
        ),
        (
            lambda: likelihoods.per_row(torch.distributions.Normal(0.0, 1.0), 1),
            "must return a distribution of pyro.distr|dims",
        ),
        (lambda: likelihoods.check_support(-torch.ones(4, 1), POSITIVE, "it"), "values of y must be in the support of"),
        (lambda: likelihoods.check_support(torch.ones(4, 1) > 0, POSITIVE, "it"), "y must be numbers in the support"),
    ],
    "models.MLP": [
        *(
            (
                lambda widths=widths, of=of: mlp(widths, of=of),
                f"widths (are|is one of|must be).* must be .*got|widths must.*got {message}",
            )
            for of in (models.MLP, models.WideAndDeep)
            for widths, message in (
                (3, "3"),
                ("3", "'3'"),
                ([3], r"\[3\]"),
                ([], r"\[\]"),
                ([3, 2.0], "2.0"),
                ([3, 0], "0"),
                ([3, -1], "-1"),
                ([True, 2], "True"),
                (["3", "2"], "'3'"),
            )
        ),
        (lambda: mlp(activation=3), "activation must be one of relu, .*or a function of a tensor; got"),
    ],
    "models.priors": [
        (lambda name=name, value=value: mlp(**{name: value}), f"{name}.*(must be|no parameter is called).*{message}")
        for name in ("prior", "bias_prior", "likelihood")
        for value, message in (
            (priors.Gaussian if name != "likelihood" else likelihoods.Gaussian, "got the class .*: call it"),
            (likelihoods.Gaussian(1.0) if name != "likelihood" else priors.Gaussian(), "got"),
            *((({"*": 1.0}, "got"), ({0: priors.Gaussian()}, "got 0")) if name != "likelihood" else ()),
            *(
                (({"nothing": priors.Gaussian(), "*": None}, "'nothing'; there are layers.0.weight"),)
                if name == "prior"
                else ()
            ),
        )
    ],
    "models.from_module": [
        (lambda: brought(nn.Linear), "net.* must be a torch.nn.Module; got"),
        (lambda: brought(output=nn.Identity()), "output must be a function of what the network returns, .*got a"),
        *(
            (lambda axes=axes: brought(input_axes=axes), f"input_axes.* must .*got {message}")
            for axes, message in (({"*": 1.0}, ".*1.0"), ({"*": True}, ".*True"), ({"*": -1}, "-1"), ({"*": 7}, "7"))
        ),
    ],
    "scaling.Standardize": [
        *(
            (lambda loc=loc: Standardize(loc, 2.0), "loc.*must.*got")
            for loc in ("1", True, math.nan, math.inf, 1j, ["a"], torch.ones(2, device="meta"))
        ),
        *(
            (lambda scale=scale: Standardize(1.0, scale), "scale.*must.*got")
            for scale in (0.0, -1.0, math.nan, torch.tensor([1.0, 0.0]))
        ),
    ],
}


@pytest.mark.few(30)
@table(REFUSED)
def test_a_refusal(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


def test_a_parameter_of_the_network() -> None:
    assert likelihoods.NegativeBinomial("network").outputs(3) == 6
    with pytest.raises(TypeError, match="scale is .*got the str 'network'"):
        likelihoods.StudentT(scale="network")


def test_what_only_looks_bad() -> None:
    assert float(likelihoods.Gaussian(np.float64(4.0)).precision) == 4.0
    assert likelihoods.aligned(torch.zeros(4, 1), ONE).shape == (4, 1)
    assert mlp(activation=torch.tanh)(torch.zeros(2, 2)).shape == (2, 1)
    assert mlp((np.int64(2), np.int32(1))).weight_sites()["layers.0.weight"].shape == (1, 2)
    assert len(mlp(bias_prior=None).weight_sites()) == 2
    net = nn.Linear(2, 1)
    net.bias.requires_grad_(False)
    assert brought(net)(torch.zeros(3, 2)).shape == (3, 1)
    assert float(Standardize(0.5, 2)(torch.tensor(1.5))) == 0.5
