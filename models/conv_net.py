"""The convolutional network of Kingma, Salimans & Welling (2015), figure 1b, for small images."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from pyrodrop.checks import count, counts, real
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.network import NetworkModel
from pyrodrop.networks.assignment import PriorSetting
from pyrodrop.networks.sites import starting_from


class ConvNet(NetworkModel):
    """Two strided convolutions and two hidden dense layers.

        conv1 [32k, c, 5, 5]   conv2 [64k, 32k, 5, 5]       stride 2, padding 2: each halves height and width
        dense1 [128k, .]       dense2 [128k, 128k]          out [classes, 128k]
        f = out g(dense2 g(dense1 g(conv2 g(conv1 x)))),    g = softplus

    k is the scale of the widths. The paper does not state kernel size and padding; the values above are our choice.

    References:
        Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 5.2.

    Args:
        shape: channels, height and width of an image: (3, 32, 32) for CIFAR-10, (1, 28, 28) for MNIST. Inputs x are
            ``[N, *shape]``.
        classes: number of outputs; f is ``[N, classes]``.
        scale: k, the factor of all widths.
        prior, likelihood, bias_prior, seed: as in `MLP`; sites are ``conv1.weight``, ``conv2.weight``, ``dense1.weight``,
            ``dense2.weight`` and ``out.weight``.

    Raises:
        ValueError: `scale` leaves the first convolution without a channel, or a size in `shape` or `classes` is below 1.
        TypeError: `shape` does not consist of three whole numbers, or another argument is of another type.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 32, 32),
        classes: int = 10,
        scale: float = 1.0,
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None = None,
        seed: int | None = 0,
    ) -> None:
        shape = counts(shape, "shape", "channels, height and width of an image", length=3)  # type: ignore[assignment]
        count(classes, "classes", "the number of outputs")
        k = real(scale, "scale", "the factor of all widths", above=0)
        few, many, hidden = (int(k * width) for width in (32, 64, 128))
        if few < 1:
            raise ValueError(
                "ConvNet needs a scale of at least 1/32, which gives the first convolution one channel; got scale "
                f"{scale}"
            )
        channels, height, width = shape
        area = -(-height // 4) * -(-width // 4)
        with starting_from(seed):
            layers = OrderedDict[str, nn.Module](
                conv1=nn.Conv2d(channels, few, 5, stride=2, padding=2),
                softplus1=nn.Softplus(),
                conv2=nn.Conv2d(few, many, 5, stride=2, padding=2),
                softplus2=nn.Softplus(),
                flatten=nn.Flatten(),
                dense1=nn.Linear(many * area, hidden),
                softplus3=nn.Softplus(),
                dense2=nn.Linear(hidden, hidden),
                softplus4=nn.Softplus(),
                out=nn.Linear(hidden, classes),
            )
            super().__init__(
                nn.Sequential(layers),
                prior=prior,
                likelihood=likelihood,
                bias_prior=bias_prior,
                in_features=tuple(shape),
            )
