"""Likelihoods of class labels and of yes-or-no labels.

y ~ Categorical(softmax(f))         f [N, classes], y [N] in 0 ... classes - 1; or f [N, T, classes], y [N, T]
y ~ Bernoulli(sigmoid(f))           f, y [N, D], y in {0, 1}
"""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.likelihoods.likelihood import Likelihood
from pyrodrop.scaling import Standardize


class Categorical(Likelihood):
    """Class labels; the outputs of the network are the logits.

    Labels are integers from 0 to classes - 1, or bools, of which False is class 0.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> likelihood = likelihoods.Categorical()
        >>> likelihood(torch.tensor([[0.0, 0.0], [0.0, 2.0]]), Standardize()).probs
        tensor([[0.5000, 0.5000],
                [0.1192, 0.8808]])
    """

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        return dist.Categorical(logits=output)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return output

    def as_target(self, y: Tensor) -> Tensor:
        return labels(y)

    def check(self, y: Tensor, output: Tensor, targets: Standardize) -> None:
        check_classes(self.as_target(y), output, output.shape[-1])


class Bernoulli(Likelihood):
    """Independent binary targets; the outputs of the network are the logits of 1.

    The likelihood of a network trained by `torch.nn.BCEWithLogitsLoss` (`pyrodrop.read`). y are 0 and 1, of any dtype, or
    bools.

    Example:
        >>> import torch
        >>> from pyrodrop import likelihoods
        >>> from pyrodrop.scaling import Standardize
        >>> likelihood = likelihoods.Bernoulli()
        >>> likelihood(torch.tensor([[0.0, 2.0]]), Standardize()).mean
        tensor([[0.5000, 0.8808]])
    """

    def forward(self, output: Tensor, targets: Standardize) -> TorchDistribution:
        return dist.Bernoulli(logits=output).to_event(1)

    def location(self, output: Tensor, targets: Standardize) -> Tensor:
        return output

    def as_target(self, y: Tensor) -> Tensor:
        return y if y.is_floating_point() else y.to(torch.get_default_dtype())


def check_classes(y: Tensor, output: Tensor, classes: int) -> None:
    """Check that labels have the shape of the outputs without the last axis, and lie in 0 ... classes - 1.

    Raises:
        ValueError: they do not.
    """
    want = (len(y), *output.shape[1:-1])
    if y.shape != want:
        raise ValueError(
            f"y: class labels must have shape {list(want)}, one label per row of logits; got shape {list(y.shape)}: pass "
            "y[:, 0] of one column, y.argmax(-1) of one-hot labels"
        )
    if not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise ValueError(
            f"y: class labels must lie in 0 ... {classes - 1}, for {classes} classes; got {int(y.min())} to {int(y.max())}: "
            "the first class is 0"
        )


def number_of_classes(y: Tensor) -> int:
    """The number of classes of labels 0, 1, ... of which no other description is known.

    Raises:
        ValueError: no label is 0, all are equal, or the largest would make more classes than there are labels.
    """
    low, high = int(y.min()), int(y.max())
    if low != 0 or not low < high < y.numel():
        raise ValueError(
            f"y must be labels 0 ... C - 1 of C >= 2 classes, since there is an output for each; got {y.unique().numel()} "
            f"different labels from {low} to {high}: re-code them, labels, y = torch.unique(y, return_inverse=True)"
        )
    return high + 1


def labels(y: Tensor) -> Tensor:
    """Class labels as int64.

    Raises:
        ValueError: y is neither of an integer dtype nor bools.
    """
    if y.is_floating_point() or y.is_complex():
        raise ValueError(
            f"y: class labels must be whole numbers of an integer dtype, of shape [N] for outputs [N, classes]; got "
            f"{y.dtype} of shape {tuple(y.shape)}"
        )
    return y.to(torch.long)
