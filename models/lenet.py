"""LeNet-5 as Caffe ships it, and LeNet-300-100, the fully connected benchmark network of the compression literature.

    conv1 [20, 1, 5, 5]   conv2 [50, 20, 5, 5]   ip1 [500, 800]   ip2 [10, 500]
    f = ip2 relu(ip1 pool(conv2 pool(conv1 x)))          x [N, 1, 28, 28], f [N, 10]

    784 - 300 - 100 - 10,   266,200 weights at ``layers.0.weight``, ``layers.1.weight``, ``layers.2.weight``

LeNet-5 has convolutions without padding, 2 x 2 max pooling, and one ReLU, after ip1. Caffe's network has no ReLU after its
convolutions; the networks of the compression papers have one (``rectified=True``). Layer names are Caffe's, so that dropout
after ip1, as in Gal & Ghahramani (2016), section 5.2, is ``drop_rate={"ip2.*": 0.5, "*": 0.0}``. LeCun et al. (1998),
Gradient-based Learning Applied to Document Recognition, https://doi.org/10.1109/5.726791. Biases of LeNet-300-100 are not
counted as weights, as in Han et al. (2015) and Molchanov et al. (2017).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from pyrodrop.checks import flag
from pyrodrop.distributions import InputUnits
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.mlp import MLP
from pyrodrop.models.network import NetworkModel
from pyrodrop.networks.assignment import PriorSetting
from pyrodrop.networks.sites import starting_from


class LeNet5(NetworkModel):
    """Two convolutions and two dense layers for digit images, x ``[N, 1, 28, 28]``, f ``[N, 10]``.

    Args:
        rectified: whether a ReLU also follows each convolution.
        input_axes: as in `NetworkModel`. With ``{"ip1.weight": InputUnits(1, size=16)}`` (`pyrodrop.distributions`), the 16
            inputs of ip1 that come from one feature map are one unit.
        prior, likelihood, bias_prior, seed: as in `MLP`; sites are ``conv1.weight``, ``conv2.weight``, ``ip1.weight`` and
            ``ip2.weight``.

    Raises:
        TypeError: `rectified` is neither True nor False, or as `MLP`.
    """

    def __init__(
        self,
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None = None,
        rectified: bool = False,
        input_axes: Mapping[str, int | InputUnits | None] | None = None,
        seed: int | None = 0,
    ) -> None:
        flag(rectified, "rectified", "whether a ReLU also follows each convolution")
        layers: list[tuple[str, nn.Module]] = []
        with starting_from(seed):
            for number, (maps, wider) in enumerate(((1, 20), (20, 50)), 1):
                layers += [(f"conv{number}", nn.Conv2d(maps, wider, 5))]
                layers += [(f"conv_relu{number}", nn.ReLU())] if rectified else []
                layers += [(f"pool{number}", nn.MaxPool2d(2))]
            layers += [
                ("flatten", nn.Flatten()),
                ("ip1", nn.Linear(800, 500)),
                ("relu", nn.ReLU()),
                ("ip2", nn.Linear(500, 10)),
            ]
            super().__init__(
                nn.Sequential(OrderedDict(layers)),
                prior=prior,
                likelihood=likelihood,
                bias_prior=bias_prior,
                in_features=(1, 28, 28),
                input_axes=input_axes,
            )


class LeNet300100(MLP):
    """An `MLP` with two hidden layers for flattened digits, x ``[N, 784]``, f ``[N, 10]``; arguments are those of `MLP`."""

    def __init__(
        self,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__(
            [784, 300, 100, 10], activation, prior=prior, likelihood=likelihood, bias_prior=bias_prior, seed=seed
        )  # fmt: skip
