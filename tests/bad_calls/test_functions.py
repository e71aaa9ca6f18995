"""Bad calls of divergences, strategies, schedules, data sets, the zoo, readings and compression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch

import pyrodrop
from pyrodrop import compression, data, divergences, guides, likelihoods, models, priors, reparam, schedules, zoo

from .judge import Table, assert_refused, table
from .shared import X, dropout_network, model

HALF, NAN, WHOLE = torch.full((3,), 0.5), torch.full((3,), torch.nan), torch.ones(2, dtype=torch.int64)


class _Q(dist.Normal):
    """A posterior that the calls below may register."""


def splits(rows: Any = (([0, 1, 2], [3, 4]),), **changed: Any) -> data.Splits:
    parts = {"name": "t", "x": torch.randn(6, 2), "y": torch.randn(6, 1), "source": "s"}
    return data.Splits(**{**parts, "rows": rows, **changed})


ROWS = torch.ones(4, 2)


def read(x: Any = ROWS, weight_decay: Any = 1e-3, **changed: Any) -> Any:
    parts = {"likelihood": likelihoods.Categorical(), "num_data": 9, "weight_decay": weight_decay}
    return pyrodrop.read(dropout_network(), x, **{**parts, **changed})


REFUSED: Table = {
    "divergences.binary_entropy": [
        (lambda: divergences.binary_entropy(HALF + 1), "p is .*got values from 1.5 to 1.5"),
        (lambda: divergences.binary_entropy(NAN), "p must be finite; got 3 NaN"),
    ],
    "divergences.lost_entropy": [
        (lambda: divergences.lost_entropy(HALF, HALF[:2]), r"distance must have the shape of p; got shape \[2\]"),
    ],
    **{
        f"divergences.{kl.__name__}": [
            (lambda kl=kl: kl(WHOLE), "log_alpha must be a dense tensor of a floating-point dtype; got"),
            (lambda kl=kl: kl(torch.eye(2).to_sparse()), "log_alpha must be a dense tensor .*got"),
        ]
        for kl in (divergences.log_uniform_kl, divergences.molchanov, divergences.kingma)
    },
    "reparam.reparameterize": [
        (
            lambda: reparam.reparameterize(models.MLP, guides.Point(model()), reparam.LocalReparam()),
            "model must have a method",
        ),
        (lambda: reparam.reparameterize(model(), guides.Point(model()), reparam.LocalReparam), "strategy must be"),
    ],
    "data.uci": [(lambda: data.uci("nosuch"), "no UCI set is called 'nosuch'; there are boston")],
    "data.Splits": [
        (
            lambda: splits(x=torch.ones(5, 2)),
            r"x must be a table with a row for each of 6 observations; got shape \[5, 2\]",
        ),
        *(
            (lambda rows=rows: splits(rows), message)
            for rows, message in (
                ([([0], [1])], r"at least two training rows and one test row, .*got \[0\] and \[1\]"),
                ([([0, 1], [])], "rows of split 0 must contain at least one observation; got an empty list"),
                ([([0.0, 1.0], [2.0])], "rows of split 0 must be .*whole numbers"),
                ([([True, False], [True])], "rows of split 0 must be .*got"),
                ([([0, 1], [6])], r"from 0 to 5, each at most once; got \[0, 1\] and \[6\]"),
                ([([0, 1], [-1])], "from 0 to 5, each at most once; got"),
                ([([0, 1], [1])], "from 0 to 5, each at most once; got"),
            )
        ),
    ],
    "zoo": [
        (lambda: zoo.entry("uci/yaht"), "no zoo entry is called 'uci/yaht'; .*did you mean 'uci/yacht'"),
        (lambda: zoo.problem("yaht"), "no exact posterior is called 'yaht'; there are .*did you mean 'yacht'"),
        (lambda: zoo.add(sources=1.0), "sources must be data sets by name; got"),  # type: ignore[arg-type]
    ],
    "read": [
        (lambda: read(weight_decay=True), "weight_decay must be a number, a mapping .*got True"),
        (lambda: read(weight_decay=0.0), "needs one, such as prior=.*got weight_decay 0 for all weights"),
        (lambda: read(weight_decay=-1.0), "weight_decay .* must be a finite number at least 0; got -1"),
        (lambda: read(weight_decay={"nothing": 0.1, "*": 0.1}), "no parameter is called 'nothing'; there are 0.weight"),
        (lambda: read(weight_decay=torch.optim.AdamW(dropout_network().parameters())), "an optimizer that does not"),
        (lambda: read(prior=priors.Gaussian()), "one of weight_decay and prior; got both"),
        (lambda: read(X * torch.nan), "x must be finite; got"),
    ],
    "compression.compress": [
        (lambda: compression.compress(model(), guides.Point(model())), "pruning needs a guide that learns an alpha"),
    ],
}


@pytest.mark.few(30)
@table(REFUSED)
def test_a_refusal(call: Callable[[], Any], said: str) -> None:
    assert_refused(call, said)


def test_what_only_looks_bad() -> None:
    assert schedules.linear(0.5)(0.25) == 0.5
    assert len(data.line(3, seed=0)) == 3
    assert len(splits([(torch.tensor([0, 1, 2]), torch.tensor([5]))])[0].test) == 1
    assert read(weight_decay={"*": 1e-3}).model is not None
