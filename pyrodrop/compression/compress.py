"""From a trained model and guide to the small network, and to the report on it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from pyrodrop.compression.chain import NoChain, steps_of
from pyrodrop.compression.kept import kept_weights, uncut_weights
from pyrodrop.compression.layout import Layout, laid_out
from pyrodrop.compression.report import CompressionReport, measure
from pyrodrop.compression.steps import Step, network_of
from pyrodrop.compression.units import without_dead_units
from pyrodrop.data import Dataset


def compress(
    model: Any,
    guide: Callable[..., Any],
    *,
    threshold: float = 3.0,
    structured: bool = True,
    layout: Layout = "fastest",
    batch_size: int = 1000,
) -> nn.Module:
    """The network of the weights that stay, as a plain module on the CPU; see `Fit.compress`."""
    weights = {name: w.detach().cpu() for name, w in kept_weights(guide, threshold).items()}
    if structured:
        return network_of(_small(model, weights, layout, batch_size))
    try:
        steps = steps_of(_on_cpu(model), weights)
    except NoChain:
        return _whole(model, weights)
    return network_of(laid_out(steps, layout, batch_size))


def compressed_steps(
    model: Any, guide: Callable[..., Any], *, threshold: float = 3.0, layout: Layout = "fastest", batch_size: int = 1000
) -> list[Step]:
    """The steps of the compressed network, for `write_network`."""
    weights = {name: w.detach().cpu() for name, w in kept_weights(guide, threshold).items()}
    return _small(model, weights, layout, batch_size)


def compression_report(
    model: Any,
    guide: Any,
    data: Dataset,
    *,
    threshold: float = 3.0,
    layout: Layout = "fastest",
    kl_weight: float = 1.0,
) -> CompressionReport:
    """Measure the network of all posterior means beside the compressed one; see `Fit.compression_report`."""
    small = compressed_steps(model, guide, threshold=threshold, layout=layout)
    dense = steps_of(_on_cpu(model), {name: w.detach().cpu() for name, w in uncut_weights(guide).items()})
    return measure(dense, small, data, threshold, kl_weight)


def _small(model: Any, weights: Mapping[str, Tensor], layout: Layout, batch_size: int) -> list[Step]:
    return laid_out(without_dead_units(steps_of(_on_cpu(model), weights)), layout, batch_size)


def _on_cpu(model: Any) -> Any:
    """The model where its networks are cut: the trained one stays where it is."""
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    return model if all(p.device.type == "cpu" for p in parameters) else copy.deepcopy(model).cpu()


def _whole(model: Any, weights: Mapping[str, Tensor]) -> nn.Module:
    """The user's own network, zeros and all, with its parameters back: any network, of the shape that it had."""
    model = _on_cpu(model)
    if not all(
        part.loc.count_nonzero() == 0 and bool((part.scale == 1).all()) for part in (model.inputs, model.targets)
    ):
        raise ValueError(
            "a network that is no chain of layers is given back alone, which works in standardised units; this model "
            "standardises its data"
        )
    network: nn.Module = copy.deepcopy(model.network)
    values = {**{name: model.free[name].detach() for name in model.free}, **weights}
    for module_name, module in network.named_modules():
        for name in list(module._buffers):
            full = f"{module_name}.{name}" if module_name else name
            if full in values:
                del module._buffers[name]
                module.register_parameter(name, nn.Parameter(values[full].clone(), requires_grad=False))
    return network.eval()
