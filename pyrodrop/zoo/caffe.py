"""Caffe's training settings, expressed in the parameters of this package.

Caffe minimises the mean loss of a minibatch plus decay |V|^2 / 2, where V = keep * M is the weight after a dropout layer
that divides by keep (`torch.nn.Dropout`). In terms of this package's M and of -ELBO = scale * (that objective), with
scale = N for class labels and N tau for real observations:

    length_scale^2 = decay keep scale          prior of a weight
    lr(M)          = lr / (scale keep^2)       one step of M moves keep * M as one of V would
    lr_t           = lr (1 + gamma t)^-power   Caffe's learning-rate policy ``inv``

Momentum SGD, twice the learning rate for biases, and `Xavier` fillers: V uniform with variance 1 / fan_in. One dropout mask
per row (``estimator="local"``). Jia et al. (2014), Caffe, https://arxiv.org/abs/1408.5093; src/caffe/solvers/sgd_solver.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from pyrodrop import priors
from pyrodrop.models import NetworkModel

FLAT = 1e6  # scale of a prior that represents no weight decay


def inverse_decay(step: int, *, gamma: float, power: float) -> float:
    """Factor of the base learning rate under the policy ``inv``."""
    return float((1 + gamma * step) ** -power)


def decay_prior(decay: float, keep: float, scale: float) -> priors.Gaussian:
    """The prior whose gradient in M equals that of ``decay |keep M|^2 / 2`` added to the mean loss; flat for decay 0."""
    return priors.Gaussian(scale=FLAT) if decay == 0 else priors.Gaussian(length_scale=math.sqrt(decay * keep * scale))


def rate(name: str, *, lr: float, scale: float, keep: float = 1.0) -> float:
    """The SGD learning rate of a parameter by its name, after a dropout layer that keeps a share `keep` of its inputs."""
    return 2 * lr / scale if name.endswith("bias") else lr / (scale * keep**2)


def xavier(model: NetworkModel, keep: Mapping[str, float]) -> None:
    """Initialise V = keep * M with Caffe's Xavier filler, with keep = 1 for sites not in `keep`, and biases with 0."""
    with torch.no_grad():
        for name, value in {**model.weight_sites(), **{n: model.free[n] for n in model.free}}.items():
            if value.dim() == 1:
                value.zero_()
            else:
                reach = math.sqrt(3 / value[0].numel()) / keep.get(name, 1.0)
                value.uniform_(-reach, reach)
