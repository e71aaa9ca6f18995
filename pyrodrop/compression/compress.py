"""Compression of a trained model and guide: weights with a large noise variance alpha are set to 0, units without use go.

    w_j = E_q[w_j] [ln alpha_j < threshold],   alpha_j = Var[w_j] / E[w_j]^2, of the weight or of its input unit

Molchanov, Ashukha & Vetrov (2017), arXiv:1701.05369, section 4: at threshold 3, alpha is 20, which corresponds to a binary
drop rate of .95. A guide may have another default: `guides.LogNormalDropout` has 0, a signal-to-noise ratio of 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from pyrodrop.checks import Flag, Inputs, checked, shown
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
    model = model if all(p.device.type == "cpu" for p in model.parameters()) else copy.deepcopy(model).cpu()
    rows = examples(model, x)
    network = plain_network(model, kept_weights(guide, threshold), rows)
    return without_unused_units(network, rows) if structured else network


def kept_weights(guide: Any, threshold: float | None) -> dict[str, Tensor]:
    """The posterior mean of every weight, by site name, with pruned weights set to 0; see `keep_mask`."""
    mask = keep_mask(guide, threshold)
    return {name: torch.where(mask[name], mean, 0.0) for name, mean in guide.mean().items()}


def keep_mask(guide: Any, threshold: float | None) -> dict[str, Tensor]:
    """Boolean masks of the weights to keep, by site name.

    Args:
        guide: a guide with an alpha per weight or per input unit, which has methods ``mean`` and ``keep_mask``.
        threshold: weights with ln alpha at or above it are pruned; the guide's default if None.

    Raises:
        TypeError: the guide does not learn such an alpha.
        ValueError: `threshold` is not finite, or out of range.
    """
    if isinstance(guide, type) or not hasattr(guide, "keep_mask"):
        raise TypeError(
            "pruning needs a guide that learns an alpha per weight or per input unit: use guides.LogNormalDropout, "
            f"guides.SparseDropout or guides.ARDDropout; got {shown(guide)}"
        )
    return guide.keep_mask() if threshold is None else guide.keep_mask(threshold)  # type: ignore[no-any-return]
