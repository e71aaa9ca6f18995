"""Fully connected network.

    W_l ~ prior                                   [widths[l+1], widths[l]], sites ``layers.l.weight``
    f   = W_L g(... g(W_1 x + b_1) ...) + b_L     [N, widths[-1]]
    y   ~ likelihood(f)                           [N, ...]

Neal (1996), Bayesian Learning for Neural Networks, chapter 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.network import NetworkModel, PriorSetting
from pyrodrop.names import known

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": nn.functional.softplus,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "elu": nn.functional.elu,
}


class MLP(NetworkModel):
    """A multilayer perceptron with priors on its weights.

    Args:
        widths: inputs, hidden layers, outputs.
        activation: name of one of `ACTIVATIONS`, or a function.
        prior: prior of the weights, or a mapping from name patterns (``layers.0.*``) to priors.
        likelihood: law of y given the outputs.
        bias_prior: prior of the biases, likewise. None, as in all dropout papers, makes them parameters of the model,
            fitted as points.
        input_gain: factor of the first layer's initial weights and biases: how fast the functions that training starts
            from vary with standardised x. A periodic series wants it near the frequency of its period.

    Raises:
        ValueError: fewer than two widths, a width below 1, or an unknown activation.
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: str | Callable[[Tensor], Tensor] = "relu",
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None = None,
        input_gain: float = 1.0,
    ) -> None:
        network = Perceptron(widths, activation)
        with torch.no_grad():
            for parameter in network.layers[0].parameters():
                parameter.mul_(input_gain)
        super().__init__(
            network,
            prior=prior,
            likelihood=likelihood,
            bias_prior=bias_prior,
            in_features=widths[0],
        )


class Perceptron(nn.Module):
    """The bare network of `MLP`: an `nn.Linear` per layer, `activation` between them."""

    def __init__(self, widths: Sequence[int], activation: str | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        if len(widths) < 2 or any(not isinstance(w, int) or w < 1 for w in widths):
            raise ValueError(
                f"widths are the sizes of input, hidden layers and output, each at least 1; got {list(widths)}"
            )
        if isinstance(activation, str):
            activation = ACTIVATIONS[known(activation, ACTIVATIONS, "activation")]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            x = self.activation(layer(x))
        return last(x)
