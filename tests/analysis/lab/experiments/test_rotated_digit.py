"""The rotated digit: Caffe's step, what crosses, paired scores, and the job at the size of a test."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pyrodrop
from pyrodrop import guides, zoo
from pyrodrop.analysis.lab.experiments.paired_scores import compared
from pyrodrop.analysis.lab.experiments.rotated_digit import experiment as rotated_digit
from pyrodrop.analysis.zoo.averaged import averaged
from pyrodrop.data import Dataset
from pyrodrop.zoo.entries import DROPPED, RATES
from pyrodrop.zoo.networks import DECAY, KEEP, inverse_decay, learning_rate

LR = 0.01

pytestmark = pytest.mark.filterwarnings("ignore::pyrodrop.priors.ImproperPrior")


def test_a_step_is_caffes(monkeypatch: pytest.MonkeyPatch, float64: None) -> None:
    """One SGD step moves keep * M as Caffe's moves V, for the same masks.

    Caffe: mean cross-entropy + decay |V|^2 / 2, dropout that divides by keep behind ip1, biases at twice the rate.
    """
    n = 12
    data = Dataset(torch.rand(n, 1, 28, 28), torch.arange(n) % 10)
    model = zoo.entry("rotated-digit/bernoulli").model(data).double()
    guide = guides.BernoulliDropout(model, RATES, mask_input=True).double()
    start = {name: w.clone() for name, w in guide.loc.named_parameters()}  # type: ignore[attr-defined]
    mask = (torch.arange(500) % 3 > 0).double()
    monkeypatch.setattr("pyrodrop.distributions.bernoulli_mixture.coins", lambda rates, shape: mask.expand(shape))
    rate = functools.partial(learning_rate, lr=LR, scale=n, keep=KEEP, dropped=(DROPPED,))
    trained = pyrodrop.fit(model, guide, data, steps=1, lr=rate, optimizer=torch.optim.SGD)
    moved = dict(trained.guide.loc.named_parameters())  # type: ignore[attr-defined]

    names = {name.removesuffix("_unconstrained"): name for name in start}
    factor = {name: KEEP if name == DROPPED else 1.0 for name in names}
    v = {name: (factor[name] * start[own]).detach().requires_grad_() for name, own in names.items()}
    h = data.x
    for conv in ("conv1", "conv2"):
        h = F.max_pool2d(F.conv2d(h, v[f"{conv}.weight"], v[f"{conv}.bias"]), 2)
    h = torch.relu(F.linear(h.flatten(1), v["ip1.weight"], v["ip1.bias"])) * mask / KEEP
    f = F.linear(h, v["ip2.weight"], v["ip2.bias"])
    (F.cross_entropy(f, data.y) + DECAY / 2 * sum(w.square().sum() for w in v.values())).backward()
    for name, own in names.items():
        gradient = v[name].grad
        assert gradient is not None
        step = -(2 if name.endswith("bias") else 1) * LR * gradient
        torch.testing.assert_close(factor[name] * (moved[own] - start[own]), step, rtol=1e-6, atol=1e-14)


def test_xavier_has_variance_one_over_fan_in_behind_the_mask() -> None:
    model = zoo.entry("rotated-digit/bernoulli").model(Dataset(torch.rand(4, 1, 28, 28), torch.arange(4)))
    for name, fan_in in (("conv2.weight", 500), ("ip1.weight", 800), (DROPPED, 500)):
        weight = model.weight_sites()[name] * (KEEP if name == DROPPED else 1.0)
        assert float(weight.var() * fan_in) == pytest.approx(1, rel=0.05)
    assert float(model.weight_sites()["conv1.bias"].abs().max()) == 0


def test_the_policy_inv_is_caffes() -> None:
    schedule = zoo.entry("rotated-digit/bernoulli").training(Dataset(torch.rand(4, 1, 28, 28), torch.arange(4)))[
        "lr_schedule"
    ]
    assert schedule(0) == 1
    assert LR * schedule(10_000) == pytest.approx(0.00594604, rel=1e-5)  # as Caffe's log of LeNet prints it
    assert inverse_decay(30_000, gamma=1e-4, power=0.25) == pytest.approx(4**-0.25)


def test_paired_scores_are_those_of_each_and_their_difference(small: Any) -> None:
    fit = small.fitted(small.dropout, small.classifier(), small.classes())
    test = small.classes(60, seed=1)
    scores, difference = compared({"average": averaged(fit), "draws": fit}, test, 20, 0)
    p = fit.predict(test.x, 20, seed=0).mean.double()
    nll = -p.gather(1, test.y[:, None]).log().mean()
    assert scores["draws"]["nll"] == pytest.approx(float(nll), rel=1e-4)
    assert scores["average"]["mutual_information"] == pytest.approx(0, abs=1e-12)
    for name, row in difference.items():
        assert row["difference"] == pytest.approx(scores["draws"][name] - scores["average"][name])
    each = -p.gather(1, test.y[:, None]).log()[:, 0]
    q = averaged(fit).predict(test.x, 1).mean.double()
    paired = each + q.gather(1, test.y[:, None]).log()[:, 0]
    assert difference["nll"]["se"] == pytest.approx(float(paired.std()) / 60**0.5, rel=0.25)
    assert compared({"draws": fit}, test, 5, 0)[1] == {}


def test_digit_and_largest_angle_are_searched() -> None:
    """A digit that stays a 1, and two that are a 1 up to 45 degrees, a 5 up to 65 and a 7 to the end, in whole degrees."""
    turning = [1] * 46 + [5] * 20 + [7] * 115
    found = rotated_digit.search([[1] * 181, turning, turning])
    assert (found["digit"], found["turn"], found["same"]) == (1, 103, 12), "the eighth view, 7/11 of it, is past 65"
    assert found["classes"] == list(rotated_digit.PUBLISHED)
    assert (found["ones"], found["whole"]) == (3, 2)
    assert rotated_digit.search([[1] * 181]) == {
        "digit": 0, "turn": 0, "classes": [1] * 12, "same": 5, "ones": 1, "whole": 0,
    }  # fmt: skip
