"""Fully connected network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from pyrodrop.checks import counts, instance, known
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models.network import NetworkModel
from pyrodrop.networks.assignment import PriorSetting
from pyrodrop.networks.sites import starting_from

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

        W_l ~ prior                                [widths[l], widths[l-1]], sites ``layers.0.weight``, ... for l = 1, ..., L
        f   = W_L g(... g(W_1 x + b_1) ...) + b_L  [N, widths[-1]]
        y   ~ likelihood(f)                        [N, ...]

    References:
        Neal (1996), Bayesian Learning for Neural Networks, chapter 2, https://doi.org/10.1007/978-1-4612-0745-0.

    Args:
        widths: sizes of the input, the hidden layers and the output.
        activation: name of one of `ACTIVATIONS`, or a function of a tensor.
        prior: prior of the weights, or a mapping from name patterns (``layers.0.*``) to priors.
        likelihood: distribution of y given the outputs, see `pyrodrop.likelihoods`.
        bias_prior: prior of the biases, or a mapping from name patterns to priors. With None, as in the dropout papers,
            biases are trained as point estimates.
        seed: seed of the initial weights and biases, which leaves torch's generator as it is. None draws them from torch's
            generator, as the modules of `torch.nn` do.

    Shapes:
        x ``[N, widths[0]]``; f ``[N, widths[-1]]``.

    Raises:
        ValueError: fewer than two widths, a width below 1, an unknown activation, a negative `seed`, or a pattern that
            matches no parameter.
        TypeError: an argument is of another type, such as a width that is no whole number.
        RuntimeError: `seed` is a number and another thread is in one call for ten minutes: see `pyrodrop.threads`.

    Example:
        >>> import torch, pyrodrop
        >>> model = pyrodrop.models.MLP(
        ...     [2, 16, 1], prior=pyrodrop.priors.Gaussian(), likelihood=pyrodrop.likelihoods.Gaussian(precision=10.0)
        ... )
        >>> [(name, tuple(w.shape)) for name, w in model.weight_sites().items()]
        [('layers.0.weight', (16, 2)), ('layers.1.weight', (1, 16))]
        >>> model(torch.zeros(5, 2)).shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: str | Callable[[Tensor], Tensor] = "relu",
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None = None,
        seed: int | None = 0,
    ) -> None:
        with starting_from(seed):
            super().__init__(
                Perceptron(widths, activation),
                prior=prior,
                likelihood=likelihood,
                bias_prior=bias_prior,
                in_features=widths[0],
            )


class Perceptron(nn.Module):
    """The plain `nn.Module` of `MLP`: one `nn.Linear` per layer with `activation` between layers."""

    def __init__(self, widths: Sequence[int], activation: str | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        widths = counts(widths, "widths", "the sizes of input, hidden layers and output")
        if len(widths) < 2:
            raise ValueError(
                "widths must be at least two whole numbers, the sizes of input, hidden layers and output; got "
                f"{list(widths)}"
            )
        if isinstance(activation, str):
            activation = ACTIVATIONS[known(activation, ACTIVATIONS, "activation")]
        what = f"one of {', '.join(ACTIVATIONS)} or a function of a tensor"
        if isinstance(activation, type):
            raise TypeError(
                f"activation must be {what}; got the class {activation.__name__}: {activation.__name__}() is one"
            )
        instance(activation, Callable, "activation", what)
        self.layers: nn.ModuleList = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self.layers
        for layer in hidden:
            x = self.activation(layer(x))
        return last(x)
