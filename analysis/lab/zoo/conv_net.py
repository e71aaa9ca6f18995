"""The convolutional network of Kingma, Salimans & Welling (2015), figure 1b, https://arxiv.org/abs/1506.02557, section 5.2.

conv1 [32k, c, 5, 5]   conv2 [64k, 32k, 5, 5]       stride 2, padding 2: each halves height and width
dense1 [128k, .]       dense2 [128k, 128k]          out [classes, 128k]
f = out g(dense2 g(dense1 g(conv2 g(conv1 x)))),    g = softplus,   k the scale of the widths
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from pyrodrop.models import NetworkModel
from pyrodrop.networks.sites import starting_from


def conv_net(shape: tuple[int, int, int], scale: float = 1.0, *, classes: int = 10, **parts: Any) -> NetworkModel:
    """The model for images ``[N, *shape]``, from seed 0; the paper does not state kernel size and padding."""
    few, many, hidden = (int(scale * width) for width in (32, 64, 128))
    channels, height, width = shape
    with starting_from(0):
        layers = OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, few, 5, stride=2, padding=2),
            softplus1=nn.Softplus(),
            conv2=nn.Conv2d(few, many, 5, stride=2, padding=2),
            softplus2=nn.Softplus(),
            flatten=nn.Flatten(),
            dense1=nn.Linear(many * -(-height // 4) * -(-width // 4), hidden),
            softplus3=nn.Softplus(),
            dense2=nn.Linear(hidden, hidden),
            softplus4=nn.Softplus(),
            out=nn.Linear(hidden, classes),
        )
        return NetworkModel(nn.Sequential(layers), **{"bias_prior": None, "in_features": shape, **parts})
