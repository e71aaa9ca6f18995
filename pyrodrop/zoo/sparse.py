"""Sparse networks on MNIST: LeNet-300-100 and LeNet-5 under sparse variational dropout, ARD and log-normal dropout.

                     molchanov2017                            deepbayes2019
    epochs           200                                      100
    learning rate    1e-3; LeNet-300-100: to 0 over the       1e-3, times 0.2 after 0.5, 0.6, 0.7, 0.8 of the run
                     second half; LeNet-5: to 0 from the start
    KL weight        0, then to 1 from epoch 5 to 20          0.02 more in every epoch, up to 1
    initial W        N(0, 0.01^2), biases 0                   N(0, 0.02^2), biases 0
    log alpha        within -8, 8                             within -10, 10
    in training      means with log alpha >= 3 set to 0       unchanged

Both: Adam, batches of 100, initial log variance -10, weights with log alpha >= 3 pruned. Molchanov, Ashukha & Vetrov (2017),
Variational Dropout Sparsifies Deep Neural Networks, https://arxiv.org/abs/1701.05369, table 1 and released code; the
exercise of the Deep|Bayes summer school (2019). The KL divergence is accurate to 1e-6 per weight here; theirs is an
approximation with an error of 0.0094.

neklyudov2017: log-normal dropout by input unit, batches of 100, initial W ~ N(0, 0.02^2), initial ln sigma -5, Adam with a
learning rate of 1e-3 and of 5e-2 for the noise, both to 0 from the start, 150 epochs, KL weight 0, then to 1 from epoch 1 to
5; units with a signal-to-noise ratio of at most 1 are removed. Neklyudov, Molchanov, Ashukha & Vetrov (2017),
https://arxiv.org/abs/1705.07283: dense 784-500-300-10. Released code, of LeNet-5: from a trained network, noise after the
convolutions, KL weight 1, 200 epochs, 1e-3 for all parameters, to 0 over the second half, batches of 128, beta_1 = .95.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from pyrodrop import likelihoods, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.distributions import InputUnits
from pyrodrop.guides import ARDDropout, Guide, LogNormalDropout, SparseDropout
from pyrodrop.models import LeNet5, LeNet300100, NetworkModel
from pyrodrop.zoo.entry import Check, Entry

BATCH = 100
MAPS = {"ip1.weight": InputUnits(1, size=16)}  # the 4 x 4 pixels of one map of conv2, which goes whole
CUT = 3.0
Net = Literal["lenet-300-100", "lenet-5"]
Method = Literal["sparse", "ard", "log-normal"]
Recipe = Literal["molchanov2017", "deepbayes2019", "neklyudov2017"]


def late(share: float) -> float:
    """1 for the first half, then linear to 0."""
    return min(1.0, 2 * (1 - share))


def straight(share: float) -> float:
    """Linear from 1 to 0."""
    return 1 - share


def stairs(share: float) -> float:
    """Multiplied by 0.2 after shares 0.5, 0.6, 0.7 and 0.8."""
    return float(0.2 ** sum(share >= milestone for milestone in (0.5, 0.6, 0.7, 0.8)))


def decaying(step: int, *, decay: Callable[[float], float], steps: int) -> float:
    """Factor of the learning rate at a step, from the share of all steps that is completed."""
    return decay(step / steps)


@dataclass(frozen=True)
class Settings:
    """The settings of a recipe.

    Attributes:
        epochs: length of the training.
        spread: standard deviation of the initial weights.
        reach: upper bound of abs(log alpha).
        cut: value of log alpha from which means are set to 0 during training (their ``train_clip``), or None.
        kl_weight: weight of the KL divergence as a function of completed epochs.
        decay: for each network, the factor of the learning rate as a function of the completed share of the training.
        source: paper, and table.
    """

    epochs: int
    spread: float
    reach: float
    cut: float | None
    kl_weight: schedules.KLSchedule
    decay: Mapping[str, Callable[[float], float]]
    source: str


RECIPES: Mapping[Recipe, Settings] = {
    "molchanov2017": Settings(
        epochs=200,
        spread=0.01,
        reach=8.0,
        cut=CUT,
        kl_weight=schedules.linear(15, after=5),
        decay={"lenet-300-100": late, "lenet-5": straight},
        source="Molchanov, Ashukha & Vetrov (2017), table 1",
    ),
    "deepbayes2019": Settings(
        epochs=100,
        spread=0.02,
        reach=10.0,
        cut=None,
        kl_weight=schedules.staircase(0.02),
        decay={"lenet-300-100": stairs, "lenet-5": stairs},
        source="Deep|Bayes (2019), exercise on sparse variational dropout",
    ),
    "neklyudov2017": Settings(
        epochs=150,
        spread=0.02,
        reach=math.inf,
        cut=None,
        kl_weight=schedules.linear(4, after=1),
        decay={"lenet-300-100": straight, "lenet-5": straight},
        source="Neklyudov, Molchanov, Ashukha & Vetrov (2017), table 1",
    ),
}
METHODS: Mapping[Recipe, tuple[Method, ...]] = {
    "molchanov2017": ("sparse", "ard"),
    "deepbayes2019": ("sparse", "ard"),
    "neklyudov2017": ("log-normal",),
}


def network(data: Dataset, *, net: Net, method: Method, recipe: Recipe) -> NetworkModel:
    """The network with its initial weights."""
    distributions: dict[str, Any] = {
        "prior": priors.ARD() if method == "ard" else priors.LogUniform(),
        "likelihood": likelihoods.Categorical(),
        "seed": None,
    }
    if net == "lenet-300-100":
        model: NetworkModel = LeNet300100(**distributions)
    else:
        axes = MAPS if method == "log-normal" else None
        model = LeNet5(rectified=True, input_axes=axes, **distributions)
    with torch.no_grad():
        for weight in model.weight_sites().values():
            weight.normal_(0, RECIPES[recipe].spread)
        for bias in model.free.parameters():
            bias.zero_()
    return model


def training(data: Dataset, *, net: Net, recipe: Recipe, epochs: int | None = None) -> dict[str, Any]:
    """Arguments of `pyrodrop.fit`. With fewer epochs the learning-rate schedule is shortened, that of the KL weight is not.

    Raises:
        ValueError: too few epochs for the weight of the KL divergence to reach 1; sparsity before that is meaningless.
    """
    settings = RECIPES[recipe]
    epochs = settings.epochs if epochs is None else epochs
    if settings.kl_weight(epochs - 1) < 1:
        full = next(e for e in range(settings.epochs) if settings.kl_weight(e) >= 1)
        raise ValueError(
            f"epochs must be more than {full}, as the weight of the KL divergence of {recipe} reaches 1 in epoch {full + 1} "
            f"and sparsity has no meaning before; got {epochs}"
        )
    per_epoch = -(-len(data) // BATCH)
    steps = epochs * per_epoch
    return {
        "steps": steps,
        "batch_size": BATCH,
        "lr": _faster_noise if recipe == "neklyudov2017" else 1e-3,
        "lr_schedule": functools.partial(decaying, decay=settings.decay[net], steps=steps),
        "kl_weight": settings.kl_weight,
        "estimator": "local",
        "engine": "compiled",
    }


def _faster_noise(parameter: str) -> float:
    """The learning rate of a parameter of log-normal dropout: the gradient of the noise is small beside its own variance."""
    return 5e-2 if "noise_" in parameter else 1e-3


def _guide(method: Method, recipe: Recipe) -> Callable[[NetworkModel], Guide]:
    """The posterior, with initial variances so small that training starts almost without noise."""
    if method == "log-normal":
        return LogNormalDropout
    settings = RECIPES[recipe]
    bounds = (-settings.reach, settings.reach)
    posterior = SparseDropout if method == "sparse" else ARDDropout
    return functools.partial(posterior, log_variance=-10.0, cut=settings.cut, log_alpha_range=bounds)


# From table 1, the exercise's notebook, slides on ARD by Mittov, and the table of the released code of Neklyudov et al.
# (2017), whose dense LeNet-300-100 is 784-500-300-10. Kharitonov et al. (2018) train ARD with other settings.
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "sparse/lenet-300-100-molchanov2017": {"error_percent": 1.92, "compression": 68.0},
    "sparse/lenet-5-molchanov2017": {"error_percent": 0.75, "compression": 280.0},
    "sparse/lenet-300-100-deepbayes2019": {"error_percent": 1.6, "compression": 32.9},
    "ard/lenet-300-100-deepbayes2019": {"compression": 35.0},
    "log-normal/lenet-300-100-neklyudov2017": {"error_percent": 1.55},
    "log-normal/lenet-5-neklyudov2017": {"error_percent": 0.86},
}


# Few digits, so that a check runs for several epochs and the weight of the KL divergence grows.
CHECKS: Mapping[Net, Check] = {
    "lenet-300-100": Check(steps=200, train=2000, test=1000, draws=5),
    "lenet-5": Check(steps=30, train=300, test=200, draws=3),
}


_NAMES: Mapping[Method, str] = {
    "sparse": "sparse variational dropout", "ard": "ARD", "log-normal": "log-normal dropout",
}  # fmt: skip

ENTRIES = tuple(
    Entry(
        name=f"{method}/{net}-{recipe}",
        summary=f"{_NAMES[method]} on MNIST, {net}, {RECIPES[recipe].epochs} epochs",
        source=RECIPES[recipe].source,
        data="mnist" if net == "lenet-300-100" else "mnist/images",
        model=functools.partial(network, net=net, method=method, recipe=recipe),
        guide=_guide(method, recipe),
        training=functools.partial(training, net=net, recipe=recipe),
        published=PUBLISHED.get(f"{method}/{net}-{recipe}", {}),
        purpose="few weights",
        check=CHECKS[net],
    )
    for recipe in RECIPES
    for net in get_args(Net)
    for method in METHODS[recipe]
)
