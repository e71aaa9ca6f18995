"""Networks that return tuples, mappings and other objects: `output` takes the tensor that everything uses."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, priors
from tests.small import brought, normal

X = normal(30, 4, seed=1)
Y = normal(30, 2, seed=2)


class Net(nn.Module):
    """Two outputs and an auxiliary loss, put together by `pack`."""

    def __init__(self, pack: Callable[..., Any]) -> None:
        super().__init__()
        self.body, self.head, self.pack = nn.Linear(4, 6), nn.Linear(6, 2), pack

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.body(x))
        return self.pack(loss=hidden.square().mean(), logits=self.head(hidden))


def test_an_output_that_is_none_is_refused_with_what_the_network_returns() -> None:
    net = Net(dict)
    for output, line in (
        (lambda out: out["logit"], r"network returns, a dict with 'loss', 'logits'; got KeyError: 'logit'"),
        (lambda out: out, r"returns one tensor, \[N, \.\.\.\]; it returned a dict with 'loss', 'logits'"),
        (lambda out: out["loss"], r"one row per example, \[N, outputs\].*; got shape \(\)"),
    ):
        model = brought(net, output=output)
        with pytest.raises(ValueError, match=line):
            pyrodrop.fit(model, guides.Point(model), (X, Y), steps=1)
        with pytest.raises(ValueError, match=line):
            pyrodrop.read(
                nn.Sequential(nn.Dropout(0.5), net), X, likelihood=likelihoods.Gaussian(4.0), prior=priors.Gaussian(),
                num_data=30, output=output,
            )  # fmt: skip


def test_parameters_that_are_not_the_networks_are_refused_and_fixed_ones_are_constants() -> None:
    """In a plain list, which registers nothing, or in the output: no step would change them."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.layers = nn.Linear(4, 6), [nn.Linear(6, 2)]

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](torch.tanh(self.body(x)))  # type: ignore[no-any-return]

    head, listed = nn.Linear(2, 2), Listed()
    for model in (brought(Net(dict), output=lambda out: head(out["logits"])), brought(listed)):
        with pytest.raises(
            ValueError, match="uses some that are not its own, such as those of a layer in a plain list"
        ):
            pyrodrop.fit(model, guides.Point(model), (X, Y), steps=1)
    listed.layers[0].requires_grad_(False)
    model = brought(listed)
    assert pyrodrop.fit(model, guides.Point(model), (X, Y), steps=1).history.isfinite().all()


def negative(out: Any) -> Tensor:
    return -out["logits"]  # type: ignore[no-any-return]


def test_files_know_which_output_is_taken(tmp_path: Path) -> None:
    net = Net(dict)

    def parts(output: Any) -> tuple[Any, Any]:
        model = brought(net, output=output)
        return model, guides.Point(model)

    for output, again, other in (
        (lambda out: out["logits"], lambda out: out["logits"], negative),
        (operator.itemgetter("logits"), operator.itemgetter("logits"), operator.itemgetter("loss")),
    ):
        run = pyrodrop.fit(*parts(output), (X, Y), steps=1)
        path = run.save(tmp_path / "fit.safetensors")
        assert torch.equal(pyrodrop.Fit.load(path, *parts(again)).predict(X, 1).f, run.predict(X, 1).f)
        for wrong in (other, None):
            with pytest.raises(ValueError, match=r"model\.output"):
                pyrodrop.Fit.load(path, *parts(wrong))
