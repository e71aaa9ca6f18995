"""Networks of the entries with their initial values and priors, and rules for their learning rates.

Caffe minimises the mean loss of a minibatch plus decay |V|^2 / 2, where V = keep * M is the weight after a dropout layer
that divides by keep (`torch.nn.Dropout`). In terms of this package's M and of -ELBO = scale * (that objective), with
scale = N for class labels:

    length_scale^2 = decay keep scale          prior of a weight
    lr(M)          = lr / (scale keep^2)       one step of M moves keep * M as one of V would
    lr_t           = lr (1 + gamma t)^-power   Caffe's learning-rate policy ``inv``

Momentum SGD, twice the learning rate for biases, and `Xavier` fillers: V uniform with variance 1 / fan_in. One dropout mask
per row (``estimator="local"``). Jia et al. (2014), Caffe, https://arxiv.org/abs/1408.5093; src/caffe/solvers/sgd_solver.cpp.

Keras starts from weights uniform as in Glorot & Bengio (2010) and biases 0. Its dropout divides the kept units by
p = 1 - drop_rate, so that its weight is p M. The objective of the code for the UCI sets,

    mean (y - f)^2 / s^2 + l^2 p / (2 N tau) |p M|^2          s the scale of y: the loss is standardised, tau is not

is the negative ELBO (times 2 / (N tau s^2)) under the prior M ~ N(0, 2 / (l p s)^2): `released_prior`. The paper's objective
has the prior N(0, 1 / l^2). Biases have no penalty. https://github.com/yaringal/DropoutUncertaintyExps.

The code that was committed with the results of 2016 is for the Keras of August to October 2015, which did not yet divide by
p: there M has the start and the penalty that p M has here. In the re-run of 2018 Adam's learning rate is that of p M,
and here, as in 2016, that of M. ``analysis/lab/results/README.md`` compares the three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from pyrodrop import likelihoods, priors
from pyrodrop.data import Dataset
from pyrodrop.distributions import InputUnits
from pyrodrop.models import MLP, LeNet5, LeNet300100, NetworkModel
from pyrodrop.models.mlp import Perceptron
from pyrodrop.priors import Prior

FLAT = 1e6  # scale of a prior that represents no weight decay
DECAY, KEEP, DROPPED = 5e-4, 0.5, "ip2.weight"  # of Caffe's LeNet, and its weight after the dropout layer
MAPS = {"ip1.weight": InputUnits(1, size=16)}  # the 4 x 4 pixels of one map of conv2, which goes whole


def late(step: int, *, steps: int) -> float:
    """Factor of the learning rate: 1 for the first half of the steps, then linear to 0."""
    return min(1.0, 2 * (1 - step / steps))


def straight(step: int, *, steps: int) -> float:
    """Factor of the learning rate, linear from 1 to 0."""
    return 1 - step / steps


def stairs(step: int, *, steps: int) -> float:
    """Factor of the learning rate, multiplied by 0.2 after shares 0.5, 0.6, 0.7 and 0.8 of the steps."""
    return float(0.2 ** sum(step / steps >= milestone for milestone in (0.5, 0.6, 0.7, 0.8)))


def weight_by_epoch(epoch: float) -> float:
    """Weight of the KL divergence: 0.02 more in every epoch, up to 1."""
    return min(1.0, 0.02 * (math.floor(epoch) + 1))


def over(factor: Callable[..., float]) -> Callable[[int], Callable[[int], float]]:
    """Makes the schedule with this factor for a number of steps."""
    return lambda steps: partial(factor, steps=steps)


def inverse_decay(step: int, *, gamma: float, power: float) -> float:
    """Factor of the base learning rate under Caffe's policy ``inv``."""
    return float((1 + gamma * step) ** -power)


def learning_rate(name: str, *, lr: float, scale: float, keep: float, dropped: Sequence[str]) -> float:
    """Caffe's SGD learning rate of a parameter by its name; the names of weights after a dropout layer end in `dropped`."""
    if name.endswith("bias"):
        return 2 * lr / scale
    return lr / (scale * (keep if name.endswith(tuple(dropped)) else 1.0) ** 2)


def faster_noise(parameter: str) -> float:
    """The learning rate of a parameter of log-normal dropout: the gradient of the noise is small beside its own variance."""
    return 5e-2 if "noise_" in parameter else 1e-3


def decay_prior(decay: float, keep: float, scale: float) -> priors.Gaussian:
    """The prior whose gradient in M equals that of ``decay |keep M|^2 / 2`` added to the mean loss."""
    return priors.Gaussian(length_scale=math.sqrt(decay * keep * scale))


