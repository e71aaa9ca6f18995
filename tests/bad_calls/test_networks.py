"""Bad arguments of likelihoods, models and the standardisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyrodrop import likelihoods, models, priors
from pyrodrop.scaling import Standardize

from .harness import Call, Case, cases
from .kinds import COUNT, FLAG, FUNCTION, NAME, OBJECT, POSITIVE, UNCHECKED, Kind, kind

PRIOR = OBJECT.but("None", "dict") | {
    "class": lambda: priors.Gaussian,
    "likelihood": lambda: likelihoods.Gaussian(1.0),
    "of numbers": lambda: {"*": 1.0},
    "no pattern": lambda: {"nothing": priors.Gaussian(), "*": None},
    "number as pattern": lambda: {0: priors.Gaussian()},
}
LIKELIHOOD = OBJECT | {"class": lambda: likelihoods.Gaussian, "prior": lambda: priors.Gaussian()}
AXES = OBJECT.but("None", "dict") | {
    "float": lambda: {"*": 1.0},
    "bool": lambda: {"*": True},
    "negative": lambda: {"*": -1},
    "too large": lambda: {"*": 7},
}
OUTPUT = FUNCTION.but("None") | {"module": nn.Identity}
IMAGE = kind(
    None_=None,
    number=3,
    string="abc",
    two=(3, 32),
    float=(3, 32.0, 32),
    zero=(0, 32, 32),
    negative=(3, -1, 32),
    four=(1, 2, 3, 4),
)
WIDTHS = kind(
    None_=None, number=3, string="3", one=[3], empty=[], float=[3, 2.0], zero=[3, 0], negative=[3, -1], bools=[True, 2],
    strings=["3", "2"], nested=[[3], [2]],
)  # fmt: skip


def parts(**more: Any) -> dict[str, Any]:
    return {"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian(1.0), **more}


COMMON = {"prior": PRIOR, "likelihood": LIKELIHOOD, "bias_prior": PRIOR.but("no pattern")}
DISTRIBUTION = {"distribution": dist.Normal(torch.zeros(4, 1), 1.0).to_event(1)}

DISPERSION = POSITIVE.but("None", "list") | {"word": lambda: "networks", "huge": lambda: 1e300}
DISPERSED = {
    "NegativeBinomial": "dispersion", "Gamma": "dispersion", "Beta": "concentration", "StudentT": "scale",
    "LogNormal": "scale",
}  # fmt: skip

CALLS = [
    *(Call(f"likelihoods.{name}") for name in ("Bernoulli", "Categorical", "Poisson")),
    *(
        Call(
            f"likelihoods.{name}",
            dict,
            {parameter: DISPERSION, "learned": FLAG} | ({"df": POSITIVE.but("None")} if name == "StudentT" else {}),
            works={f"{parameter}: network": (lambda: "network", lambda made: made.outputs(3) == 6)},
        )
        for name, parameter in DISPERSED.items()
    ),
    Call(
        "likelihoods.Ordinal",
        lambda: {"classes": 3},
        {
            "classes": COUNT.but("huge") | {"one": lambda: 1},
            "cutpoints": kind(
                number=1.0, word="ab", one=[1.0], equal=[1.0, 1.0], falling=[1.0, 0.0], nan=[0.0, float("nan")]
            ),
        },
        works={"cutpoints: whole numbers": (lambda: [0, 1], lambda made: made.cutpoints.tolist() == [0.0, 1.0])},
    ),
    Call("likelihoods.HeteroscedasticGaussian"),
    Call(
        "likelihoods.HeteroscedasticGaussian",
        lambda: {"output": torch.zeros(2, 4), "targets": Standardize()},
        {"output": Kind({"odd": lambda: torch.zeros(2, 3)})},
        function=lambda **kwargs: likelihoods.HeteroscedasticGaussian()(**kwargs),
    ),
    Call("likelihoods.HeteroscedasticLogNormal"),
    Call("likelihoods.Likelihood"),
    Call(
        "likelihoods.Gaussian",
        dict,
        {"precision": POSITIVE.but("None", "list") | {"huge": lambda: 1e300, "tiny": lambda: 1e-300}},
        works={"precision: numpy": (lambda: np.float64(4.0), lambda made: float(made.precision) == 4.0)},
    ),
    Call(
        "likelihoods.Missing",
        lambda: {"likelihood": likelihoods.Gaussian(1.0)},
        {
            "likelihood": LIKELIHOOD | {"missing": lambda: likelihoods.Missing(likelihoods.Gaussian())},
            "value": COUNT.but("NaN", "zero", "negative"),
        },
    ),
    Call(
        "likelihoods.Censored",
        lambda: {"likelihood": likelihoods.Gaussian(1.0)},
        {
            "likelihood": LIKELIHOOD
            | {
                "missing": lambda: likelihoods.Missing(likelihoods.Gaussian()),
                "censored": lambda: likelihoods.Censored(likelihoods.Gaussian()),
            }
        },
    ),
    Call(
        "likelihoods.aligned",
        lambda: {"y": torch.zeros(4), **DISTRIBUTION},
        {
            "y": kind(None_=None, number=1.0, list=[0.0] * 4)
            | {"row": lambda: torch.zeros(1, 4), "more": lambda: torch.zeros(4, 1, 1), "fewer": lambda: torch.zeros(3)},
            "rows": UNCHECKED,
        },
        works={"y: column": (lambda: torch.zeros(4, 1), lambda y: y.shape == (4, 1))},
    ),
    Call("likelihoods.elements", lambda: DISTRIBUTION),
    Call(
        "likelihoods.per_row",
        lambda: DISTRIBUTION | {"dims": 1},
        {"distribution": OBJECT},
    ),
    Call(
        "likelihoods.check_support",
        lambda: {"y": torch.ones(4, 1), "what": "it", "distribution": dist.Exponential(torch.ones(4, 1)).to_event(1)},
        {
            "y": Kind(
                {"outside": lambda: torch.full((4, 1), -1.0), "bools": lambda: torch.ones(4, 1, dtype=torch.bool)}
            ),
            "what": UNCHECKED,
        },
    ),
    Call(
        "models.MLP",
        lambda: parts(widths=[2, 3, 1]),
        {
            "widths": WIDTHS,
            "activation": NAME.but("list", "bytes", "bool", "number") | FUNCTION.but("string"),
            "input_gain": POSITIVE.but("None"),
            **COMMON,
        },
        works={
            "activation: function": (lambda: torch.tanh, lambda model: model(torch.zeros(2, 2)).shape == (2, 1)),
            "widths: tuple of numpy": (
                lambda: (np.int64(2), np.int32(1)),
                lambda model: model.weight_sites()["layers.0.weight"].shape == (1, 2),
            ),
            "bias_prior: None": (lambda: None, lambda model: len(model.weight_sites()) == 2),
        },
    ),
    Call(
        "models.WideAndDeep",
        lambda: parts(widths=[2, 3, 1]),
        {
            "widths": WIDTHS,
            "activation": NAME.but("list", "bytes", "bool", "number") | FUNCTION.but("string"),
            **COMMON,
        },
    ),
    Call(
        "models.WideAndDeep",
        lambda: {"slopes": torch.ones(2, 1), "intercept": torch.ones(1), "scale": torch.ones(1)},
        {
            "slopes": Kind({"transposed": lambda: torch.ones(1, 2), "vector": lambda: torch.ones(2)}),
            "intercept": Kind({"number": lambda: torch.tensor(1.0)}),
            "scale": Kind({"two": lambda: torch.ones(2)}),
        },
        function=lambda **kwargs: models.WideAndDeep(**parts(widths=[2, 3, 1])).set_line(**kwargs),
    ),
    Call(
        "models.LeNet300100",
        parts,
        {"activation": NAME.only("unknown", "number"), **COMMON},
    ),
    Call("models.LeNet5", parts),
    Call(
        "models.ConvNet",
        lambda: parts(shape=(1, 8, 8), scale=1 / 32),
        {"shape": IMAGE, "scale": POSITIVE | {"small": lambda: 0.01}},
    ),
    Call(
        "models.VGG",
        lambda: parts(shape=(1, 32, 32), scale=1 / 64),
        {"shape": IMAGE | {"small": lambda: (3, 31, 32)}, "scale": POSITIVE | {"small": lambda: 0.01}},
    ),
    Call(
        "models.NetworkModel",
        lambda: parts(network=nn.Linear(2, 1), bias_prior=None),
        {"input_axes": AXES, "output": OUTPUT, "prior": PRIOR, "likelihood": LIKELIHOOD},
    ),
    Call(
        "models.from_module",
        lambda: parts(net=nn.Linear(2, 1)),
        {"input_axes": AXES, **COMMON},
        works={"net: frozen bias": (lambda: _linear(), lambda model: model(torch.zeros(3, 2)).shape == (3, 1))},
    ),
    Call(
        "models.WithPriorFunction",
        lambda: {"net": nn.Linear(2, 1)},
        {"scale": POSITIVE},
        works={"seed: None": (lambda: None, lambda net: net(torch.zeros(3, 2)).shape == (3, 1))},
    ),
    Call(
        "models.TrainedNetwork",
        lambda: parts(network=nn.Linear(2, 1), bias_prior=None, dropouts=_dropouts()),
    ),
]


def _linear() -> nn.Module:
    net = nn.Linear(2, 1)
    net.bias.requires_grad_(False)
    return net


def _dropouts() -> Any:
    from pyrodrop.networks.dropouts import Dropouts

    return Dropouts([])


SCALING = [
    Call(
        "scaling.Standardize",
        lambda: {"loc": 1.0, "scale": 2.0},
        {
            "loc": kind(
                None_=None, string="1", bool=True, NaN=float("nan"), infinity=float("inf"), complex=1j, list=["a"]
            )
            | {"meta": lambda: torch.ones(2, device="meta")},
            "scale": POSITIVE.but("vector") | {"zero in it": lambda: torch.tensor([1.0, 0.0])},
        },
        function=Standardize,
        works={"scale: whole": (lambda: 2, lambda made: float(made.scale) == 2 and made.scale.is_floating_point())},
    ),
    Call(
        "scaling.Standardize",
        lambda: {"loc": 0.5, "scale": 2},
        function=lambda **kwargs: float(Standardize(**kwargs)(torch.tensor(1.5))),
        works={"loc: a fraction with a whole scale": (lambda: 0.5, lambda value: value == 0.5)},
    ),
    Call(
        "scaling.Standardize.of",
        lambda: {"values": torch.randn(4, 2)},
        {"values": kind(None_=None, list=[1.0], number=2.0) | {"whole": lambda: torch.ones(3, dtype=torch.int64)}},
        function=Standardize.of,
    ),
]


@pytest.mark.few(12)
@pytest.mark.parametrize("case", cases(CALLS + SCALING), ids=str)
def test_model(case: Case) -> None:
    assert case.wrong() == {}
