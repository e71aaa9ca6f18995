"""Compression of a trained model and guide, and the report on it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Annotated, Any

from torch import Tensor, nn

from pyrodrop.compression.kept import bound_of, kept_weights, uncut_weights
from pyrodrop.compression.plain import check_model, examples, plain_network
from pyrodrop.compression.report import CompressionReport, measured
from pyrodrop.compression.units import NotFollowed, without_unused_units
from pyrodrop.constraints import Flag, checked
from pyrodrop.inputs import Inputs
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

    Constant units are folded into the biases of the layers that read them, and units that no layer reads are removed
    (`pyrodrop.compression.units`).

    Args:
        model: a trained model of `pyrodrop.models`.
        guide: a trained guide with an alpha per weight, such as `guides.SparseDropout`, or per input unit, such as
            `guides.LogNormalDropout`.
        threshold: weights with ln alpha at or above it are pruned; if None, the attribute `threshold` of the guide, or 3.
        structured: whether to remove units. With False, all networks are supported and keep their shape; pruned weights
            are 0.
        x: example inputs, ``[N, ...]``, to determine the shapes of layers; models that know the shape of x need none.

    Returns:
        A module that maps x to f, both in their original units.

    Raises:
        TypeError: the guide learns no alpha per weight or unit; no unit of the network is followed; or an argument is of
            another type.
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
    model = on_cpu(model)
    rows = examples(model, x)
    network = plain_network(model, kept_weights(guide, threshold), rows)
    return smaller(network, rows) if structured else network


@exclusive()
def compression_report(
    model: Any, guide: Any, *, threshold: float | None = None, x: Inputs | None = None
) -> CompressionReport:
    """Sizes of the network of the posterior means and of the compressed one; arguments and errors as of `compress`."""
    small = compress(model, guide, threshold=threshold, x=x)
    model = on_cpu(model)
    rows: Any = examples(model, x)
    dense = plain_network(model, uncut_weights(guide), rows)
    return CompressionReport(measured(dense, rows[:1]), measured(small, rows[:1]), bound_of(guide, threshold))


def smaller(network: nn.Module, rows: Inputs | None) -> nn.Module:
    """A plain network without constant and unused units.

    Raises:
        NotFollowed: no unit is followed, or there are several inputs.
        ValueError: there are no example rows.
    """
    if rows is None:
        raise ValueError("the shape of the inputs of this network is unknown: pass example inputs as x=; got None")
    if not isinstance(rows, Tensor):
        raise NotFollowed(
            "compression needs a network with one input (structured=False works for every network and keeps its shape); "
            f"got {len(rows)}"
        )
    return without_unused_units(network, rows)


def on_cpu(model: Any) -> Any:
    """The model itself if it is on the CPU, otherwise a copy on the CPU."""
    return model if all(p.device.type == "cpu" for p in model.parameters()) else copy.deepcopy(model).cpu()
