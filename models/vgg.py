"""A VGG-like network with a scale factor for its widths.

    64k 64k | 128k 128k | 256k 256k 256k | 512k 512k 512k | 512k 512k 512k | 512k | classes

3 x 3 convolutions with padding 1, each followed by a ReLU, 2 x 2 max pooling after each of the five blocks of convolutions,
and two dense layers. Sites are ``conv1.weight`` to ``conv13.weight``, ``dense.weight`` and ``out.weight``. Simonyan &
Zisserman (2015), https://arxiv.org/abs/1409.1556; with the factor k it is the network that Molchanov, Ashukha & Vetrov
(2017), https://arxiv.org/abs/1701.05369, prune on CIFAR-10.

Their network has batch normalisation, which makes the output for one image depend on the other images of its minibatch:
the output is then no function of image and weights, and the likelihood does not factorise over images. This network has no
batch normalisation. Weights are initialised from N(0, 2 / fan-in), He et al. (2015), which keeps the scale of the
activations constant through the layers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn

from pyrodrop.checks import count, counts, real
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.network import NetworkModel
from pyrodrop.networks.assignment import PriorSetting
from pyrodrop.networks.starts import starting_from

BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG(NetworkModel):
    """Thirteen convolutions and two dense layers for images of at least 32 x 32 pixels.

    Args:
        shape: channels, height and width of an image. Inputs x are ``[N, *shape]``.
        classes: number of outputs; f is ``[N, classes]``.
        scale: k, the factor of all widths.
        prior, likelihood, bias_prior, seed: as in `MLP`.

    Raises:
        ValueError: `scale` leaves the first convolution without a channel, or the images are smaller than 32 x 32 pixels,
            so that five poolings leave none.
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
        scale = real(scale, "scale", "the factor of all widths", above=0)
        if int(64 * scale) < 1 or min(shape[1:]) < 32:
            raise ValueError(
                "VGG needs a scale of at least 1/64, which gives the first convolution one channel, and images of shape "
                f"(channels, height, width) with at least 32 x 32 pixels; got scale {scale} and shape {tuple(shape)}"
            )
        maps, height, width = shape
        layers: list[tuple[str, nn.Module]] = []
        number = 0
        with starting_from(seed):
            for block, sizes in enumerate(BLOCKS, 1):
                for size in sizes:
                    number += 1
                    wider = int(scale * size)
                    layers += [(f"conv{number}", nn.Conv2d(maps, wider, 3, padding=1)), (f"relu{number}", nn.ReLU())]
                    maps = wider
                layers += [(f"pool{block}", nn.MaxPool2d(2))]
            hidden = int(512 * scale)
            layers += [
                ("flatten", nn.Flatten()),
                ("dense", nn.Linear(maps * (height // 32) * (width // 32), hidden)),
                ("relu", nn.ReLU()),
                ("out", nn.Linear(hidden, classes)),
            ]
            network = nn.Sequential(OrderedDict(layers))
            VGG._arrange(dict(network.named_parameters()))
            super().__init__(
                network, prior=prior, likelihood=likelihood, bias_prior=bias_prior, in_features=tuple(shape)
            )

    @staticmethod
    def _arrange(values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            if name.endswith("weight"):
                nn.init.kaiming_normal_(value, nonlinearity="relu")
            else:
                nn.init.zeros_(value)
