"""A network in the manner of VGG, with a factor of its widths.

    64k 64k | 128k 128k | 256k 256k 256k | 512k 512k 512k | 512k 512k 512k | 512k | classes

Convolutions of 3 x 3 padded by 1 and a ReLU behind each, max pooling of 2 x 2 at every bar but the last, and two dense
layers: sites ``conv1.weight`` to ``conv13.weight``, ``dense.weight`` and ``out.weight``. Simonyan & Zisserman (2015); in
this form, with k, the network that Molchanov, Ashukha & Vetrov (2017) prune on CIFAR-10.

Theirs has batch normalisation, under which the output for one image depends on the others of its minibatch: it is no
function of image and weights, and its likelihood no product over images. It is left out here, and the weights start
as He et al. (2015) have them, N(0, 2 / fan-in), which keeps the size of the activations through all layers.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.network import NetworkModel, PriorSetting

BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG(NetworkModel):
    """Thirteen convolutions and two dense layers for images of at least 32 x 32.

    Args:
        shape: channels, height and width of an image.
        classes: number of outputs.
        scale: k, the factor of all widths.
        prior, likelihood, bias_prior: as in `MLP`.

    Raises:
        ValueError: scale times 64 is less than one map, or images smaller than 32 x 32, of which pooling leaves nothing.
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
    ) -> None:
        if int(64 * scale) < 1 or len(shape) != 3 or min(shape[1:]) < 32:
            raise ValueError(
                "a VGG has 64 scale maps, at least one, of images with channels and 32 x 32 places or more; "
                f"got scale {scale} and shape {tuple(shape)}"
            )
        maps, height, width = shape
        layers: list[tuple[str, nn.Module]] = []
        number = 0
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
        for module in network:
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                module.bias.data.zero_()  # type: ignore[union-attr]
        super().__init__(network, prior=prior, likelihood=likelihood, bias_prior=bias_prior, in_features=tuple(shape))
