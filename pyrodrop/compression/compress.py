"""Compression of a trained model and guide."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Annotated, Any

from torch import nn

from pyrodrop.checks import Flag, Inputs, checked
from pyrodrop.compression.kept import kept_weights
from pyrodrop.compression.plain import check_model, examples, plain_network
from pyrodrop.compression.units import without_unused_units
from pyrodrop.threads import exclusive


@checked
@exclusive()
def compress(
    model: Any,
    guide: Callable[..., Any],
    *,
    threshold: float | None = None,
    structured: Annotated[bool, Flag("whether to remove units")] = True,
    x: Inputs | None = None,
) -> nn.Module:
    """The network with only the weights that are kept, as a plain PyTorch module on the CPU; see `Fit.compress`.

    Args:
        model: a trained model of `pyrodrop.models`.
        guide: a trained guide with an alpha per weight, such as `guides.SparseDropout`, or per input unit, such as
            `guides.LogNormalDropout`.
        threshold, structured, x: as of `Fit.compress`, without training data.

    Returns:
        A module that maps x to f, both in their original units.

    Raises:
        TypeError: as `Fit.compress`, or an argument is of another type.
        ValueError: an argument is out of range, or x is needed.

    Example:
        >>> import torch
        >>> from pyrodrop import compression, guides, likelihoods, models, priors
        >>> _ = torch.manual_seed(0)
        >>> model = models.MLP([4, 8, 1], prior=priors.ARD("weight"), likelihood=likelihoods.Gaussian())
        >>> guide = guides.SparseDropout(model)
        >>> with torch.no_grad():
        ...     guide.log_variance["layers.0.weight"][2:] = 5.0  # the noise of six hidden units, as if trained
        >>> network = compression.compress(model, guide)
        >>> [tuple(parameter.shape) for parameter in network.parameters()]
        [(2, 4), (2,), (1, 2), (1,)]
        >>> network(torch.zeros(5, 4)).shape
        torch.Size([5, 1])
    """
    check_model(model)
    model = _on_cpu(model)
    rows = examples(model, x)
    network = plain_network(model, kept_weights(guide, threshold), rows)
    return without_unused_units(network, rows) if structured else network


def _on_cpu(model: Any) -> Any:
    """The model itself if it is on the CPU, otherwise a copy on the CPU."""
    return model if all(p.device.type == "cpu" for p in model.parameters()) else copy.deepcopy(model).cpu()
