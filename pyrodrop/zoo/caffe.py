"""Caffe's way to train, in the terms of this package.

Its networks minimise the mean loss of a minibatch plus decay |V|^2 / 2, where V = keep * M is the weight behind a dropout
layer that divides by keep (`torch.nn.Dropout`). In terms of this package's M and of -ELBO = scale * (that objective), with
scale = N for class labels and N tau for real observations:

    length_scale^2 = decay keep scale          prior of a weight
    lr(M)          = lr / (scale keep^2)       one step of M moves keep * M as one of V would
    lr_t           = lr (1 + gamma t)^-power   its policy ``inv``

Momentum SGD, biases at twice the rate, `Xavier` fillers: uniform with variance 1 / fan_in. A mask a row (``local``).
Jia et al. (2014), Caffe; src/caffe/solvers/sgd_solver.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from pyrodrop import priors
from pyrodrop.models import NetworkModel

FLAT = 1e6  # scale of a prior that stands for no weight decay


def inverse_decay(step: int, *, gamma: float, power: float) -> float:
    """The policy ``inv``, as a factor of the base rate."""
    return float((1 + gamma * step) ** -power)


def decay_prior(decay: float, keep: float, scale: float) -> priors.Gaussian:
    """The prior whose pull on M is that of ``decay |keep M|^2 / 2`` beside the mean loss; one without pull for decay 0."""
    return priors.Gaussian(scale=FLAT) if decay == 0 else priors.Gaussian(length_scale=math.sqrt(decay * keep * scale))


def rate(name: str, *, lr: float, scale: float, keep: float = 1.0) -> float:
    """The SGD rate of a parameter of this name, behind a layer that keeps `keep` of its inputs."""
    return 2 * lr / scale if name.endswith("bias") else lr / (scale * keep**2)


def xavier(model: NetworkModel, keep: Mapping[str, float]) -> None:
    """Caffe's start of V = keep * M, for the sites named in `keep` and 1 for the others; biases 0."""
    with torch.no_grad():
        for name, value in {**model.weight_sites(), **{n: model.free[n] for n in model.free}}.items():
            if value.dim() == 1:
                value.zero_()
            else:
                reach = math.sqrt(3 / value[0].numel()) / keep.get(name, 1.0)
                value.uniform_(-reach, reach)
