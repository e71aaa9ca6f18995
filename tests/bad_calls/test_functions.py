"""Bad calls of divergences, strategies, schedules, data sets, the zoo, readings and compression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pyrodrop
from pyrodrop import compression, data, divergences, guides, likelihoods, models, priors, reparam, schedules, zoo

from .judge import Table, assert_refused, table
from .shared import X, dropout_network, model

HALF, NAN, WHOLE = torch.full((3,), 0.5), torch.full((3,), torch.nan), torch.ones(2, dtype=torch.int64)


ROWS = torch.ones(4, 2)


def read(x: Any = ROWS, weight_decay: Any = 1e-3, **changed: Any) -> Any:
    parts = {"likelihood": likelihoods.Categorical(), "num_data": 9, "weight_decay": weight_decay}
    return pyrodrop.read(dropout_network(), x, **{**parts, **changed})


REFUSED: Table = {
    "divergences.log_uniform_kl": [
        (lambda: divergences.log_uniform_kl(WHOLE), "log_alpha must be a dense tensor of a floating-point dtype; got"),
        (lambda: divergences.log_uniform_kl(torch.eye(2).to_sparse()), "log_alpha must be a dense tensor .*got"),
    ],
    "reparam.reparameterize": [
        (
            lambda: reparam.reparameterize(models.MLP, guides.Point(model()), reparam.LocalReparam()),
            "model must have a method",
        ),
        (lambda: reparam.reparameterize(model(), guides.Point(model()), reparam.LocalReparam), "strategy must be"),
    ],
    "data.uci": [(lambda: data.uci("nosuch"), "no UCI set is called 'nosuch'; there are boston")],
    "zoo": [
        (lambda: zoo.entry("uci/yaht"), "no zoo entry is called 'uci/yaht'; .*did you mean 'uci/yacht'"),
    ],
    "read": [
        (lambda: read(weight_decay=0.0), "needs one, such as prior=.*got weight_decay 0 for all weights"),
        (lambda: read(weight_decay=torch.optim.AdamW(dropout_network().parameters())), "weight_decay .* must be .*got"),
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
    assert read(weight_decay={"*": 1e-3}).model is not None
