"""Networks of a line each: chains of layers of PyTorch, and models of this package."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case, Refused


class WithFixed(nn.Module):
    """A network plus a copy of it whose weights do not train (Osband et al. 2018, arXiv:1806.03335)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.fixed = net, copy.deepcopy(net).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) + self.fixed(-x)  # type: ignore[no-any-return]


CASES = {
    "batch_norm_cnn": Case(
        about="A convolutional classifier with batch normalisation.",
        network=lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        x=lambda: torch.randn(8, 1, 6, 6),
        likelihood=likelihoods.Categorical,
        drop_rate={"0.*": 0.0, "*": 0.3},  # an image without its one channel would meet the ReLU at its kink
        rows=True,
        refused=(Refused("in training mode", estimator="local per_example"),),
    ),
    "batch_norm_mlp": Case(
        about="A fully connected network with batch normalisation, in training mode as it is built.",
        network=lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)),
        x=lambda: torch.randn(8, 3) * 2 + 1,
        refused=(Refused("in training mode", estimator="local per_example"),),
    ),
    "batch_norm_mlp_eval": Case(
        about="Batch normalisation in evaluation mode: its running statistics stay as they are.",
        network=lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).eval(),
        x=lambda: torch.randn(8, 3) * 2 + 1,
    ),
    "classifier": Case(
        about="A classifier: fully connected, with logits for outputs.",
        network=lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)),
        x=lambda: torch.randn(6, 3),
        likelihood=likelihoods.Categorical,
    ),
    "conv1d": Case(
        about="A convolution over a length.",
        network=lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)),
        x=lambda: torch.randn(6, 2, 5),
        rows=True,
    ),
    "conv3d": Case(
        about="A convolution over a volume.",
        network=lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)),
        x=lambda: torch.randn(6, 1, 3, 3, 3),
        rows=True,
    ),
    "conv_transpose_first": Case(
        about="A transposed convolution first.",
        network=lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)),
        x=lambda: torch.randn(6, 2, 2, 2),
        rows=True,
    ),
    "conv_transpose_grouped": Case(
        about="A transposed convolution in groups, behind a convolution.",
        network=lambda: nn.Sequential(
            nn.Conv1d(2, 4, 2), nn.Tanh(), nn.ConvTranspose1d(4, 4, 2, groups=2), nn.Flatten(), nn.Linear(20, 2)
        ),
        x=lambda: torch.randn(6, 2, 5),
        rows=True,
    ),
    "depthwise_conv": Case(
        about="A depthwise and a pointwise convolution: a coin for each channel.",
        network=lambda: nn.Sequential(
            nn.Conv2d(3, 6, 2, groups=3), nn.ReLU(), nn.Conv2d(6, 2, 1), nn.Flatten(), nn.Linear(8, 2)
        ),
        x=lambda: torch.randn(6, 3, 3, 3),
        rows=True,
    ),
    "dilated_conv": Case(
        about="A dilated, strided convolution with circular padding.",
        network=lambda: nn.Sequential(
            nn.Conv2d(1, 2, 2, dilation=2, stride=2, padding=1, padding_mode="circular"),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(18, 2),
        ),
        x=lambda: torch.randn(6, 1, 5, 5),
        rows=True,
    ),
    "dropout_zero": Case(
        about="nn.Dropout(0.0) is no noise.",
        network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.0), nn.Linear(5, 2)),
        x=lambda: torch.randn(6, 3),
    ),
    "embedding_bag": Case(
        about="nn.EmbeddingBag, the mean over the words of an example.",
        network=lambda: nn.Sequential(nn.EmbeddingBag(7, 4), nn.Tanh(), nn.Linear(4, 2)),
        x=lambda: torch.randint(0, 7, (6, 5)),
    ),
    "flatten_first": Case(
        about="Images, flattened first.",
        network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)),
        x=lambda: torch.randn(6, 1, 3, 4),
    ),
    "group_norm": Case(
        about="Group normalisation.",
        network=lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)
        ),
        x=lambda: torch.randn(6, 1, 5, 5),
        rows=True,
    ),
    "grouped_conv": Case(
        about="A convolution in groups.",
        network=lambda: nn.Sequential(nn.Conv2d(4, 6, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)),
        x=lambda: torch.randn(6, 4, 3, 3),
        rows=True,
    ),
    "image_output": Case(
        about="A picture for every example: [N, H, W].",
        network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6), nn.Unflatten(1, (2, 3))),
        x=lambda: torch.randn(6, 3),
    ),
    "in_place_relu": Case(
        about="A ReLU that overwrites its input.",
        network=lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, 2), nn.ReLU(inplace=True)),
        x=lambda: torch.randn(6, 3),
    ),
    "instance_norm": Case(
        about="Instance normalisation with weights of its own.",
        network=lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)
        ),
        x=lambda: torch.randn(6, 1, 5, 5),
        rows=True,
    ),
    "last_layer": Case(
        about="Last-layer inference: the other weights have no prior and are trained as point estimates.",
        network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
        x=lambda: torch.randn(6, 3),
        scales={"2.*": 0.7, "*": None},
    ),
    "layer_norm": Case(
        about="Layer normalisation.",
        network=lambda: nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2)),
        x=lambda: torch.randn(6, 3),
    ),
    "lenet": Case(
        about="LeNet, at its smallest.",
        network=lambda: nn.Sequential(
            *(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AvgPool2d(2)),
            *(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten()),
            *(nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3)),
        ),
        x=lambda: torch.randn(6, 1, 8, 8),
        likelihood=likelihoods.Categorical,
        rows=True,
    ),
    "mlp": Case(
        about="A fully connected network.",
        network=lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)),
        x=lambda: torch.randn(6, 3),
    ),
    "prelu": Case(
        about="PReLU: an activation with a weight.",
        network=lambda: nn.Sequential(nn.Linear(3, 5), nn.PReLU(5), nn.Linear(5, 2)),
        x=lambda: torch.randn(6, 3),
    ),
    "prior_function": Case(
        about="A network with a fixed random function added to it.",
        network=lambda: WithFixed(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))),
        x=lambda: torch.randn(6, 3),
    ),
    "spectral_norm": Case(
        about="A layer under torch.nn.utils.parametrizations.spectral_norm: its weight is no parameter, which is refused.",
        network=lambda: nn.Sequential(spectral_norm(nn.Linear(3, 5)), nn.Tanh(), nn.Linear(5, 2)),
        x=lambda: torch.randn(6, 3),
        refused=(Refused("a prior applies to a layer's weight itself"),),
    ),
    "token_outputs": Case(
        about="An output for every token: [N, T, D] in and out.",
        network=lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
        x=lambda: torch.randn(6, 4, 3),
        rows=True,
    ),
}
