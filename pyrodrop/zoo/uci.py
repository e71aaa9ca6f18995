"""MC dropout on the UCI regression sets, Gal & Ghahramani (2016), table 1.

One hidden layer of ReLU units, y standardised with the training rows, the noise precision tau in raw units of y. Initial
values are those of Keras: weights uniform as in Glorot & Bengio (2010), biases 0. Keras's dropout divides the kept units by
p = 1 - drop_rate, so that its weight is p M. The objective of the released code,

    mean (y - f)^2 / s^2 + l^2 p / (2 N tau) |p M|^2          s the scale of y: the loss is standardised, tau is not

is the negative ELBO (times 2 / (N tau s^2)) under the prior M ~ N(0, 2 / (l p s)^2): `released_prior`. The paper's objective
has the prior N(0, 1 / l^2). Biases have no penalty. https://github.com/yaringal/DropoutUncertaintyExps.

The code that was committed with the results of 2016 is for the Keras of August to October 2015, which did not yet divide by
p: there M has the start and the penalty that p M has here. In the re-run of 2018 Adam's learning rate is that of p M,
and here, as in 2016, that of M. ``analysis/lab/results/README.md`` compares the three.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from pyrodrop import likelihoods, priors
from pyrodrop.data import Dataset
from pyrodrop.guides import BernoulliDropout
from pyrodrop.models import NetworkModel
from pyrodrop.models.mlp import Perceptron
from pyrodrop.zoo.entry import Check, Entry, settings

LR, BATCH = 1e-3, 32


@dataclass(frozen=True)
class Setting:
    """Training settings of one data set.

    Attributes:
        precision: tau of the 2016 table, in raw units of y.
        drop_rate: drop rate of the 2016 table.
        length_scale: prior length scale of the 2016 table.
        precisions: values of the grid search of 2018.
        rmse, log_density: published mean and standard error over the splits; rmse is of the mean of 10,000 passes. One split
            has no error.
        hidden: number of hidden units.
        epochs: number of epochs, in tens for 2016 and in hundreds for 2018.
    """

    precision: float
    drop_rate: float
    length_scale: float
    precisions: tuple[float, ...]
    rmse: tuple[float, float | None]
    log_density: tuple[float, float | None]
    hidden: int = 50
    epochs: int = 40


# The table of 2016 has here more digits; its standard errors divide by n - 1, those printed with it by n.
SETTINGS = {
    "boston": Setting(0.159707652696, 0.05, 1e-2, (0.1, 0.15, 0.2), (2.97351, 0.194859), (-2.46004, 0.0568416)),
    "concrete": Setting(0.0557319157756, 0.01, 1e-2, (0.025, 0.05, 0.075), (5.2299, 0.121099), (-3.03891, 0.0208758)),
    "energy": Setting(0.427114830213, 0.05, 1e-2, (0.25, 0.5, 0.75), (1.66341, 0.0443804), (-1.98527, 0.020281)),
    "kin8nm": Setting(192.482910156, 0.05, 1e-2, (150.0, 200.0, 250.0), (0.0964723, 0.000683555), (0.950895, 0.00589336)),
    "naval": Setting(42173.5152106, 0.05, 1.0, (30000.0, 40000.0, 50000.0), (0.00546727, 7.41195e-05), (3.80458, 0.011363)),
    "power": Setting(0.0871109017617, 0.005, 1e-2, (0.05, 0.1, 0.15), (4.02211, 0.0421529), (-2.79524, 0.0106531)),
    "protein": Setting(
        0.0644419184588, 0.005, 1e-2, (0.025, 0.05, 0.075), (4.35551, 0.0217656), (-2.8912, 0.00482675), 100, 20
    ),
    "wine": Setting(2.95833720839, 0.05, 1e-2, (2.5, 3.0, 3.5), (0.620159, 0.00897017), (-0.933418, 0.0145945)),
    "yacht": Setting(0.541869562034, 0.01, 0.1, (0.25, 0.5, 0.75), (1.10925, 0.0872114), (-1.55406, 0.0276105)),
    "year": Setting(0.0128363911266, 0.05, 1e-4, (), (8.84914, None), (-3.58817, None), hidden=100),
}  # fmt: skip


def keras_start(widths: list[int], keep: float = 1.0) -> Perceptron:
    """A network with Keras's initialisation, for weights after a dropout layer that keeps a share `keep` of its inputs."""
    network = Perceptron(widths, "relu")
    with torch.no_grad():
        for layer in network.layers:
            torch.nn.init.xavier_uniform_(layer.weight, gain=1 / keep)  # type: ignore[arg-type]
            torch.nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return network


def released_prior(data: Dataset, length_scale: float, keep: float) -> priors.Gaussian:
    """The prior under which the penalty of the released code is the KL divergence; see the module docstring."""
    assert data.targets is not None
    return priors.Gaussian(math.sqrt(2) / (length_scale * keep * float(data.targets.scale)))


def _model(data: Dataset, *, setting: Setting) -> NetworkModel:
    keep, width = 1 - setting.drop_rate, data.x.shape[1]
    return NetworkModel(
        keras_start([width, setting.hidden, 1], keep),
        prior=released_prior(data, setting.length_scale, keep),
        likelihood=likelihoods.Gaussian(setting.precision),
        bias_prior=None,
        in_features=width,
    )


ENTRIES = tuple(
    Entry(
        name=f"uci/{name}",
        summary=f"MC dropout on UCI {name}, relu, 1 x {of.hidden}, drop rate {of.drop_rate:g}, all splits",
        source="Gal & Ghahramani (2016), table 1",
        data=f"uci/{name}",
        model=functools.partial(_model, setting=of),
        guide=functools.partial(BernoulliDropout, drop_rate=of.drop_rate, mask_input=True),
        training=functools.partial(settings, epochs=10 * of.epochs, batch_size=BATCH, lr=LR, estimator="local"),
        published={"rmse": of.rmse[0], "log_density": of.log_density[0]},
        published_errors={"rmse": of.rmse[1], "log_density": of.log_density[1]},  # type: ignore[dict-item]
        purpose="regression of a table",
        check=Check(steps=300, splits=2),
        draws=1000,
    )
    for name, of in SETTINGS.items()
    if name != "year"
)
