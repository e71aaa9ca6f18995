"""Bad arguments of training: settings, data, guides of other models, and observations that would broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal

import pyrodrop
from pyrodrop import guides
from pyrodrop.schedules import cosine, linear

from .harness import Call, Case, cases
from .kinds import COUNT, FUNCTION, NAME, OBJECT, PATH, POSITIVE, SEED, UNCHECKED, Kind, Shows, kind, tensor
from .shared import LABELS, QUICK, N, X, Y, classifier, its_guide, mlp, model, plain

DEVICE = NAME | Kind({"other": lambda: "cuda:99", "torch's": lambda: torch.device("meta")})
SETTINGS = {
    "batch_size": COUNT.but("None"),
    "lr": POSITIVE,
    "optimizer": FUNCTION,
    "lr_schedule": FUNCTION.but("None") | {
        "of KL": lambda: linear(3),
    },
    "kl_weight": POSITIVE.but("zero") | {
        "of the rate": lambda: cosine(3),
    },
    "estimator": NAME,
    "objective": OBJECT.but("None") | {"class": lambda: Trace_ELBO},
    "engine": NAME,
    "device": DEVICE,
    "seed": SEED,
}  # fmt: skip
NO_Y = tensor(N, 1) | Kind({
    "two columns": lambda: torch.ones(N, 2), "an axis more": lambda: Y[..., None], "bools": lambda: Y > 0,
})  # fmt: skip
NO_LABELS = Kind({
    "one-hot": lambda: torch.eye(3).long()[LABELS], "floats": lambda: LABELS.double(), "complex": lambda: LABELS + 0j,
    "negative": lambda: LABELS - 1, "too large": lambda: LABELS + 1, "column": lambda: LABELS[:, None],
    "NaN": lambda: torch.full((N,), math.nan),
})  # fmt: skip
NO_X = tensor(N, 2).but("number", "bool") | Kind({
    "three columns": lambda: torch.ones(N, 3), "one column": lambda: torch.ones(N), "two inputs": lambda: (X, X),
    "by name": lambda: {"x": X},
})  # fmt: skip


def others(widths: Any) -> Any:
    return guides.MeanField(model(*widths))


def extra_site(x: Any, y: Any = None) -> None:
    its_guide(x, y)
    pyro.sample("z", dist.Normal(pyro.param("m", torch.zeros(())), 1.0))


def of_shape(size: int) -> Callable[..., None]:
    def guide(x: Any, y: Any = None) -> None:
        pyro.sample("w", dist.Normal(pyro.param("loc", torch.zeros(size)), 1.0).to_event(1))

    return guide


OTHER_GUIDES = Kind({
    "wider": lambda: others((2, 4, 1)), "two outputs": lambda: others((2, 3, 2)), "deeper": lambda: others((2, 3, 3, 1)),
    "of three inputs": lambda: others((3, 3, 1)), "without biases": lambda: guides.MeanField(model(bias_prior=None)),
    "ensemble": lambda: guides.Ensemble(model(2, 4, 1), guides.Point, 2),
    "auto": lambda: AutoNormal(model(2, 4, 1)),
})  # fmt: skip


def fitted(x: Any = X, y: Any = Y, make: Callable[[], Any] = mlp, guide: Any = None, **settings: Any) -> Any:
    net = make()
    return pyrodrop.fit(net, guides.Point(net) if guide is None else guide, (x, y), **{**QUICK, **settings})


def labelled(y: Any, **settings: Any) -> Any:
    return fitted(y=y, make=lambda: classifier().model, **settings)


def by_pyro(y: Any, guide: Any = its_guide) -> Any:
    return pyrodrop.fit(plain, guide, (X, y), **QUICK)


def trained(**arguments: Any) -> Any:
    return pyrodrop.Training(mlp(), guides.Point(mlp()), (X, Y), **{"engine": "pyro", **arguments})


def many(**arguments: Any) -> Any:
    return pyrodrop.fit_replicates(**arguments)


def good_fit() -> dict[str, Any]:
    return {"model": mlp(), "guide": guides.Point(mlp()), "data": (X, Y), **QUICK}


def good_replicates() -> dict[str, Any]:
    settings = {"steps": 1, "engine": "traced", "progress": False}
    return {"models": mlp(), "guides": guides.Point(mlp()), "data": (X, Y), "count": 2, **settings}


def right(result: Any) -> None:
    assert bool(result.losses.isfinite().all())


def same_loss(**kwargs: Any) -> Callable[[Any], None]:
    """Checks the losses against those of the same call with plain float32 tensors."""

    def check(result: Any) -> None:
        torch.testing.assert_close(result.losses, fitted(**kwargs).losses, check_dtype=False)

    return check


def same_labels(y: Any) -> Callable[[Any], bool]:
    return lambda result: torch.equal(result.losses, labelled(y).losses)


TENS = torch.arange(2 * N).reshape(N, 2)
MANY = torch.linspace(-1, 1, 40).reshape(20, 2)
HIDDEN = kind(None_=None, number=8, string="8", none=(), zero=[8, 0], float=[8.0], bool=[True])
RECIPE = {"data": OBJECT | Kind({"few rows": Shows("8", lambda: (X, Y))}), "posterior": FUNCTION, "hidden": HIDDEN}
CALLS = [
    Call("recipes.regressor", lambda: {"data": (MANY, MANY[:, :1])}, RECIPE),
    Call("recipes.classifier", lambda: {"data": (MANY, torch.arange(20) % 3)}, RECIPE),
    Call(
        "Recipe.fit",
        dict,
        {"seed": SEED},
        lambda **kwargs: pyrodrop.recipes.regressor((MANY, MANY[:, :1])).fit(**{"steps": 1, "progress": False, **kwargs}),
    ),
    Call(
        "fit",
        good_fit,
        {
            "model": OBJECT,
            "guide": OBJECT | OTHER_GUIDES,
            "steps": COUNT,
            **SETTINGS,
            "checkpoint": PATH.but("None"),
            "data": OBJECT | {"array": lambda: torch.ones(2, N), "three": lambda: (X, Y, Y)},
            "num_data": UNCHECKED,
        },
    ),
    Call(
        "compile_svi",
        lambda: {"model": extra_site, "guide": extra_site, "optim": pyro.optim.Adam({}), "loss": pyro.infer.Trace_ELBO()},
        {"loss": OBJECT},
    ),
    Call(
        "fit.data",
        dict,
        {"x": NO_X, "y": NO_Y},
        function=fitted,
        works={
            "y: vector": (lambda: Y[:, 0], same_loss()),
            "y: float64": (lambda: Y.double(), same_loss()),
            "y: float16": (lambda: Y.half(), same_loss(y=Y.half().float())),
            "y: whole numbers": (lambda: TENS[:, :1], same_loss(y=TENS[:, :1].float())),
            "y: bytes": (lambda: TENS[:, :1].byte().numpy(), same_loss(y=TENS[:, :1].float())),
            "x: float64": (lambda: X.double(), same_loss()),
            "x: bfloat16": (lambda: X.bfloat16(), same_loss(x=X.bfloat16().float())),
            "x: whole numbers": (lambda: TENS, same_loss(x=TENS.float())),
            "x: array of bytes": (lambda: TENS.byte().numpy(), same_loss(x=TENS.float())),
            "x: bools": (lambda: TENS > 5, same_loss(x=(TENS > 5).float())),
            "x: transposed": (lambda: X.T.contiguous().T, same_loss()),
            "x: expanded": (lambda: X[:1].expand(N, 2), same_loss(x=X[:1].repeat(N, 1))),
            "x: constant column": (lambda: X * torch.tensor([1.0, 0.0]), right),
            "x: equal columns": (lambda: X[:, :1].repeat(1, 2), right),
            "x: with gradient": (lambda: X.clone().requires_grad_(), same_loss()),
            "x: backwards": (lambda: X.numpy()[::-1], same_loss(x=X.flip(0))),
        },
    ),
    Call(
        "fit.one row", function=lambda **kwargs: fitted(X[:1], Y[:1]),
    ),
    Call(
        "fit.labels",
        lambda: {"y": LABELS},
        {"y": NO_LABELS},
        function=labelled,
        works={
            "y: bytes": (lambda: LABELS.byte(), same_labels(LABELS)),
            "y: bools": (lambda: LABELS > 1, same_labels((LABELS > 1).long())),
            "y: array": (lambda: LABELS.numpy().astype(">u2"), same_labels(LABELS)),
        },
    ),
    Call(
        "fit.of Pyro",
        lambda: {"y": Y[:, 0]},
        {
            "y": Kind({
                "column": lambda: Y, "two axes more": lambda: Y[..., None], "two columns": lambda: Y.repeat(1, 2),
                "a square": lambda: Y.repeat(1, N),
            }),
        },
        function=by_pyro,
    ),
    Call(
        "Checkpoint",
        lambda: {"path": "never written.safetensors", "every": 3},
        {},
    ),
    Call(
        "EarlyStopping",
        lambda: {"validation": (X, Y), "patience": 3, "seconds": 5.0, "every": 7, "num_samples": 4},
        {"validation": OBJECT, "seconds": POSITIVE.but("None")},
    ),
    Call(
        "fit_replicates",
        good_replicates,
        {
            "models": OBJECT.but("list"),
            "guides": OBJECT.but("list") | OTHER_GUIDES.but("auto"),
            "steps": COUNT,
            "memory": POSITIVE.but("None"),
            "jobs": COUNT.but("None"),
            "starts": NAME,
            "lr": POSITIVE.only("list", "string", "NaN", "bool", "negative"),
            "engine": Kind({"pyro": lambda: "pyro", "unknown": lambda: "fast"}),
            "data": OBJECT.but("list") | {"three for two": lambda: [(X, Y)] * 3, "list of tensors": lambda: [X, Y]},
        },
        function=many,
    ),
    Call(
        "Training",
        dict,
        {
            "steps": COUNT.but("None"),
            "lr": POSITIVE.only("negative", "zero", "NaN", "string", "bool"),
            "kl_weight": POSITIVE.only("negative", "NaN", "string"),
            "device": DEVICE.only("unknown", "number", "other"),
            "num_data": UNCHECKED,
        },
        function=trained,
    ),
    Call("Training.advance", lambda: {"count": 1}, function=lambda count: trained().advance(count)),
    Call(
        "Training.load_state",
        lambda: {"state": trained().state()},
        {"state": OBJECT},
        function=lambda state: trained().load_state(state),
    ),
    Call(
        "restart",
        lambda: {"model": mlp(), "guide": guides.Point(mlp()), "seed": 0},
        {"guide": OBJECT | OTHER_GUIDES.but("auto")},
    ),
    Call(
        "Fit.load",
        dict,
        {"guide": OTHER_GUIDES.but("auto")},
        function=lambda guide=None: guide is None
        or pyrodrop.Fit(mlp(), guide, None, torch.zeros(1, 3), {}),
    ),
]  # fmt: skip


@pytest.mark.few(7)
@pytest.mark.parametrize("case", cases(CALLS), ids=str)
def test_training(case: Case) -> None:
    assert case.wrong() == {}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kl_weight": lambda epoch: 5.0 - epoch}, "kl_weight .*after 6 epochs.* at least 0; got -1"),
        ({"kl_weight": lambda epoch: math.nan if epoch >= 3 else 1.0}, "kl_weight .*after 3 epochs.*got nan"),
        ({"lr_schedule": lambda step: 1 - step / 4}, "lr_schedule .*after 5 steps.* at least 0; got -0.25"),
        ({"kl_weight": lambda epoch: epoch - 1}, "kl_weight .*after 0 epochs.* at least 0; got -1"),
        ({"kl_weight": lambda epoch: None}, "kl_weight .*after 0 epochs.* at least 0; got None"),
        ({"lr_schedule": lambda step: math.inf}, "lr_schedule .*after 0 steps.* at least 0; got inf"),
        ({"lr_schedule": lambda step: "1"}, "lr_schedule .*after 0 steps.* at least 0; got the str '1'"),
        ({"lr": lambda name: -0.1}, "lr .*for 'loc.layers.0.weight'.* at least 0; got -0.1"),
        ({"lr": lambda name: None}, "lr .*for 'loc.layers.0.weight'.* at least 0; got None"),
    ],
)
def test_a_schedule_that_turns_wrong_is_refused_with_its_time(changed: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        fitted(steps=10, **changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"data": {"x": X, "z": Y}},
            r"guide must be .* called as guide\(x=..., z=...\).*unexpected keyword argument 'z'",
        ),
        ({"data": {"x": X, 3: Y}}, "keyword arguments.* as keys; got the int 3"),
        ({"data": {}}, r"guide must be .* called as guide\(\).*missing 1 required positional argument: 'x'"),
        ({"batch_size": 4}, "batch_size must be None.*got 4"),
        ({"estimator": "local"}, "estimator must be 'shared'.*got 'local'"),
        ({"model": mlp(), "guide": guides.Point(mlp())}, r"data must be \(x, y\) or a Dataset for a model.*got a dict"),
        ({"objective": Trace_ELBO(), "kl_weight": 0.5}, "kl_weight must be 1 with an objective.*got the float 0.5"),
    ],
)
def test_what_programs_do_not_have_is_refused(changed: Any, said: str) -> None:
    whole = {"model": plain, "guide": AutoNormal(plain), "data": {"x": X, "y": Y[:, 0]}, **QUICK, **changed}
    with pytest.raises((ValueError, TypeError), match=said):
        pyrodrop.fit(**whole)


@pytest.mark.parametrize(
    ("guide", "said"),
    [
        (extra_site, "latent sites of the model and no others, w; got also 'z'"),
        (of_shape(3), r"\[2\] for 'w'; got \[3\]"),
        (of_shape(1), r"\[2\] for 'w'; got \[1\]"),
        (lambda x, y: pyro.param("l", torch.zeros(())), "it has no site 'w'"),
        (lambda x: None, r"guide must be a function that can be called as guide\(x, y\).*takes 1 positional"),
        (guides.Point(mlp()), "it has no site 'w', only .'layers.0.weight'"),
    ],
)
def test_the_guide_of_another_pyro_model_is_refused(guide: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        by_pyro(Y[:, 0], guide)


def test_elbos_of_pyro_models_never_broadcast() -> None:
    run = by_pyro(Y[:, 0])
    for y in (Y, Y[..., None], Y.repeat(1, 2)):
        with pytest.raises(ValueError, match=r"y must have the shape of its distribution.* shape \[8\] together; got"):
            run.elbo(5, (X, y))


def test_a_guide_with_one_site_more_is_of_another_model() -> None:
    small = model(bias_prior=None)
    with pytest.raises(ValueError, match="in which 'layers.0.bias' does not exist; got .*, in which it has shape"):
        pyrodrop.fit(small, guides.MeanField(model()), (X, Y), **QUICK)


def test_a_class_is_no_model() -> None:
    with pytest.raises(TypeError, match="got the class MLP: make one of it"):
        fitted(make=lambda: pyrodrop.models.MLP, guide=guides.Point(mlp()))


def test_a_network_of_several_outputs_takes_no_vector() -> None:
    small = model(2, 3, 2)
    with pytest.raises(ValueError, match=r"y must have the shape \[8, 2\]"):
        pyrodrop.fit(small, guides.Point(small), (X, Y[:, 0]), **QUICK)


def test_one_distribution_for_all_rows_is_no_broadcasting() -> None:
    """Its log likelihood is that of every row, as in plain torch."""

    def mean(x: Any, y: Any = None) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(m, 1.0), obs=y)

    def at_zero(x: Any, y: Any = None) -> None:
        pyro.sample("m", dist.Delta(pyro.param("at", torch.zeros(()))))

    loss = pyrodrop.fit(mean, at_zero, (X, Y[:, 0]), **QUICK).history[0, 0]
    torch.testing.assert_close(loss, -torch.distributions.Normal(0.0, 1.0).log_prob(Y).sum())


def test_a_guide_may_mark_what_it_computes_sites_from() -> None:
    def marked(x: Any, y: Any = None) -> None:
        loc = pyro.param("loc", torch.zeros(2))
        z = pyro.sample("z", dist.Normal(loc, 1.0).to_event(1), infer={"is_auxiliary": True})
        pyro.sample("w", dist.Delta(z, event_dim=1))

    right(by_pyro(Y[:, 0], marked))


def test_networks_of_doubles_and_a_default_of_doubles() -> None:
    """In float64 all through: x as a list, an array and a float32 tensor give the same losses."""
    torch.set_default_dtype(torch.float64)
    losses = [
        fitted(x, y, make=model).losses
        for x, y in ((X.double(), Y.double()), (X.tolist(), Y.tolist()), (X, np.asarray(Y)))
    ]
    for other in losses[1:]:
        torch.testing.assert_close(other, losses[0], check_dtype=False)
