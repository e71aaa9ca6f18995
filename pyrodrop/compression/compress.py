"""Compression of a trained model and guide, and the report on it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from torch import Tensor, nn

from pyrodrop.arguments import instance
from pyrodrop.compression.chain import NoChain, chain_of
from pyrodrop.compression.kept import bound_of, kept_weights, uncut_weights
from pyrodrop.compression.layout import Layout, laid_out
from pyrodrop.compression.narrow import narrowed
from pyrodrop.compression.report import CompressionReport, measure
from pyrodrop.compression.steps import Step, network_of
from pyrodrop.compression.units import without_dead_units
from pyrodrop.compression.whole import check_model, whole_network
from pyrodrop.constraints import Flag, Real, checked
from pyrodrop.data import Dataset
from pyrodrop.inputs import Inputs, mapped
from pyrodrop.threads import exclusive


@checked
@exclusive()
def compress(
    model: Any,
    guide: Callable[..., Any],
    *,
    threshold: float | None = None,
    structured: Annotated[bool, Flag("whether to remove units")] = True,
    layout: Layout = "fastest",
    x: Inputs | None = None,
) -> nn.Module:
    """The network of the weights that are kept, as a plain PyTorch module on the CPU; see `Fit.compress`.

    Removes units whose incoming or outgoing weights are all pruned, folds constant units into the next layer's bias, and
    picks the fastest layout for each layer. Of a network that is not a chain of layers it removes the units that no layer
    reads.

    Args:
        model: a trained model of `pyrodrop.models`.
        guide: a trained guide with an alpha per weight, such as `guides.SparseDropout`, or per input unit, such as
            `guides.LogNormalDropout`.
        threshold: weights with ln alpha at or above it are pruned; if None, the attribute `threshold` of the guide, or 3.
        structured: whether to remove units. With False, all networks are supported and keep their shape; pruned weights
            are 0.
        layout: layout of the dense layers: ``dense``, ``picked`` (only the inputs that have a weight), ``csr`` (a sparse
            matrix), or ``fastest``, the one that is fastest in a measurement.
        x: example inputs, ``[N, ...]``, to determine the shapes of layers.

    Returns:
        A module that maps x to f, both in their original units.

    Raises:
        TypeError: the guide learns no alpha per weight or unit; the network is not a chain of supported layers, and its
            units cannot be followed, or `layout` is ``picked`` or ``csr``; or an argument is of another type.
        ValueError: an argument is out of range.

    Example:
        >>> import torch
        >>> from pyrodrop import compression, guides, likelihoods, models, priors
        >>> _ = torch.manual_seed(0)
        >>> model = models.MLP([4, 8, 1], prior=priors.ARD("weight"), likelihood=likelihoods.Gaussian())
        >>> guide = guides.SparseDropout(model)
        >>> with torch.no_grad():
        ...     guide.log_variance["layers.0.weight"][2:] = 5.0  # the noise of six hidden units, as if trained
        >>> network = compression.compress(model, guide, layout="dense")
        >>> [tuple(parameter.shape) for parameter in network.parameters()]
        [(2, 4), (2,), (1, 2), (1,)]
        >>> network(torch.zeros(5, 4)).shape
        torch.Size([5, 1])
    """
    weights = _kept(model, guide, threshold)
    if structured:
        try:
            return network_of(steps_of(model, weights, x, layout))
        except NoChain as error:
            return _narrow(model, weights, layout, x, error)
    try:
        chain = chain_of(_on_cpu(model), weights, _few(x))
        return chain.network(laid_out(chain.steps, layout))
    except NoChain:
        return whole_network(_on_cpu(model), weights, _few(x))


@checked
@exclusive()
def compression_report(
    model: Any,
    guide: Any,
    data: Dataset,
    *,
    threshold: float | None = None,
    layout: Layout = "fastest",
    kl_weight: Annotated[float, Real("the factor of the KL divergence at the end of training", least=0)] = 1.0,
) -> CompressionReport:
    """Compare the network of the posterior means with the compressed one; see `Fit.compression_report`.

    Raises:
        TypeError, ValueError: as `compress`; `data` is no `Dataset`, or `kl_weight` no number of at least 0.
    """
    instance(data, Dataset, "data", "a Dataset")
    small = steps_of(model, _kept(model, guide, threshold), data.x, layout)
    means = {name: w.detach().cpu() for name, w in uncut_weights(guide).items()}
    dense = chain_of(_on_cpu(model), means, _few(data.x))
    dense.network(dense.steps)
    return measure(dense.steps, small, data, bound_of(guide, threshold), kl_weight)


def _kept(model: Any, guide: Any, threshold: float | None) -> dict[str, Tensor]:
    """The weights that are kept, on the CPU."""
    check_model(model)
    return {name: weight.detach().cpu() for name, weight in kept_weights(guide, threshold).items()}


def steps_of(model: Any, weights: Mapping[str, Tensor], x: Inputs | None, layout: Layout) -> list[Step]:
    """The steps of the network with these weights, without dead units; the other arguments and errors are of `compress`."""
    chain = chain_of(_on_cpu(model), weights, _few(x))
    steps = laid_out(without_dead_units(chain.steps), layout)
    chain.network(steps)
    return steps


def _narrow(model: Any, weights: Mapping[str, Tensor], layout: Layout, x: Inputs | None, error: NoChain) -> nn.Module:
    """The network without unused units if it is not a chain; `error` says why it is none."""
    if not isinstance(x, Tensor) or layout in ("picked", "csr"):
        raise error
    try:
        return narrowed(whole_network(_on_cpu(model), weights, _few(x)), _few(x))
    except NoChain as other:
        raise NoChain(f"{error}; nor are its unused units removed: {other}") from error


def _on_cpu(model: Any) -> Any:
    """The model itself if it is on the CPU, otherwise a copy on the CPU."""
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    return model if all(p.device.type == "cpu" for p in parameters) else copy.deepcopy(model).cpu()


def _few(x: Inputs | None) -> Any:
    """The first two example inputs, on the CPU."""
    return None if x is None else mapped(lambda part: part[:2].cpu(), x)
