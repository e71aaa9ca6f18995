"""Loss functions of a training, compared with likelihoods: the factors that the page of dropouts derives by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pyrodrop
from pyrodrop import likelihoods
from pyrodrop.reading.losses import strength_of

N, ROWS = 50, 6
OUTPUTS = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(2))
TOKENS = torch.randn(ROWS, 5, 4, generator=torch.Generator().manual_seed(3))


def half(f: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(f, y) / 2


def of_tokens(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f.transpose(1, 2), y)


CASES: list[tuple[Any, Any, Tensor, float]] = [
    (nn.CrossEntropyLoss(), likelihoods.Categorical(), OUTPUTS, N),
    (nn.CrossEntropyLoss(reduction="sum"), likelihoods.Categorical(), OUTPUTS, 1.0),
    (nn.NLLLoss(), likelihoods.Categorical(), OUTPUTS.log_softmax(1), N),
    (of_tokens, likelihoods.Categorical(), TOKENS, N * 5),
    (nn.BCEWithLogitsLoss(), likelihoods.Bernoulli(), OUTPUTS, N * 4),
    (nn.PoissonNLLLoss(), likelihoods.Poisson(), OUTPUTS, N * 4),
    (nn.PoissonNLLLoss(full=True, reduction="sum"), likelihoods.Poisson(), OUTPUTS, 1.0),
    (nn.GaussianNLLLoss(), likelihoods.HeteroscedasticGaussian(), OUTPUTS, N * 2),
    (nn.MSELoss(), likelihoods.Gaussian(3.0), OUTPUTS, N * 4 * 3.0 / 2),
    (nn.MSELoss(reduction="sum"), likelihoods.Gaussian(3.0), OUTPUTS, 3.0 / 2),
    (half, likelihoods.Gaussian(3.0), OUTPUTS, N * 4 * 3.0),
]


@pytest.mark.parametrize(("loss", "likelihood", "outputs", "factor"), CASES, ids=lambda v: getattr(v, "__name__", None))
def test_the_factor_of_a_loss(loss: Any, likelihood: Any, outputs: Tensor, factor: float) -> None:
    assert strength_of(loss, likelihood, N, outputs) == pytest.approx(factor, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "likelihood", "outputs", "said"),
    [
        (nn.HuberLoss(), likelihoods.Gaussian(1.0), 3 * OUTPUTS, "HuberLoss is not: a robust loss .*StudentT"),
        (nn.L1Loss(), likelihoods.Gaussian(1.0), OUTPUTS, "L1Loss is not"),
        (nn.BCELoss(), likelihoods.Bernoulli(), OUTPUTS.sigmoid(), "a network without its last sigmoid"),
        (
            nn.CrossEntropyLoss(label_smoothing=0.1),
            likelihoods.Categorical(),
            OUTPUTS,
            "class weights or label smoothing",
        ),
        (
            nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)),
            likelihoods.Bernoulli(),
            OUTPUTS,
            "class weights or label smoothing",
        ),
        (nn.MSELoss(), likelihoods.StudentT(), OUTPUTS, "minus the log density of StudentT.*; MSELoss is not"),
        (
            nn.MSELoss(reduction="none"),
            likelihoods.Gaussian(1.0),
            OUTPUTS,
            "a scalar, a mean or a sum .*'none'|returns a Tensor",
        ),
        (nn.CrossEntropyLoss(), likelihoods.Gaussian(1.0), OUTPUTS, "CrossEntropyLoss is not"),
        (nn.TripletMarginLoss(), likelihoods.Gaussian(1.0), OUTPUTS, "TripletMarginLoss raises for outputs of shape"),
        (
            nn.MSELoss(),
            likelihoods.Gaussian(1.0),
            OUTPUTS[:1].expand(3, -1),
            "at least two examples with different outputs",
        ),
        (lambda f, y: F.mse_loss(f, y) / len(f), likelihoods.Gaussian(1.0), OUTPUTS, "a mean or a sum over examples"),
        (lambda f, y: -F.mse_loss(f, y), likelihoods.Gaussian(1.0), OUTPUTS, "times a number and up to a constant"),
    ],
)
def test_other_losses_are_refused(loss: Callable[..., Any], likelihood: Any, outputs: Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        strength_of(loss, likelihood, N, outputs)


def test_read_takes_the_loss_itself() -> None:
    """The prior is that of the name; y that are counts are predicted as such."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    x = torch.randn(5, 3)
    settings: dict[str, Any] = {"likelihood": likelihoods.Poisson(), "weight_decay": 1e-3, "num_data": 100}
    by_name, by_loss = (pyrodrop.read(net, x, loss=loss, **settings) for loss in ("mean_nll", nn.PoissonNLLLoss()))
    scales = [reading.model.priors["3.weight"].scale for reading in (by_name, by_loss)]
    assert float(scales[0]) == pytest.approx(float(scales[1]), rel=1e-6)
    drawn = by_loss.predict(x, 20).sample_y(20)
    assert bool(((drawn >= 0) & (drawn == drawn.round())).all())
