"""The released code in plain PyTorch: its training is `torch.optim.Adam`'s on its loss, its scores are SciPy's."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm
from torch import Tensor

from pyrodrop.analysis.experiments.uci import released
from pyrodrop.analysis.experiments.uci.protocol import PROTOCOLS
from pyrodrop.analysis.experiments.uci.released import VARIANTS, Rows, rows, run, scores, train

KEEP, HIDDEN, DECAY = 0.8, 5, 0.03


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks that depend on their shape alone."""

    def masks(shape: tuple[int, ...], keep: float, random: torch.Generator) -> Tensor:
        return (torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) < keep).float()

    monkeypatch.setattr(released, "masks", masks)


@pytest.fixture
def data() -> Rows:
    draw = torch.Generator().manual_seed(0)
    x, y, test_x, test_y = (
        torch.randn(shape, generator=draw) for shape in ((2, 7, 3), (2, 7, 1), (2, 4, 3), (2, 4, 1))
    )
    return Rows(x, y, test_x, test_y, torch.full((2, 1, 1), 3.0), torch.full((2, 1, 1), 2.0))


def trained(data: Rows, variant: str, epochs: int) -> list[Tensor]:
    decay = torch.tensor([DECAY, 2 * DECAY])
    return train(data, HIDDEN, KEEP, decay, epochs, 7, variant, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("variant", VARIANTS[:3])
def test_steps_are_those_of_torch(variant: str, data: Rows, fixed: None) -> None:
    """Five full batches of the second network, whose penalty is twice the first's; the weights that predict are compared."""
    divided, p_w = variant == "divided", variant == "ours"
    own = [
        (each[1] * (KEEP if divided and number in (0, 2) else 1))
        for number, each in enumerate(trained(data, variant, 0))
    ]
    for each in own:
        each.requires_grad_()
    adam = torch.optim.Adam(own, lr=1e-3)
    order = torch.rand(2, 7, generator=_after_the_start()).argsort(1)
    masks = [released.masks((2, 7, width), KEEP, torch.Generator())[1] for width in (3, HIDDEN)]
    if divided:
        masks = [mask / KEEP for mask in masks]
    for step in range(5):
        if step:
            order = torch.rand(2, 7, generator=_after_the_start(step)).argsort(1)
        x, y = data.x[1][order[1]], data.y[1][order[1]]
        f = torch.relu((x * masks[0]) @ own[0] + own[1]) * masks[1] @ own[2] + own[3]
        weights = [KEEP * own[0], KEEP * own[2]] if p_w else [own[0], own[2]]
        loss = (y - f).square().mean() + 2 * DECAY * sum(weight.square().sum() for weight in weights)
        adam.zero_grad()
        loss.backward()
        adam.step()
    found = [each[1] for each in trained(data, variant, 5)]
    want = [own[0] / KEEP if divided else own[0], own[1], own[2] / KEEP if divided else own[2], own[3]]
    for ours, theirs in zip(found, want, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-6)


def _after_the_start(steps: int = 0) -> torch.Generator:
    """The generator of `trained` after the first weights and the minibatches of `steps` epochs."""
    random = torch.Generator().manual_seed(1)
    for shape in ((2, 3, HIDDEN), (2, HIDDEN, 1), *[(2, 7)] * steps):
        torch.rand(shape, generator=random)
    return random


def test_the_start_is_glorots(data: Rows) -> None:
    """Of W, except that `ours` starts p W there; what `divided` predicts with is W / p."""
    first = {variant: trained(data, variant, 0)[0] for variant in VARIANTS}
    assert float(first["kept"].abs().max()) <= math.sqrt(6 / (3 + HIDDEN))
    assert float(first["kept"].abs().max()) > 0.8 * math.sqrt(6 / (3 + HIDDEN))
    for variant in ("ours", "divided"):
        torch.testing.assert_close(KEEP * first[variant], first["kept"])


def test_early_steps_are_not_corrected_by_their_number(data: Rows, fixed: None) -> None:
    """A constant gradient: the step is 1 - .9^t over 1 - .9 against the root of 1 - .999^t over 1 - .999."""
    ten, eleven = (trained(data, "early", epochs)[3][0, 0, 0] for epochs in (1, 2))
    start = trained(data, "early", 0)[3][0, 0, 0]
    assert abs(float(ten - start)) == pytest.approx(1e-3, rel=1e-3)
    assert abs(float(eleven - ten)) == pytest.approx(1e-3 * 1.9 / math.sqrt(1.999), rel=0.02)


def test_scores_are_scipys(data: Rows, fixed: None) -> None:
    weights, tau = trained(data, "kept", 3), 0.7
    rmse, densities = scores(data, weights, KEEP, torch.tensor([tau, tau]), 50, torch.Generator())
    w1, b1, w2, b2 = (each[1].double().numpy() for each in weights)
    first, second = (
        released.masks(shape, KEEP, torch.Generator()).double().numpy() for shape in ((50, 1, 3), (50, HIDDEN, 1))
    )
    hidden = np.maximum((data.test_x[1].double().numpy() * first) @ w1 + b1, 0)
    f = (hidden @ (second * w2) + b2) * 2 + 3
    y = data.test_y[1].double().numpy()
    assert rmse[1] == pytest.approx(np.sqrt(((f.mean(0) - y) ** 2).mean()), rel=1e-5)
    log_p = logsumexp(norm.logpdf(y, f, tau**-0.5), axis=0) - math.log(50)
    assert densities[1] == pytest.approx(log_p.mean(), rel=1e-5)


def test_rows_are_standardised_by_the_first_four_fifths(data_folder: Path) -> None:
    raw = np.loadtxt(data_folder / "uci" / "yacht" / "data.txt")
    order = np.random.RandomState(1).choice(range(308), 308, replace=False)
    train, test = order[:277], order[277:]
    count = int(0.8 * len(train))
    for own, some, others in (
        (rows("yacht", 2, validation=True), train[:count], train[count:]),
        (rows("yacht", 2, validation=False), train, test),
    ):
        mean, sd = raw[some].mean(0), raw[some].std(0)
        for number in (0, 20):
            np.testing.assert_allclose(own.x[number], ((raw[some] - mean) / sd)[:, :6], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(own.y[number], ((raw[some] - mean) / sd)[:, 6:], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(own.test_x[number], ((raw[others] - mean) / sd)[:, :6], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(own.test_y[number], raw[others, 6:], rtol=1e-6)
        assert float(own.mean[0]) == pytest.approx(mean[6], rel=1e-6)
        assert float(own.sd[0]) == pytest.approx(sd[6], rel=1e-6)


@pytest.mark.parametrize("rate", [None, 0.1])
def test_a_run_has_the_settings_of_its_protocol(rate: float | None, data_folder: Path, monkeypatch: Any) -> None:
    """tau, penalty, epochs and minibatch of both protocols; the training is left out."""
    seen: dict[str, Any] = {}

    def no_training(
        data: Rows, hidden: int, keep: float, decay: Tensor, epochs: int, batch: int, *_: Any
    ) -> list[Tensor]:
        seen.update(keep=keep, decay=decay, epochs=epochs, batch=batch, rows=data.x.shape)
        width = data.x.shape[2]
        return [torch.zeros(len(data.x), *shape) for shape in ((width, hidden), (1, hidden), (hidden, 1), (1, 1))]

    monkeypatch.setattr(released, "train", no_training)
    monkeypatch.setattr(released, "PROTOCOLS", {name: replace(each, draws=3) for name, each in PROTOCOLS.items()})
    found = run("yacht", "kept", 2, rate)
    if rate is None:
        assert (seen["epochs"], seen["batch"], seen["keep"], tuple(seen["rows"])) == (400, 32, 0.99, (40, 277, 6))
        assert seen["decay"].tolist() == pytest.approx([0.1**2 * 0.99 / (2 * 277 * 0.541869562034)] * 40)
        assert np.shape(found["log_density"]) == np.shape(found["rmse"]) == (2, 20)
    else:
        assert (seen["epochs"], seen["batch"], seen["keep"], tuple(seen["rows"])) == (4000, 128, 0.9, (120, 221, 6))
        want = [0.01**2 * 0.9 / (2 * 221 * tau) for tau in (0.25, 0.5, 0.75) for _ in range(20)] * 2
        assert seen["decay"].tolist() == pytest.approx(want)
        assert np.shape(found["validation"]) == (2, 3, 20)


def test_a_rate_of_no_grid_is_refused(data_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"rate is one of the grid of 2018; got 0\.3"):
        run("yacht", "kept", 1, 0.3)