def xavier(model: NetworkModel, keep: Mapping[str, float]) -> NetworkModel:
    """Initialise V = keep * M with Caffe's Xavier filler, with keep = 1 for sites not in `keep`, and biases with 0."""
    with torch.no_grad():
        for name, value in {**model.weight_sites(), **{n: model.free[n] for n in model.free}}.items():
            if value.dim() == 1:
                value.zero_()
            else:
                reach = math.sqrt(3 / value[0].numel()) / keep.get(name, 1.0)
                value.uniform_(-reach, reach)
    return model


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


def keras_network(
    data: Dataset, *, hidden: int, drop_rate: float, length_scale: float, precision: float
) -> NetworkModel:
    """One hidden layer for a UCI set."""
    width, keep = data.x.shape[1], 1 - drop_rate
    return NetworkModel(
        keras_start([width, hidden, 1], keep),
        prior=released_prior(data, length_scale, keep),
        likelihood=likelihoods.Gaussian(precision),
        bias_prior=None,
        in_features=width,
    )


@torch.no_grad()
def series(data: Dataset, *, widths: Sequence[int], activation: str, gain: float, scale: float) -> NetworkModel:
    """A network for a series with a learned precision of the noise; `gain` spreads the kinks of its units over the data.

    The first weights are multiplied by it. Each w.x + b is 0 at a uniform point of the range of a standardised uniform x.
    """
    model = MLP(
        widths,
        activation,
        prior={"layers.0.*": priors.Gaussian(scale=gain), "*": priors.Gaussian(scale=scale)},
        likelihood=likelihoods.Gaussian(precision=(0.1 * float(data.y.std())) ** -2, learned=True),
        seed=None,
    )
    weight, reach = model.weight_sites()["layers.0.weight"].mul_(gain), math.sqrt(3)
    model.free["layers.0.bias"].copy_(-(weight * torch.empty_like(weight).uniform_(-reach, reach)).sum(1))
    return model


def caffe_lenet(data: Dataset) -> NetworkModel:
    """Caffe's LeNet with its weight decay as prior."""
    whole = decay_prior(DECAY, 1.0, len(data))
    prior = {DROPPED: decay_prior(DECAY, KEEP, len(data)), "*": whole}
    model = LeNet5(prior=prior, likelihood=likelihoods.Categorical(), bias_prior=whole, seed=None)
    return xavier(model, {DROPPED: KEEP})


def lenet(data: Dataset, *, prior: Callable[[], Prior] | None) -> NetworkModel:
    """LeNet-5 with a prior, by default that of Caffe's weight decay, and PyTorch's initial weights."""
    chosen = decay_prior(DECAY, 1.0, len(data)) if prior is None else prior()
    return LeNet5(prior=chosen, likelihood=likelihoods.Categorical(), seed=None)


def digits(data: Dataset, *, width: int, prior: Callable[[], Prior]) -> NetworkModel:
    """Three hidden layers of this width for MNIST."""
    return MLP([784, width, width, width, 10], prior=prior(), likelihood=likelihoods.Categorical(), seed=None)


def sparse_lenet(data: Dataset, *, net: str, method: str, spread: float) -> NetworkModel:
    """LeNet-300-100, or LeNet-5 with ReLU units after its convolutions; initial weights N(0, spread^2), biases 0."""
    prior, likelihood = priors.ARD() if method == "ard" else priors.LogUniform(), likelihoods.Categorical()
    if net == "lenet-300-100":
        model: NetworkModel = LeNet300100(prior=prior, likelihood=likelihood, seed=None)
    else:
        axes = MAPS if method == "log-normal" else None
        model = LeNet5(rectified=True, input_axes=axes, prior=prior, likelihood=likelihood, seed=None)
    with torch.no_grad():
        for weight in model.weight_sites().values():
            weight.normal_(0, spread)
        for bias in model.free.parameters():
            bias.zero_()
    return model


def toy(data: Dataset, *, scales: Sequence[float]) -> NetworkModel:
    """One input: `scales` are of the weights and biases of the first and the last layer, then the precision of the noise."""
    first, first_bias, last, last_bias, precision = scales
    return MLP(
        [1, 50, 1],
        "tanh",
        prior={"layers.0.weight": priors.Gaussian(first), "layers.1.weight": priors.Gaussian(last)},
        bias_prior={"layers.0.bias": priors.Gaussian(first_bias), "layers.1.bias": priors.Gaussian(last_bias)},
        likelihood=likelihoods.Gaussian(precision),
        seed=None,
    )
