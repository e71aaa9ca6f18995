"""Bad calls of training and sampling: settings, data, guides of other models, and observations that would broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal

import pyrodrop
from pyrodrop import guides
from pyrodrop.schedules import cosine, linear

from .judge import Table, assert_refused, table
from .shared import QUICK, N, X, Y, fit_with, its_guide, mlp, model, plain, potential

BIAS = "layers.1.bias"


def extra_site(x: Any, y: Any = None) -> None:
    its_guide(x, y)
    pyro.sample("z", dist.Normal(pyro.param("m", torch.zeros(())), 1.0))


def of_shape(size: int) -> Callable[..., None]:
    def guide(x: Any, y: Any = None) -> None:
        pyro.sample("w", dist.Normal(pyro.param("loc", torch.zeros(size)), 1.0).to_event(1))

    return guide


OTHER_GUIDES: dict[str, Callable[[], Any]] = {
    r"guides? must .*'layers.0.weight'.*got": lambda: guides.MeanField(model(2, 4, 1)),
    r"guides? must .*'layers.1.weight'.*got": lambda: guides.MeanField(model(2, 3, 2)),
    r"guides? must .*layers.(1|2).weight": lambda: guides.MeanField(model(2, 3, 3, 1)),
    r"guides? must .*layers.0.weight": lambda: guides.MeanField(model(3, 3, 1)),
    rf"guides? must .*(layers.0.bias|{BIAS})": lambda: guides.MeanField(model(bias_prior=None)),
    "guides? must .*got": lambda: guides.Ensemble(model(2, 4, 1), guides.Point, 2),
}


def by_pyro(y: Any, guide: Any = its_guide) -> Any:
    return pyrodrop.fit(plain, guide, (X, y), **QUICK)


def many(models: Any = None, guides_: Any = None, data: Any = (X, Y), **settings: Any) -> Any:
    models, guides_ = models or mlp(), guides_ or guides.Point(mlp())
    return pyrodrop.fit_replicates(models, guides_, data, **{"count": 2, "steps": 1, "progress": False, **settings})


def at(**changed: Any) -> dict[str, Any]:
    return {**potential().initial_params(0), **changed}


SETTINGS: dict[str, Any] = {
    "optimizer must be a torch.optim class or a function": {"optimizer": "adam"},
    "lr_schedule must be no schedules.linear": {"lr_schedule": linear(3)},
    "lr_schedule must be a function .*got": {"lr_schedule": 1.0},
    "kl_weight must be no schedules.cosine": {"kl_weight": cosine(3)},
    "kl_weight .*must be .*at least 0; got -1": {"kl_weight": -1.0},
    "objective must be a loss object of Pyro": {"objective": Trace_ELBO},
    "device must be one of .*got 'nosuch'": {"device": "nosuch"},
    "device must be 'auto', 'cpu', 'cuda'.*got the int 3": {"device": 3},
    "device must .*meta": {"device": torch.device("meta")},
    "checkpoint must be a str or a pathlib.Path, .*got the int 3": {"checkpoint": 3},
    "after_epoch must be a function .*got": {"after_epoch": 1.0},
    "kl_weight .*after 6 epochs.* at least 0; got -1": {"kl_weight": lambda epoch: 5.0 - epoch},
    "kl_weight .*after 3 epochs.*got nan": {"kl_weight": lambda epoch: math.nan if epoch >= 3 else 1.0},
    "lr_schedule .*after 5 steps.* at least 0; got -0.25": {"lr_schedule": lambda step: 1 - step / 4},
    "lr_schedule .*after 0 steps.* at least 0; got inf": {"lr_schedule": lambda step: math.inf},
    "lr .*for 'loc.layers.0.weight'.* at least 0; got -0.1": {"lr": lambda name: -0.1},
}
PROGRAMS: dict[str, Any] = {
    r"guide must be .* called as guide\(x, z\).*unexpected keyword argument 'z'": {"data": {"x": X, "z": Y}},
    "keyword arguments.* as keys; got the int 3": {"data": {"x": X, 3: Y}},
    r"guide must be .* called as guide\(\).*missing 1 required positional argument: 'x'": {"data": {}},
    "estimator must be 'shared' and batch_size None.*got 'shared' and 4": {"batch_size": 4},
    "estimator must be 'shared' and batch_size None.*got 'local' and None": {"estimator": "local"},
    r"data must be \(x, y\) or a Dataset for a model.*got a dict": {"model": mlp(), "guide": guides.Point(mlp())},
    "kl_weight must be 1 with an objective.*got the float 0.5": {"objective": Trace_ELBO(), "kl_weight": 0.5},
}
PROGRAM = {"model": plain, "guide": AutoNormal(plain), "data": {"x": X, "y": Y[:, 0]}, **QUICK}
REFUSED: Table = {
    "fit": [
        *((lambda s=s: fit_with(**{"steps": 10, **s}), said) for said, s in SETTINGS.items()),
        *((lambda make=make: fit_with(make()), said) for said, make in OTHER_GUIDES.items()),
        (lambda: fit_with(AutoNormal(model(2, 4, 1))), "guide: an autoguide belongs to the model that it was made"),
        (lambda: pyrodrop.fit(None, guides.Point(mlp()), (X, Y), **QUICK), "model must be a Pyro model, .*got None"),
        (
            lambda: pyrodrop.fit(model(2, 3, 2), guides.Point(model(2, 3, 2)), (X, Y[:, 0]), **QUICK),
            r"y must have the shape \[8, 2\]",
        ),
    ],
    "fit of programs": [
        *((lambda changed=changed: pyrodrop.fit(**{**PROGRAM, **changed}), said) for said, changed in PROGRAMS.items()),
        *(
            (
                lambda y=y: by_pyro(y),
                r"y must have the shape of its distribution, .*never broadcast: .* shape \[8\] together; got",
            )
            for y in (Y, Y[..., None], Y.repeat(1, 2), Y.repeat(1, N))
        ),
        *(
            (lambda guide=guide: by_pyro(Y[:, 0], guide), said)
            for guide, said in (
                (extra_site, "latent sites of the model and no others, w; got also 'z'"),
                (of_shape(3), r"\[2\] for 'w'; got \[3\]"),
                (of_shape(1), r"\[2\] for 'w'; got \[1\]"),
                (lambda x, y: pyro.param("l", torch.zeros(())), "it has no site 'w'"),
                (lambda x: None, r"guide must be a function that can be called as guide\(x, y\).*takes 1 positional"),
                (guides.Point(mlp()), "it has no site 'w', only .'layers.0.weight'"),
            )
        ),
        *(
            (
                lambda name=name: getattr(by_pyro(Y[:, 0]), name)(),
                "needs a per-weight alpha|must be a model of pyrodrop",
            )
            for name in ("pruned", "compress")
        ),
    ],
    "compile_svi": [
        (lambda: pyrodrop.compile_svi(None, plain, pyro.optim.Adam({}), Trace_ELBO()), "model must be one of Pyro's"),
        (lambda: pyrodrop.compile_svi(plain, plain, torch.optim.Adam, Trace_ELBO()), "optim must be an optimiser of"),  # type: ignore[arg-type]
    ],
    "fit_replicates": [
        *((lambda make=make: many(guides_=make()), said) for said, make in OTHER_GUIDES.items()),
        (lambda: many(models="x"), "replicates need a model of pyrodrop.models and a guide of pyrodrop.guides"),
        (lambda: many(objective=Trace_ELBO()), "objective None; got 'auto' and a Trace_ELBO"),
        (lambda: many(count=0), "count is .* at least 1; got 0"),
        (lambda: many(guides_=[guides.Point(mlp())] * 2), "pass lists of both, or one of each"),
        (lambda: many(data=[(X, Y)] * 3), "2 replicates need as many data sets, or one for all; got a list of 3"),
        (lambda: many(data=[X, Y]), "data .*must"),
    ],
    "Fit": [
        (lambda: pyrodrop.Fit(mlp(), guides.Point(mlp()), None, torch.zeros(1, 3), {}).elbo(2), "has no training data"),
        *(
            (lambda make=make: pyrodrop.Fit(mlp(), make(), None, torch.zeros(1, 3), {}), said)
            for said, make in OTHER_GUIDES.items()
        ),
    ],
    "recipes": [
        (lambda: pyrodrop.recipes.regressor((X, Y)), "data must have at least 10 rows, parts of which are left out"),
    ],
    "sample": [
        (lambda: pyrodrop.sample(guides.Point(mlp()), (X, Y)), "model must be a model of pyrodrop.models or"),
        (lambda: pyrodrop.sample(mlp(), (X, Y), dtype="float32"), "dtype must be torch.float32, torch.float64 or None"),  # type: ignore[arg-type]
    ],
    "Potential": [
        (lambda: potential()(1.0), "values must be a mapping from site to tensor"),  # type: ignore[arg-type]
        (lambda: potential()({BIAS: at()[BIAS]}), "must be tensors of the latent sites, .*layers.0.weight.*; got "),
    ],
}


@pytest.mark.few(30)
@table(REFUSED)
def test_a_refusal(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


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

    assert bool(by_pyro(Y[:, 0], marked).losses.isfinite().all())
